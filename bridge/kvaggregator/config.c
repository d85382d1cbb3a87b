#include "kvaggregator/config.h"

#include "bus/subject.h"
#include "core/limits.h"
#include "core/own.h"

#include <string.h>

static kvb_status take_tokenize_network(void *field, const char *text, struct kvb_detail *detail)
{
    return kvb_networks_add(field, text, detail);
}

enum {
    max_ring_items = 1 << 20,               /* what kvb_ring_new() takes */
    max_new_queries = max_ring_items - 4096 /* the rest is for those that come again */
};

static const char *response_name(enum kvb_gateway_response response)
{
    return response == KVB_GATEWAY_WATCH ? "watch" : "skip";
}

static const char *assume_name(enum kvb_gateway_assume assume)
{
    static const char *const names[KVB_ASSUME_COUNT] = { [KVB_ASSUME_DUPLEX] = "duplex",
                                                         [KVB_ASSUME_BUFFERED] = "buffered",
                                                         [KVB_ASSUME_STREAMED] = "streamed",
                                                         [KVB_ASSUME_NONE] = "none" };

    return names[assume];
}

static kvb_status
take_label(void *field, const char *name, const char *value, struct kvb_detail *detail)
{
    return kvb_labels_add(field, name, value, detail);
}

/* ---- The keys of a gateway ----------------------------------------------------------- */

#define FIELD(field) KVB_CONF_FIELD(struct kvb_gateway_config, field)

/* clang-format off */
static const struct kvb_conf_key gateway_keys[] = {
    { "listen", KVB_CONF_STRING, "127.0.0.1:9002", 1, FIELD(listen),
      .help = "Address and port where Envoy asks, numbers only." },
    { "insecure", KVB_CONF_BOOL, "false", 0, 0, FIELD(security.insecure),
      .help = "true: listen may be an address that is not loopback, without\n"
              "tls.client_ca_file.  Whoever reaches it learns the engines' addresses, and\n"
              "moves picks." },
    { "tls.self_signed", KVB_CONF_BOOL, "false", 0, 0, FIELD(security.is_self_signed),
      .help = "true: a certificate that is made at each start and signs itself, for gateways\n"
              "that demand TLS and check nothing (Envoy AI Gateway, Istio)." },
    { "tls.cert_file", KVB_CONF_STRING, "", 0, FIELD(security.cert_file),
      .help = "PEM file with the server certificate and its chain; empty: without TLS, or\n"
              "tls.self_signed.  This and the next two are read again on SIGHUP." },
    { "tls.key_file", KVB_CONF_STRING, "", 0, FIELD(security.key_file),
      .help = "PEM file with the private key of that certificate (chmod 0640)." },
    { "tls.client_ca_file", KVB_CONF_STRING, "", 0, FIELD(security.client_ca_file),
      .help = "PEM file of the authorities that sign certificates of gateways: only one that\n"
              "shows such a certificate may ask.  Empty: none is needed." },
    { "policy", KVB_CONF_STRING, "", 0, FIELD(policy),
      .help = "As router.policy, for this gateway; empty: that one." },
    { "labels", KVB_CONF_PAIRS, NULL, 0, 0, FIELD(labels), .take_pair = take_label,
      .help = "Labels that a worker must have to be picked." },
    { "endpoints", KVB_CONF_U32, "1", 1, 8, FIELD(endpoints),
      .help = "How many endpoints an answer names, the best first.  More than one only\n"
              "where Envoy takes a list (override_host): ORIGINAL_DST refuses it." },
    { "deadline_ms", KVB_CONF_U32, "100", 1, 60000, FIELD(deadline_ms),
      .help = "How long a pick waits for the tokens of a text, in ms, after the last byte\n"
              "of the body; then it is made by what is known, or by load." },
    { "response", KVB_CONF_ENUM, "watch", 0, KVB_GATEWAY_RESPONSE_COUNT - 1, FIELD(response),
      .name_of = response_name,
      .help = "watch: answers what Envoy sends of responses, and learns when they end.\n"
              "skip: ends the stream when the request is answered." },
    { "assume", KVB_CONF_ENUM, "duplex", 0, KVB_ASSUME_COUNT - 1, FIELD(assume),
      .name_of = assume_name,
      .help = "The mode of bodies where Envoy does not say it (before 1.34)." },
    { "rank_ports", KVB_CONF_BOOL, "false", 0, 0, FIELD(rank_ports),
      .help = "true: each rank of a worker has a port of its own, that of its address and\n"
              "the rank.  false: the rank is in the header x-data-parallel-rank." },
    { "affinity_header", KVB_CONF_STRING, "", 0, FIELD(affinity_header),
      .help = "Header with the name of a session, such as x-session-id, in lower case.\n"
              "Picks by load keep a session on its engine while that is not the most\n"
              "loaded one.  Empty: none." },
    { "withdraw_s", KVB_CONF_U32, "5", 0, 300, FIELD(withdraw_s),
      .help = "At the end: how long it says NOT_SERVING before it stops, in seconds." },
    { "drain_s", KVB_CONF_U32, "60", 1, 3600, FIELD(drain_s),
      .help = "At the end: how long answers that run may go on, in seconds." },
};
#undef FIELD
/* clang-format on */

