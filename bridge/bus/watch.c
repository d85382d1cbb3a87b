#include "bus/watch.h"

#include "core/clock.h"

static const uint64_t ping_ns = kvb_bus_ping_ms * KVB_NS_PER_MS;
static const uint64_t patience_ns = kvb_bus_patience_ms * KVB_NS_PER_MS;
static const uint64_t longest_look_ns = 1000 * KVB_NS_PER_MS; /* a longer gap: suspended */

void kvb_bus_watch_begin(struct kvb_bus_watch *watch, uint64_t now_ns)
{
    *watch = (struct kvb_bus_watch){ .looked_ns = now_ns, .pinged_ns = now_ns };
}

void kvb_bus_watch_pinged(struct kvb_bus_watch *watch, uint64_t now_ns)
{
    if (!watch->is_waiting) {
        watch->is_waiting = true;
        watch->pinged_ns = now_ns;
    }
}

void kvb_bus_watch_answered(struct kvb_bus_watch *watch)
{
    watch->is_waiting = false;
}

static void leave_out_standstill(struct kvb_bus_watch *watch, uint64_t now_ns)
{
    const uint64_t since_ns = now_ns - watch->looked_ns;

    watch->looked_ns = now_ns;
    /* Nobody ran who could have read the PONG, so the wait moves by the gap. */
    if (since_ns > longest_look_ns) {
        watch->pinged_ns += since_ns;
    }
    if (watch->pinged_ns > now_ns) {
        watch->pinged_ns = now_ns; /* the PING was sent after the gap */
    }
}

uint64_t kvb_bus_watch_due_ns(const struct kvb_bus_watch *watch)
{
    const uint64_t due_ns = watch->pinged_ns + (watch->is_waiting ? patience_ns : ping_ns);
    const uint64_t look_ns = watch->looked_ns + kvb_bus_look_ms * KVB_NS_PER_MS;

    return due_ns < look_ns ? due_ns : look_ns;
}

enum kvb_bus_watch_step kvb_bus_watch_look(struct kvb_bus_watch *watch, uint64_t now_ns)
{
    leave_out_standstill(watch, now_ns);
    /* While resting, the time counts from the PING that was answered: one PING a second. */
    const uint64_t since_ns = now_ns - watch->pinged_ns;
    if (watch->is_waiting) {
        return since_ns >= patience_ns ? KVB_BUS_WATCH_CLOSE : KVB_BUS_WATCH_REST;
    }
    return since_ns >= ping_ns ? KVB_BUS_WATCH_PING : KVB_BUS_WATCH_REST;
}
