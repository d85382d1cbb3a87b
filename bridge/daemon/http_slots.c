#include "daemon/http_slots.h"

#include "core/clock.h"

#include <stdlib.h>

kvb_status
kvb_http_slots_init(struct kvb_http_slots *slots, const struct kvb_http_slots_options *options)
{
    const size_t count = options->max_connections + options->max_extra;

    *slots = (struct kvb_http_slots){ .options = *options, .slot_count = count };
    slots->slots = calloc(count, sizeof *slots->slots);
    if (!slots->slots) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        slots->slots[i].fd = -1;
    }
    return KVB_OK;
}

void kvb_http_slots_done(struct kvb_http_slots *slots)
{
    free(slots->slots);
    *slots = (struct kvb_http_slots){ 0 };
}

/* ---- Which connection makes room ---- */

/* Numbers of open connections. */
struct open_counts {
    size_t all;    /* without extra and CLOSING ones, like the next two */
    size_t client; /* of one client */
    size_t unproven;
    size_t extra;
};

static struct open_counts count_open(const struct kvb_http_slots *slots, uint64_t client)
{
    struct open_counts open = { 0 };

    for (size_t i = 0; i < slots->slot_count; i++) {
        const struct kvb_http_slot *slot = &slots->slots[i];
        /* A CLOSING one has made room already: counted, it would have another one closed as
         * well. */
        if (slot->phase == KVB_HTTP_FREE || slot->phase == KVB_HTTP_CLOSING) {
            continue;
        }
        open.extra += slot->is_extra;
        open.all += !slot->is_extra;
        open.unproven += !slot->is_extra && !slot->is_proven;
        open.client += !slot->is_extra && slot->client == client;
    }
    return open;
}

static bool is_longer(const struct kvb_http_slot *one, const struct kvb_http_slot *other)
{
    if (!other) {
        return true;
    }
    /* First those of whom nothing is known: they must not displace who has shown a token. */
    if (one->is_proven != other->is_proven) {
        return !one->is_proven;
    }
    /* Then HEADER before BODY, as they stand in the enum: there least is lost. */
    return one->phase != other->phase ? one->phase < other->phase : one->since_ns < other->since_ns;
}

/* Which connections may make room. */
struct victim_filter {
    bool is_extra;
    bool is_unproven;       /* only unproven ones */
    const uint64_t *client; /* only those of this client; NULL: of all */
};

static bool may_make_room(const struct kvb_http_slot *slot, const struct victim_filter *filter)
{
    /* Never in WORK or ANSWER: there a whole request is being served. */
    return (slot->phase == KVB_HTTP_HEADER || slot->phase == KVB_HTTP_BODY) &&
           slot->is_extra == filter->is_extra && !(filter->is_unproven && slot->is_proven) &&
           (!filter->client || slot->client == *filter->client);
}

/* The connection that waits longest for its client to send, an unproven one first. */
static struct kvb_http_slot *longest_waiting(
    const struct kvb_http_slots *slots, const struct victim_filter *filter, uint64_t now_ns)
{
    /* A burst must not close connections whose first bytes are still on their way. */
    const uint64_t young_ns = filter->is_extra ? 0 : slots->options.young_ns;
    struct kvb_http_slot *longest = NULL;

    for (size_t i = 0; i < slots->slot_count; i++) {
        struct kvb_http_slot *slot = &slots->slots[i];
        if (may_make_room(slot, filter) && now_ns - slot->since_ns >= young_ns &&
            is_longer(slot, longest)) {
            longest = slot;
        }
    }
    return longest;
}

static struct kvb_http_victim choose_victim(struct kvb_http_slot *slot, enum kvb_http_end why)
{
    if (!slot) {
        return (struct kvb_http_victim){ .fd = -1 };
    }
    slot->phase = KVB_HTTP_CLOSING;
    return (struct kvb_http_victim){ .fd = slot->fd, .why = why };
}

/* The extra connection to be closed for a new extra one; NULL: none waits.  One of the same client
 * first: else a burst of one host would close those of others before they can show that they are
 * permitted. */
static struct kvb_http_slot *
make_extra_room(const struct kvb_http_slots *slots, uint64_t client, uint64_t now_ns)
{
    const struct victim_filter own = { .is_extra = true, .client = &client };
    const struct victim_filter any = { .is_extra = true };
    struct kvb_http_slot *longest = longest_waiting(slots, &own, now_ns);

    return longest ? longest : longest_waiting(slots, &any, now_ns);
}

/* The connection to be closed for a new one; NULL: none, because there is room or no candidate.
 * *out_is_extra: the new one is extra, because no ordinary one can be closed. */
