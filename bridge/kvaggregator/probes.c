#include "core/clock.h"
#include "kvaggregator/inside.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

/* What probes ask for: whether the aggregator is alive, and whether it is ready. */

/* True: the aggregator is not ready without this permission.  It must receive events to have an
 * index, and must send requests to bridges and receive the answers in its inbox (which the echo
 * tests) to repair gaps.  Queries over NATS and statistics are not vital: HTTP answers queries
 * too. */
static bool is_vital(const void *context, const struct kvb_denial *denial)
{
    const struct kvb_aggregator *aggregator = context;

    if (denial->is_publish) {
        return strstr(denial->subject, ".kv_sync.") != NULL ||
               strcmp(denial->subject, aggregator->echo_subject) == 0;
    }
    return strcmp(denial->subject, aggregator->received_subject) == 0 ||
           strncmp(denial->subject, "_INBOX.", sizeof "_INBOX." - 1) == 0;
}

const char *kvb_aggregator_not_live(const struct kvb_aggregator *aggregator)
{
    const uint64_t turned_ns = atomic_load_explicit(&aggregator->turned_ns, memory_order_relaxed);

    return kvb_liveness_cause(turned_ns, kvb_clock_monotonic_ns());
}

/* Our own message came back on this connection. */
bool kvb_aggregator_is_subscribed(const struct kvb_aggregator *aggregator)
{
    return atomic_load_explicit(&aggregator->connects_subscribed, memory_order_relaxed) ==
           kvb_bus_connects(aggregator->bus);
}

/* With the numbers of the newest count. */
static const char *explain_share(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const struct kvb_metrics *metrics = &aggregator->metrics;
    uint64_t streams = 0;

    for (size_t id = kvb_aggregator_streams_syncing; id < kvb_aggregator_streams_down; id++) {
        streams += kvb_metric_get(metrics, id);
    }
    kvb_detail_set(
        detail,
        "%" PRIu64 " of %" PRIu64 " streams are EXACT; router.ready_exact asks for a share of %g",
        kvb_metric_get(metrics, kvb_aggregator_streams_exact), streams,
        aggregator->config->router.ready_exact);
    return detail->text;
}

/* NULL, or why this aggregator takes no part of the requests. */
static const char *
why_not_member(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const struct aggregator_group *group = &aggregator->group;
    const int cause = atomic_load_explicit(&group->shown_cause, memory_order_relaxed);
    const int state = atomic_load_explicit(&group->shown_state, memory_order_relaxed);

    if (cause == KVB_UNREADY_SHARE) {
        return explain_share(aggregator, detail);
    }
    if (cause != KVB_READY) {
        return kvb_readiness_cause_text((enum kvb_readiness_cause)cause);
    }
    return group->has_thread && state != KVB_GROUP_MEMBER
               ? "not a member of the queue group of requests yet (router.queue_group)"
               : NULL;
}

const char *
kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const char *cause = kvb_aggregator_not_live(aggregator);

    if (cause) {
        return cause;
    }
    if (!kvb_bus_is_connected(aggregator->bus)) {
        return kvb_readiness_cause_text(KVB_UNREADY_NOT_CONNECTED);
    }
    if (kvb_bus_is_denied(aggregator->bus, is_vital, aggregator, detail)) {
        return detail->text;
    }
    if (!kvb_aggregator_is_subscribed(aggregator)) {
        return kvb_readiness_cause_text(KVB_UNREADY_NOT_SUBSCRIBED);
    }
    return why_not_member(aggregator, detail);
}

bool kvb_aggregator_is_denied(const struct kvb_aggregator *aggregator)
{
    struct kvb_detail ignored;

    return kvb_bus_is_denied(aggregator->bus, is_vital, aggregator, &ignored);
}