static const struct kvb_conf_table gateway_table = { gateway_keys, KVB_COUNT_OF(gateway_keys),
                                                     sizeof(struct kvb_gateway_config), NULL, 0 };

enum kvb_body_mode kvb_gateway_assumed_mode(enum kvb_gateway_assume assume)
{
    static const enum kvb_body_mode modes[KVB_ASSUME_COUNT] = {
        [KVB_ASSUME_DUPLEX] = KVB_MODE_DUPLEX,
        [KVB_ASSUME_BUFFERED] = KVB_MODE_BUFFERED,
        [KVB_ASSUME_STREAMED] = KVB_MODE_STREAMED,
        [KVB_ASSUME_NONE] = KVB_MODE_NONE,
    };

    return modes[assume];
}

/* ---- The keys: path, type, default, range, field, help ----------------------------- */

#define FIELD(field) KVB_CONF_FIELD(struct kvb_aggregator_config, field)

/* clang-format off */
static const struct kvb_conf_key keys[] = {
    KVB_CONFIG_NATS_ROWS(struct kvb_aggregator_config),
    { "subscribe.namespace", KVB_CONF_STRING, "*", 1, FIELD(subscribe.name_space),
      .help = "The aggregator follows the workers of\n"
              "namespace.{namespace}.component.{component}; \"*\": all namespaces." },
    { "subscribe.component", KVB_CONF_STRING, "*", 1, FIELD(subscribe.component),
      .help = "The component of these workers; \"*\": all components." },
    { "subscribe.default.model", KVB_CONF_STRING, "", 0, FIELD(subscribe.fallback.model),
      .help = "The model of streams whose bridge sends no heartbeats; empty: queries do\n"
              "not match such streams." },
    { "subscribe.default.block_size", KVB_CONF_U32, "0", 0, kvb_max_block_tokens,
      FIELD(subscribe.fallback.block_size),
      .help = "Tokens in a block of such streams; 0 without a model." },
    { "router.namespace", KVB_CONF_STRING, "dynamo", 1, FIELD(router.name_space),
      .help = "Routers send requests to subjects that begin with R\n"
              "= namespace.{namespace}.component.{component}." },
    { "router.component", KVB_CONF_STRING, "Router", 1, FIELD(router.component),
      .help = "The second part of R." },
    { "router.policy", KVB_CONF_ENUM, "kv", 0, KVB_ROUTE_POLICY_COUNT - 1, FIELD(router.policy),
      .name_of = kvb_route_policy_name,
      .instead_of = kvb_route_policy_instead,
      .help = "How kv_route chooses a worker.  kv: lowest overlap_weight * blocks to\n"
              "compute + blocks in use.  least_requests: lowest 4 * waiting + running.\n"
              "ttft: least time to the first token.  round_robin: in turn.  A request may\n"
              "name another policy." },
    { "router.overlap_weight", KVB_CONF_DOUBLE, "1.0", 0, 1000, FIELD(router.overlap_weight),
      .help = "kv: the weight of a block that must be computed." },
    { "router.temperature", KVB_CONF_DOUBLE, "0.0", 0, 1000, FIELD(router.temperature),
      .help = "0: always the worker with the lowest cost.  Above 0: a random worker,\n"
              "those with lower costs more often." },
    { "router.unverified_tiers", KVB_CONF_DOUBLE, "0.0", 0, 1, FIELD(router.unverified_tiers),
      .help = "How much of a prefix counts that a worker holds only in a tier which nothing\n"
              "proves right (unverified_tiers in /streams), such as a host tier whose\n"
              "removals are not published: 0 nothing, 1 as much as on the device." },
    { "router.request_ttl_ms", KVB_CONF_U32, "120000", 1, kvb_max_request_ttl_ms,
      FIELD(router.request_ttl_ms),
      .help = "How long a routed request counts as in flight, in ms, if nobody reports it\n"
              "as finished.  A request may set its own ttl_ms." },
    { "router.predict_ms", KVB_CONF_U32, "3000", 0, kvb_max_predict_ms, FIELD(router.predict_ms),
      .help = "How long a worker is expected to store the blocks of a prompt that was\n"
              "routed to it, in ms.  The next request with this prompt is routed there\n"
              "too.  0: no predictions." },
    { "router.hit_rate_alias", KVB_CONF_BOOL, "false", 0, 0, FIELD(router.hit_rate_alias),
      .help = "true: hit rates are also published on namespace.{namespace}.kv-hit-rate." },
    { "router.queue_group", KVB_CONF_STRING, "q", 0, FIELD(router.queue_group),
      .help = "nats-server gives each request to one of the ready aggregators with this\n"
              "group.  Empty: every aggregator answers every request." },
    { "router.ready_exact", KVB_CONF_DOUBLE, "0.0", 0, 1, FIELD(router.ready_exact),
      .help = "An aggregator is ready, and in the group, only if at least this share of\n"
              "its streams is EXACT, not counting DOWN streams.  0: no minimum." },
    { "load.expire_ms", KVB_CONF_U32, "3000", 100, 3600000, FIELD(load.expire_ms),
      .help = "The averages leave out a worker that was silent for this long, in ms." },
    { "load.statistic", KVB_CONF_ENUM, "ratio", 0, KVB_LOAD_ACTIVE_BLOCKS, FIELD(load.statistic),
      .name_of = kvb_load_statistic_name,
      .help = "The unit of load_avg and load_std.  ratio: share of the blocks in use\n"
              "(sample deviation).  active_blocks: number of blocks in use\n"
              "(population deviation)." },
    { "load.publish_ms", KVB_CONF_U32, "1000", 100, 60000, FIELD(load.publish_ms),
      .help = "How often R.load_stats is published, in ms; a change is published at once." },
    { "audit.marks", KVB_CONF_BOOL, "true", 0, 0, FIELD(audit.marks),
      .help = "Routers may report the cached tokens of finished requests.  true: a stream\n"
              "whose engine delivers less than promised is UNVERIFIED(audit).  false: it\n"
              "is only counted and shown." },
    { "audit.honest_loss", KVB_CONF_DOUBLE, "0.001", 0, 1, FIELD(audit.honest_loss),
      .help = "The share of its promise that a request may lose on average although the\n"
              "stream is right." },
    { "audit.lie", KVB_CONF_DOUBLE, "0.05", 0, 1, FIELD(audit.lie),
      .help = "The loss beyond audit.honest_loss for which the test is made.  Smaller ones\n"
              "are found later, or never." },
    { "audit.false_alarm_requests", KVB_CONF_DOUBLE, "100000000.0", 100, 1000000000000000,
      FIELD(audit.false_alarm_requests),
      .help = "Requests of a stream until a false alarm, at least, on average." },
    { "audit.slack_blocks", KVB_CONF_U32, "0", 0, 64, FIELD(audit.slack_blocks),
      .help = "Blocks at the end of each hit that are not promised.  1 for engines that\n"
              "compute the last cached block again, as vLLM with EAGLE does when its\n"
              "events have no lookahead tokens." },
    { "forget_ms", KVB_CONF_U32, "60000", 1000, 86400000, FIELD(forget_ms),
      .help = "A stream that was silent for this long, in ms, is removed with its blocks." },
    { "limits.max_index_blocks", KVB_CONF_U64, "16777216", 1024, kvb_max_index_blocks,
      FIELD(limits.max_index_blocks),
      .help = "Most distinct blocks in the index, however many workers hold them.  The\n"
              "window lists of hybrid models may have as many again, counted for each\n"
              "worker that holds them." },
    { "limits.max_query_body_bytes", KVB_CONF_U64, "16777216", 1024, kvb_max_query_body_bytes,
      FIELD(limits.max_query_body_bytes),
      .help = "Longest body of a request; longer ones are answered with 413." },
    { "limits.event_ring", KVB_CONF_U32, "262144", 64, max_ring_items, FIELD(limits.event_ring),
      .help = "Most messages from NATS that wait for the index; beyond it they are\n"
              "dropped, and fetched from the bridges afterwards." },
    { "limits.query_ring", KVB_CONF_U32, "1024", 1, max_new_queries, FIELD(limits.query_ring),
      .help = "Most queries that wait for the index; beyond it they are answered\n"
              "with 503." },
    KVB_CONFIG_HTTP_ROWS(struct kvb_aggregator_config, "127.0.0.1:9402"),
    { "grpc.listen", KVB_CONF_STRING, "", 0, FIELD(grpc.listen),
      .help = "Address and port where sgl-router asks over gRPC (--kv-indexer-endpoint),\n"
              "numbers only; empty: off.  Port 0 draws a free one, which the log names." },
    { "grpc.model", KVB_CONF_STRING, "", 0, FIELD(grpc.model),
      .help = "The model that is asked about, because requests over gRPC name none.\n"
              "Empty: the only one that there is; with several, nothing is matched." },
    { "grpc.insecure", KVB_CONF_BOOL, "false", 0, 0, FIELD(grpc.security.insecure),
      .help = "true: grpc.listen may be an address that is not loopback.  Whoever reaches it\n"
              "learns who holds which blocks." },
    { "grpc.tls.cert_file", KVB_CONF_STRING, "", 0, FIELD(grpc.security.cert_file),
      .help = "PEM file with the server certificate and its chain: gRPC over TLS; empty:\n"
              "without.  This and the next are read again on SIGHUP." },
    { "grpc.tls.key_file", KVB_CONF_STRING, "", 0, FIELD(grpc.security.key_file),
      .help = "PEM file with the private key of that certificate (chmod 0640)." },
    { "gateway", KVB_CONF_LIST, NULL, 0, kvb_max_gateways, .items = &gateway_table,
      .offset = offsetof(struct kvb_aggregator_config, gateways),
      .count_offset = offsetof(struct kvb_aggregator_config, gateway_count),
      .help = "Where Envoy asks which engine gets a request (an endpoint picker over\n"
              "ext_proc): ( { listen = \"127.0.0.1:9002\"; } ); a listener for each group." },
    { "tokenize.networks", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(tokenize.networks),
      .take_text = take_tokenize_network,
      .help = "Networks, such as 10.0.0.0/8, of the engines that may be asked for the tokens\n"
              "of a text, where their worker has `tokenize`.  The text is sent there.\n"
              "Addresses where clouds answer with credentials are never asked.  Empty:\n"
              "none is, and texts are routed by load." },
    { "tokenize.deadline_ms", KVB_CONF_U32, "50", 1, kvb_max_tokenize_deadline_ms,
      FIELD(tokenize.deadline_ms),
      .help = "How long a query of text waits for the tokens, in ms; then it is answered\n"
              "by an earlier text that is its beginning, or by load." },
    { "tokenize.cache_bytes", KVB_CONF_U64, "67108864", 0, kvb_max_tokenize_cache_bytes,
      FIELD(tokenize.cache_bytes),
      .help = "Memory for texts and their tokens, so that an engine is asked once; those\n"
              "used longest ago go first.  0: none." },
    { "tokenize.cache_s", KVB_CONF_U32, "600", 1, 86400, FIELD(tokenize.cache_s),
      .help = "How long the tokens of a text are used, in seconds: an engine may be started\n"
              "again with another chat template." },
    KVB_CONFIG_LOG_ROWS(struct kvb_aggregator_config),
};
#undef FIELD
/* clang-format on */