static struct kvb_http_slot *make_slot_room(
    const struct kvb_http_slots *slots, uint64_t client, uint64_t now_ns, bool *out_is_extra)
{
    const struct open_counts open = count_open(slots, client);
    const bool is_client_full = open.client >= slots->options.max_per_client;
    const bool is_unproven_full =
        slots->options.max_unproven > 0 && open.unproven >= slots->options.max_unproven;
    /* The limit that is reached says whose may be closed: this client's own, else unproven ones. */
    const struct victim_filter filter = { .is_unproven = is_unproven_full && !is_client_full,
                                          .client = is_client_full ? &client : NULL };

    *out_is_extra = false;
    if (!is_client_full && !is_unproven_full && open.all < slots->options.max_connections) {
        return NULL;
    }
    struct kvb_http_slot *longest = longest_waiting(slots, &filter, now_ns);
    if (longest) {
        return longest;
    }
    /* All that count are young or being served: then it gets 503, or the answer of a vital path. */
    *out_is_extra = true;
    return open.extra >= slots->options.max_extra / 2 ? make_extra_room(slots, client, now_ns)
                                                      : NULL;
}

static struct kvb_http_slot *find_free(const struct kvb_http_slots *slots)
{
    for (size_t i = 0; i < slots->slot_count; i++) {
        if (slots->slots[i].phase == KVB_HTTP_FREE) {
            return &slots->slots[i];
        }
    }
    return NULL;
}

struct kvb_http_slot *kvb_http_slots_open(
    struct kvb_http_slots *slots, uint64_t client, int fd, uint64_t now_ns,
    struct kvb_http_victim *out_victim)
{
    /* A victim keeps its slot until its socket is closed, so the new one needs another. */
    struct kvb_http_slot *slot = find_free(slots);
    bool is_extra = false;

    *out_victim =
        choose_victim(make_slot_room(slots, client, now_ns, &is_extra), KVB_HTTP_END_CROWDED);
    if (slot) {
        *slot = (struct kvb_http_slot){ .phase = KVB_HTTP_HEADER,
                                        .is_extra = is_extra,
                                        .fd = fd,
                                        .client = client,
                                        .since_ns = now_ns,
                                        .owner = slots->options.owner };
        slots->open_count++;
    }
    return slot;
}

void kvb_http_slots_close(struct kvb_http_slots *slots, struct kvb_http_slot *slot)
{
    slots->held_bytes -= slot->held_bytes;
    slots->open_count--;
    *slot = (struct kvb_http_slot){ .fd = -1 };
}

void kvb_http_slots_prove(struct kvb_http_slots *slots, struct kvb_http_slot *slot)
{
    slot->is_proven = true;
    if (slot->is_extra) {
        /* An extra one is not among these counts.  Proven, it has no limit but these two. */
        const struct open_counts open = count_open(slots, slot->client);
        slot->is_extra = open.all >= slots->options.max_connections ||
                         open.client >= slots->options.max_per_client;
    }
}

void kvb_http_slots_enter(struct kvb_http_slot *slot, enum kvb_http_phase phase, uint64_t now_ns)
{
    /* Its thread may still go through phases before it reads the end of the stream. */
    if (slot->phase != KVB_HTTP_CLOSING) {
        slot->phase = phase;
        slot->since_ns = now_ns;
        slot->moved_bytes = 0;
    }
}

/* ---- Bytes ---- */

static size_t held_by(const struct kvb_http_slots *slots, uint64_t client)
{
    size_t bytes = 0;

    for (size_t i = 0; i < slots->slot_count; i++) {
        bytes += slots->slots[i].client == client ? slots->slots[i].held_bytes : 0;
    }
    return bytes;
}

kvb_status
kvb_http_slots_hold(struct kvb_http_slots *slots, struct kvb_http_slot *slot, size_t bytes)
{
    const size_t need = bytes > slots->options.own_bytes ? bytes - slots->options.own_bytes : 0;
    const size_t others = slots->held_bytes - slot->held_bytes;

    /* Fewer bytes are always granted.  While nobody else holds any, all are: else a request above
     * the budget of one client would be refused for ever. */
    if (need > slot->held_bytes && others > 0 &&
        (others + need > slots->options.max_held_bytes ||
         held_by(slots, slot->client) - slot->held_bytes + need >
             slots->options.max_client_bytes)) {
        return KVB_AGAIN;
    }
    slots->held_bytes = others + need;
    slot->held_bytes = need;
    return KVB_OK;
}

/* ---- Deadlines ---- */

static bool
is_slot_late(const struct kvb_http_slots *slots, const struct kvb_http_slot *slot, uint64_t now_ns)
{
    const uint64_t earned_ns = slot->moved_bytes * (KVB_NS_PER_S / slots->options.bytes_a_second);

    return now_ns - slot->since_ns >= slots->options.grace_ns + earned_ns;
}

bool kvb_http_slots_next_late(
    struct kvb_http_slots *slots, uint64_t now_ns, struct kvb_http_victim *out_victim)
{
    for (size_t i = 0; i < slots->slot_count; i++) {
        struct kvb_http_slot *slot = &slots->slots[i];
        /* In WORK the client waits for this server; a CLOSING one has been shut down already. */
        const bool waits = slot->phase == KVB_HTTP_HEADER || slot->phase == KVB_HTTP_BODY ||
                           slot->phase == KVB_HTTP_ANSWER;
        if (waits && is_slot_late(slots, slot, now_ns)) {
            *out_victim = choose_victim(slot, KVB_HTTP_END_LATE);
            return true;
        }
    }
    return false;
}
