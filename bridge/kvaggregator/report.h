#pragma once

#include "bus/subject.h"
#include "core/span.h"
#include "core/url_show.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_route_decision;

/* What an aggregator publishes and shows of its own accord: load_stats, kv-hit-rate, metrics, the
 * status page.  Threads: the index thread, or who has queries->index_lock. */

struct kvb_report {
    char load_subject[kvb_subject_bytes];
    char hit_rate_subject[kvb_subject_bytes];
    char alias_subject[kvb_subject_bytes]; /* "" = none */
    char nats[kvb_url_shown_bytes];        /* the server, as it is shown to people */
    bool has_load_changed;                 /* so it is published with the next tick */
    uint64_t load_published_ns;
    uint64_t next_process_ns; /* when the process is measured next */
};

/* Publishes a message; a failure is counted. */
void kvb_aggregator_publish(
    struct kvb_aggregator *aggregator, const char *subject, kvb_span payload);
void kvb_aggregator_publish_load(struct kvb_aggregator *aggregator, uint64_t now_ns);
void kvb_aggregator_publish_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision);
void kvb_aggregator_set_constants(struct kvb_aggregator *aggregator);
void kvb_aggregator_update_metrics(struct kvb_aggregator *aggregator, uint64_t now_ns);
/* Called after update_metrics(), whose values it uses. */
void kvb_aggregator_update_dashboard(struct kvb_aggregator *aggregator, uint64_t now_ns);