static const struct kvb_conf_removed removed[] = {
    { "http_security.client_ca_file", KVB_CONFIG_NO_CLIENT_CA },
    { "grpc.tls.client_ca_file", KVB_CONFIG_NO_CLIENT_CA },
    { "register", "workers register at a bridge, whose register.token_file permits it" },
    { "router.prefix_share",
      "only the policy prefix_threshold read it; the policy kv weighs a prefix "
      "by router.overlap_weight" },
    { "router.load_std_factor",
      "only the policy prefix_threshold read it; the policy kv includes the "
      "load" },
    { "router.weights", "only the policy weighted read it; the policy kv has "
                        "router.overlap_weight" },
};

static const struct kvb_conf_table table = { keys, KVB_COUNT_OF(keys),
                                             sizeof(struct kvb_aggregator_config), removed,
                                             KVB_COUNT_OF(removed) };

void kvb_aggregator_config_done(struct kvb_aggregator_config *config)
{
    kvb_conf_done(&table, config);
}

const struct kvb_conf_table *kvb_aggregator_config_keys(void)
{
    return &table;
}

/* ---- Checks of several keys ---------------------------------------------------------- */

static void check_default(struct kvb_conf *conf, const struct kvb_aggregator_config *config)
{
    const bool has_model = config->subscribe.fallback.model[0] != '\0';

    if (has_model != (config->subscribe.fallback.block_size > 0)) {
        kvb_conf_error(
            conf, has_model ? "subscribe.default.block_size" : "subscribe.default.model",
            "model and block_size belong together: give both or neither");
    }
}

