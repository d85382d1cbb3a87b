#pragma once

#include "core/conf.h"
#include "core/networks.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "load/route.h"
#include "load/tracker.h"
#include "model/labels.h"
#include "model/query.h"
#include "model/stream.h"
#include "wire/gateway/messages.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum kvb_gateway_response {
    KVB_GATEWAY_WATCH, /* answers what Envoy shows of the response */
    KVB_GATEWAY_SKIP,  /* ends the stream when the request is answered */
    KVB_GATEWAY_RESPONSE_COUNT
};

/* The modes of a body that `assume` may name. */
enum kvb_gateway_assume {
    KVB_ASSUME_DUPLEX,
    KVB_ASSUME_BUFFERED,
    KVB_ASSUME_STREAMED,
    KVB_ASSUME_NONE,
    KVB_ASSUME_COUNT
};

/* A group of `gateway`. */
struct kvb_gateway_config {
    char listen[kvb_config_listen_bytes];
    struct kvb_http_security security; /* `tls` and `insecure` in the file; no token_file */
    char policy[kvb_policy_bytes + 1]; /* "": router.policy */
    struct kvb_labels labels;
    uint32_t endpoints;
    uint32_t deadline_ms;
    enum kvb_gateway_response response;
    enum kvb_gateway_assume assume;
    bool rank_ports;
    char affinity_header[64]; /* lower case; "": none */
    uint32_t withdraw_s;
    uint32_t drain_s;
};

/* The configuration of kvaggregator.  --help explains each key, from the table in
 * kvaggregator/config.c; etc/kvaggregator.cfg is an example.  Threads: plain data, constant once it
 * is read. */

struct kvb_aggregator_config {
    struct kvb_nats_config nats;
    struct {
        char name_space[kvb_name_bytes + 1]; /* or "*" */
        char component[kvb_name_bytes + 1];  /* or "*" */
        struct {
            char model[kvb_model_bytes + 1]; /* "": streams without heartbeats are not matched */
            uint32_t block_size;             /* tokens; 0 with an empty model */
        } fallback;                          /* `default` in the file */
    } subscribe;
    struct {
        char name_space[kvb_name_bytes + 1];
        char component[kvb_name_bytes + 1];
        enum kvb_route_policy policy;
        double overlap_weight;
        double temperature;
        double unverified_tiers;
        uint32_t request_ttl_ms;
        uint32_t predict_ms; /* 0: no predictions */
        bool hit_rate_alias;
        char queue_group[kvb_name_bytes + 1]; /* "": none */
        double ready_exact;                   /* 0 .. 1 */
    } router;
    struct {
        uint32_t expire_ms;
        uint32_t publish_ms;
        enum kvb_load_statistic statistic;
    } load;
    struct {
        bool marks; /* streams become UNVERIFIED(audit) */
        double honest_loss;
        double lie; /* honest_loss + lie is below 1 */
        double false_alarm_requests;
        uint32_t slack_blocks;
    } audit;
    uint32_t forget_ms; /* at least load.expire_ms */
    struct {
        uint64_t max_index_blocks;
        uint64_t max_query_body_bytes;
        uint32_t event_ring; /* messages */
        uint32_t query_ring; /* queries */
    } limits;
    char http[kvb_config_listen_bytes]; /* "": off */
    struct {
        char listen[kvb_config_listen_bytes]; /* "": off */
        char model[kvb_model_bytes + 1];      /* "": the only one */
        struct kvb_http_security security;    /* `tls` and `insecure` in the file; no token_file */
    } grpc;
    struct kvb_gateway_config *gateways; /* owned */
    size_t gateway_count;
    struct {
        struct kvb_networks networks; /* empty: off */
        uint32_t deadline_ms;
        uint64_t cache_bytes; /* 0: no cache */
        uint32_t cache_s;
    } tokenize;
    struct kvb_http_security http_security;
    struct kvb_log_config log;
};

/* The mode as in Envoy's messages. */
enum kvb_body_mode kvb_gateway_assumed_mode(enum kvb_gateway_assume assume);

/* On KVB_OK the caller frees *out_config with kvb_aggregator_config_done().
 * KVB_BAD_CONFIG  *errors, which must be {0} before the call, lists all mistakes
 * KVB_NO_MEMORY */
kvb_status kvb_aggregator_config_read(
    const char *path, struct kvb_aggregator_config *out_config, struct kvb_conf_errors *errors);

/* {0} is fine. */
void kvb_aggregator_config_done(struct kvb_aggregator_config *config);

/* All keys, for --help and the manual. */
const struct kvb_conf_table *kvb_aggregator_config_keys(void);
