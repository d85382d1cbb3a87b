#pragma once

#include "core/conf.h"
#include "core/log.h"
#include "core/status.h"
#include "ingest/dns/members.h"
#include "kvbridge/bridge.h"
#include "kvbridge/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes the members of a DNS name the workers of the bridge, for fleets without access to the
 * Kubernetes API.
 *
 *     every dns.period_s: look up --> kvb_dns_members --changed--> its whole list --> the bridge
 *                            |
 *                            +-- no answer: all workers stay, and a warning is logged
 *
 * The address and port identify a worker: its id is computed from them (kvb_worker_id_of_address).
 *
 * Threads: a job of the control thread, whose work calls take; the functions: any thread. */
struct kvb_control;
struct kvb_dns_list;

bool kvb_dns_list_is_configured(const struct kvb_dns_config *config);

/* Adds an error for each key that is missing or cannot be used. */
void kvb_dns_list_check(
    struct kvb_conf *conf, const struct kvb_dns_config *config,
    const struct kvb_worker_defaults *defaults);

struct kvb_dns_list_options {
    struct kvb_control *control;                /* borrowed */
    const struct kvb_dns_config *config;        /* borrowed */
    const struct kvb_worker_defaults *defaults; /* borrowed; what every member has */
    struct kvb_log *log;                        /* borrowed */
    kvb_take_list *take;                        /* gives the bridge the list */
    void *context;
};

/* Looks nothing up yet.  KVB_NO_MEMORY */
kvb_status
kvb_dns_list_new(const struct kvb_dns_list_options *options, struct kvb_dns_list **out_list);
/* NULL is fine, like below. */
void kvb_dns_list_start(struct kvb_dns_list *list);
/* The bridge is given nothing after it returns. */
void kvb_dns_list_stop(struct kvb_dns_list *list);
/* Stops it first. */
void kvb_dns_list_free(struct kvb_dns_list *list);

struct kvb_dns_list_counters {
    uint64_t results[KVB_DNS_RESULT_COUNT]; /* look-ups by result */
    uint64_t members;                       /* now */
};

/* All zero for NULL. */
struct kvb_dns_list_counters kvb_dns_list_count(const struct kvb_dns_list *list);