static void check_times(struct kvb_conf *conf, const struct kvb_aggregator_config *config)
{
    if (config->forget_ms < config->load.expire_ms) {
        kvb_conf_error(
            conf, "forget_ms", "%u is below load.expire_ms (%u): raise it", config->forget_ms,
            config->load.expire_ms);
    }
}

static void check_audit(struct kvb_conf *conf, const struct kvb_aggregator_config *config)
{
    const double honest_loss = config->audit.honest_loss;
    const double lie = config->audit.lie;

    if (honest_loss <= 0 || honest_loss >= 1) {
        kvb_conf_error(conf, "audit.honest_loss", "expected a share above 0 and below 1");
    } else if (lie <= 0 || honest_loss + lie >= 1) {
        kvb_conf_error(
            conf, "audit.lie", "expected a share above 0, and below 1 with audit.honest_loss");
    }
}

/* nats-server matches the subjects of a group's subscriptions by its name's bytes alone, but a
 * blank would end the name on the wire. */
static void check_queue_group(struct kvb_conf *conf, const char *group)
{
    if (group[0] != '\0' && !kvb_subject_is_valid(group, false)) {
        kvb_conf_error(
            conf, "router.queue_group",
            "\"%.80s\" cannot name a queue group: use letters, digits, _ - and dots between them, "
            "no blank, * or >; or leave it empty",
            group);
    }
}

