#pragma once

#include "core/conf.h"
#include "kvbridge/config.h"
#include "kvbridge/endpoint.h"

/* The configuration while its files are read.  Only for the config*.c files. */

enum { kvb_config_topic_bytes = 128 };

/* A group of `workers`.  The spec borrows its texts from the file, and from this struct. */
struct kvb_worker_group {
    struct kvb_worker_spec spec;
    uint64_t ids[kvb_max_ranks];
    size_t id_count;
    uint64_t drop_groups[kvb_max_drop_groups];
    size_t drop_group_count;
    struct kvb_worker_facts facts;
    char made_discover[kvb_config_url_bytes]; /* of discover = "address" */
    uint32_t events_port;                     /* of the defaults alone, like the next two */
    uint32_t replay_port;
    uint32_t metrics_port;
};

struct kvb_bridge_file {
    struct kvb_bridge_config config; /* must be first: rows have the offsets of its fields */
    struct kvb_worker_group defaults;
    struct kvb_worker_group *workers; /* owned */
    size_t worker_count;
};

/* Reports settings with which readers of json would lose or misread events, as errors and warnings.
 * Sets publish.refresh_s when it is absent or has no effect. */
void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_file *file);

/* Checks the group `kubernetes` and fills its rules. */
void kvb_bridge_config_settle_kubernetes(struct kvb_conf *conf, struct kvb_bridge_config *config);

/* Checks the groups `republish` of all workers. */
void kvb_bridge_config_check_republish(struct kvb_conf *conf, const struct kvb_bridge_file *file);