static void check_gateways(struct kvb_conf *conf, const struct kvb_aggregator_config *config)
{
    for (size_t i = 0; i < config->gateway_count; i++) {
        const struct kvb_gateway_config *gateway = &config->gateways[i];
        enum kvb_route_policy policy = KVB_ROUTE_KV;
        kvb_config_check_listener(conf, KVB_LISTENER_GATEWAY, gateway->listen, &gateway->security);
        if (gateway->policy[0] != '\0' &&
            kvb_route_policy_find(gateway->policy, &policy) != KVB_OK) {
            kvb_conf_error(
                conf, "gateway", "policy: \"%.32s\" is unknown; see router.policy",
                gateway->policy);
        }
    }
}

static void
check_aggregator_config(struct kvb_conf *conf, const struct kvb_aggregator_config *config)
{
    kvb_config_check_nats(conf, &config->nats);
    kvb_config_check_name(conf, "subscribe.namespace", config->subscribe.name_space, true);
    kvb_config_check_name(conf, "subscribe.component", config->subscribe.component, true);
    kvb_config_check_name(conf, "router.namespace", config->router.name_space, false);
    kvb_config_check_name(conf, "router.component", config->router.component, false);
    check_queue_group(conf, config->router.queue_group);
    kvb_config_check_listener(conf, KVB_LISTENER_HTTP, config->http, &config->http_security);
    kvb_config_check_listener(conf, KVB_LISTENER_GRPC, config->grpc.listen, &config->grpc.security);
    check_gateways(conf, config);
    check_default(conf, config);
    check_times(conf, config);
    check_audit(conf, config);
}

static void drop_aggregator_conf(struct kvb_conf **conf)
{
    kvb_conf_close(*conf);
}

kvb_status kvb_aggregator_config_read(
    const char *path, struct kvb_aggregator_config *out_config, struct kvb_conf_errors *errors)
{
    KVB_OWN(drop_aggregator_conf) struct kvb_conf *conf = NULL;
    struct kvb_aggregator_config config = { 0 };

    KVB_TRY(kvb_conf_open(path, errors, &conf));
    /* Mistakes are collected: one start shows all of them. */
    KVB_TRY(kvb_conf_read(conf, &table, &config));
    check_aggregator_config(conf, &config);
    if (errors->count > 0) {
        kvb_aggregator_config_done(&config);
        return KVB_BAD_CONFIG;
    }
    *out_config = config;
    return KVB_OK;
}
