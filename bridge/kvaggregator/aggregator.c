#include "kvaggregator/aggregator.h"

#include "bus/bus.h"
#include "bus/subject.h"
#include "control/control.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/file_limit.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/ring.h"
#include "daemon/http.h"
#include "grpc/server.h"
#include "index/index.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/audit.h"
#include "kvaggregator/books.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/doors/gateway.h"
#include "kvaggregator/group.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/permissions.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/report.h"
#include "kvaggregator/service.h"
#include "kvaggregator/texts.h"
#include "load/audit.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/tracker.h"
#include "replica/follower.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    /* An answer takes the index for some 10 us, and an HTTP thread for 20: more would wait. */
    http_threads = 3,
    own_files = 64, /* open beside HTTP: NATS, log, rings, epoll, timers */
    min_connections = 32,
    heartbeat_ms = 1000, /* the period of bridges */
    max_slots = KVB_TIER_COUNT * kvb_max_streams
};

static kvb_status make_books(struct kvb_aggregator *aggregator, uint64_t hash_key)
{
    const struct kvb_requests_options requests = {
        .max_requests = kvb_max_requests_in_flight,
        .max_streams = kvb_max_streams,
        .hash_key = hash_key,
    };
    const struct kvb_predictions_options predictions = {
        .max_blocks = kvb_max_predicted_blocks,
        .max_streams = kvb_max_streams,
        .ttl_ns = aggregator->config->router.predict_ms * KVB_NS_PER_MS,
        .hash_key = hash_key,
    };
    const struct kvb_audit_options audit = {
        .max_streams = kvb_max_streams,
        .honest_loss = aggregator->config->audit.honest_loss,
        .lie = aggregator->config->audit.lie,
        .false_alarm_requests = aggregator->config->audit.false_alarm_requests,
        .hash_key = hash_key,
    };

    KVB_TRY(kvb_requests_new(&requests, &aggregator->requests));
    KVB_TRY(kvb_audit_new(&audit, &aggregator->audit));
    return kvb_predictions_new(&predictions, &aggregator->predictions);
}

static kvb_status make_state(struct kvb_aggregator *aggregator)
{
    const struct kvb_aggregator_config *config = aggregator->config;
    struct kvb_prefix_index_options index = {
        .max_nodes = config->limits.max_index_blocks,
        .max_slots = max_slots,
    };
    struct kvb_load_options load = {
        .max_endpoints = kvb_max_streams,
        .expire_ms = config->load.expire_ms,
        .forget_ms = config->forget_ms,
        .statistic = config->load.statistic,
    };

    if (getrandom(&index.hash_key, sizeof index.hash_key, 0) != sizeof index.hash_key) {
        return KVB_IO;
    }
    load.hash_key = index.hash_key;
    KVB_TRY(kvb_prefix_index_new(&index, &aggregator->index));
    const struct kvb_followers_options followers = {
        .max_streams = kvb_max_streams,
        .heartbeat_ms = heartbeat_ms,
        .sends_requests = true,
        .forget_ms = config->forget_ms,
        .index = aggregator->index,
        .max_window_blocks = config->limits.max_index_blocks,
        .hash_key = index.hash_key,
    };
    KVB_TRY(kvb_followers_new(&followers, &aggregator->followers));
    aggregator->loop->turn = (struct kvb_replica_turn){ .followers = aggregator->followers };
    KVB_TRY(make_books(aggregator, index.hash_key));
    return kvb_load_tracker_new(&load, &aggregator->tracker);
}

static kvb_status make_query_context(struct kvb_aggregator *aggregator)
{
    const struct kvb_aggregator_config *config = aggregator->config;
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    *aggregator->ctx = (struct kvb_query_context){
        .index = aggregator->index,
        .followers = aggregator->followers,
        .tracker = aggregator->tracker,
        .requests = aggregator->requests,
        .predictions = aggregator->predictions,
        .audit = aggregator->audit,
        .audit_slack_blocks = config->audit.slack_blocks,
        .peers = &aggregator->books->peers,
        .aggregator_id = aggregator->service->identity.id,
        .request_ttl_ms = config->router.request_ttl_ms,
        .route = { .policy = config->router.policy,
                   .overlap_weight = config->router.overlap_weight,
                   .temperature = config->router.temperature,
                   .unverified_tiers = config->router.unverified_tiers },
        .default_model = config->subscribe.fallback.model,
        .default_block_size = config->subscribe.fallback.block_size,
        .grpc_listen = config->grpc.listen,
        .grpc_model = config->grpc.model,
        .random = random,
    };
    return KVB_OK;
}

/* After the subjects are made. */
static kvb_status make_dashboard(struct kvb_aggregator *aggregator)
{
    const struct kvb_intake_subscription *from = aggregator->intake->subscriptions;
    struct kvb_report *report = aggregator->report;
    const struct kvb_dashboard_options options = {
        .now_ns = kvb_clock_monotonic_ns(),
        .started_ms = kvb_clock_wall_us() / 1000,
        .statistic = aggregator->config->load.statistic,
        .nats = kvb_urls_show(aggregator->config->nats.url, report->nats, sizeof report->nats),
        .subjects = { from[KVB_INTAKE_EVENTS].subject, from[KVB_INTAKE_EVENTS_PB].subject,
                      from[KVB_INTAKE_WINDOW_EVENTS].subject, from[KVB_INTAKE_HEARTBEATS].subject },
    };

    return kvb_dashboard_new(&options, &aggregator->dashboard);
}

static kvb_status make_rings(struct kvb_aggregator *aggregator)
{
    KVB_TRY(kvb_intake_init(aggregator->intake, aggregator->config->limits.event_ring));
    aggregator->loop->update_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (aggregator->loop->update_fd < 0) {
        return KVB_IO;
    }
    return kvb_queries_open(aggregator);
}

static kvb_status make_aggregator_subjects(struct kvb_aggregator *aggregator)
{
    const struct kvb_subject_names *names = aggregator->names;

    KVB_TRY(kvb_intake_name_inbox(aggregator->intake));
    kvb_aggregator_subject_names(aggregator->config, aggregator->names);
    aggregator->names->inbox = aggregator->intake->inbox;
    KVB_TRY(kvb_permissions_make(
        KVB_CLIENT_AGGREGATOR, names, kvb_aggregator_permission_settings(aggregator->config),
        aggregator->permissions));
    KVB_TRY(
        kvb_contract_subject_make(KVB_SUBJECT_LOAD_STATS, names, aggregator->report->load_subject));
    KVB_TRY(kvb_contract_subject_make(
        KVB_SUBJECT_HIT_RATE, names, aggregator->report->hit_rate_subject));
    return aggregator->config->router.hit_rate_alias
               ? kvb_contract_subject_make(
                     KVB_SUBJECT_HIT_RATE_ALIAS, names, aggregator->report->alias_subject)
               : KVB_OK;
}

/* Called on a thread of the bus: wakes the index thread, which then need not wait for its next
 * tick. */
static void note_update(void *context, bool is_connected)
{
    const struct kvb_aggregator *aggregator = context;

    (void)is_connected;
    kvb_loop_wake(aggregator->loop);
}

static kvb_status open_aggregator_bus(struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const struct kvb_nats_config *nats = &aggregator->config->nats;
    const struct kvb_bus_options options = { .control = aggregator->control,
                                             .url = nats->url,
                                             .name = "kvaggregator",
                                             .login = &nats->login,
                                             .sends_at_once = true,
                                             .log = aggregator->log,
                                             .on_change = note_update,
                                             .context = aggregator };

    KVB_TRY(make_aggregator_subjects(aggregator));
    KVB_TRY(kvb_bus_open(&options, &aggregator->bus, detail));
    return kvb_intake_open(aggregator, kvb_loop_receive);
}

/* Health probes may cause a restart of this process, so they must always be answered. */
static const char *const vital_paths[] = { "/livez", "/readyz", NULL };

/* Computes the number of HTTP connections that the limit of open files permits; an error when it is
 * too low. */
static kvb_status count_http_connections(
    const struct kvb_aggregator *aggregator, unsigned *out_max, struct kvb_detail *detail)
{
    const size_t grpc = aggregator->config->grpc.listen[0] ? kvb_grpc_files() : 0;
    const size_t tokenizer = aggregator->queries->tokenizer ? kvb_tokenizer_files() : 0;
    const uint64_t need = kvb_http_files(0, http_threads) + grpc + tokenizer + own_files +
                          kvb_gateways_files(aggregator);
    const uint64_t limit = kvb_file_limit_raise(need);
    const uint64_t missing = limit < need ? need - limit : 0;

    *out_max = kvb_max_http_connections;
    if (missing > kvb_max_http_connections - min_connections) {
        kvb_detail_set(
            detail,
            "http: needs %" PRIu64 " open files, %" PRIu64 " at least; the limit is %" PRIu64
            ": raise it (LimitNOFILE= of the unit, or ulimit -Hn)",
            need, need - kvb_max_http_connections + min_connections, limit);
        return KVB_BAD_CONFIG;
    }
    if (missing > 0) {
        *out_max -= (unsigned)missing;
        kvb_log_write(
            aggregator->log, KVB_LOG_WARNING, "http",
            "fewer connections than usual: the limit of open files is low (LimitNOFILE= of the "
            "unit, or ulimit -Hn)",
            "connections", KVB_LOG_U64(*out_max), NULL);
    }
    return KVB_OK;
}

/* The status page contains no data: its script requests the data with the token that the user
 * enters. */
static const struct kvb_http_path_rule path_rules[] = {
    { "/livez", KVB_HTTP_OPEN },         { "/readyz", KVB_HTTP_OPEN }, { "/", KVB_HTTP_OPEN },
    { "/metrics", KVB_HTTP_OF_METRICS }, { NULL, KVB_HTTP_GUARDED },
};

static kvb_status open_aggregator_http(struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    unsigned max_connections = 0;

    if (!aggregator->config->http[0]) {
        return KVB_OK;
    }
    KVB_TRY(count_http_connections(aggregator, &max_connections, detail));
    const struct kvb_http_options options = {
        .control = aggregator->control,
        .listen = aggregator->config->http,
        .security = &aggregator->config->http_security,
        .rules = path_rules,
        .max_body_bytes = aggregator->config->limits.max_query_body_bytes,
        .threads = http_threads,
        .max_connections = max_connections,
        .vital = vital_paths,
        .log = aggregator->log,
        .metrics = aggregator->metrics,
        .first_metric = kvb_aggregator_http_connections,
        .handler = kvb_door_receive_http,
        .context = aggregator,
    };

    return kvb_http_start(&options, &aggregator->http, detail);
}

static kvb_status open_aggregator_grpc(struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    struct sockaddr_storage address = { 0 };
    static const struct kvb_grpc_method methods[] = {
        { .path = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix",
          .kind = KVB_GRPC_UNARY,
          .max_message_bytes = kvb_max_indexer_bytes },
    };
    const struct kvb_grpc_options options = {
        .listener = KVB_LISTENER_GRPC,
        .control = aggregator->control,
        .address = &address,
        .listen = aggregator->config->grpc.listen,
        .security = &aggregator->config->grpc.security,
        .methods = methods,
        .method_count = KVB_COUNT_OF(methods),
        .max_under_way = kvb_max_grpc_under_way,
        .handler = kvb_door_receive_grpc,
        .context = aggregator,
        .log = aggregator->log,
        .metrics = aggregator->metrics,
        .first_metric = kvb_aggregator_grpc_connections,
    };

    if (!options.listen[0]) {
        return KVB_OK;
    }
    if (!kvb_http_listen_read(options.listen, &address)) {
        kvb_detail_set(detail, "grpc: \"%s\" is not address:port", options.listen);
        return KVB_BAD_CONFIG;
    }
    KVB_TRY(kvb_grpc_start(&options, &aggregator->grpc, detail));
    aggregator->ctx->grpc_port = kvb_grpc_port(aggregator->grpc);
    return KVB_OK;
}

static kvb_status start_aggregator(struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    /* What others hand their work to comes first: rings, and the control thread for jobs. */
    KVB_TRY(make_rings(aggregator));
    KVB_TRY(kvb_control_new(&aggregator->control));
    KVB_TRY(kvb_control_start(aggregator->control));
    /* Then what is known, so that each message and query finds it. */
    KVB_TRY(make_state(aggregator));
    KVB_TRY(make_query_context(aggregator));
    KVB_TRY(kvb_texts_open(aggregator));
    /* From here on messages arrive; they wait in the ring.  Requests come once the group is open:
     * the service gives the id that is part of their subjects. */
    KVB_TRY(open_aggregator_bus(aggregator, detail));
    KVB_TRY(make_dashboard(aggregator));
    KVB_TRY(kvb_aggregator_open_service(aggregator));
    KVB_TRY(kvb_aggregator_name_self(aggregator));
    KVB_TRY(kvb_door_open_prompts(aggregator));
    KVB_TRY(kvb_group_open(aggregator));
    atomic_store(&aggregator->loop->turned_ns, kvb_clock_monotonic_ns()); /* for /livez */
    KVB_TRY(open_aggregator_http(aggregator, detail));
    KVB_TRY(open_aggregator_grpc(aggregator, detail));
    KVB_TRY(kvb_gateways_start(aggregator, detail));
    /* Last: until now only this thread has read bus, subscriptions and ports. */
    return kvb_thread_start(&aggregator->loop->thread, kvb_loop_run, aggregator);
}

/* An aggregator and its parts, in one piece of memory. */
struct whole {
    struct kvb_aggregator aggregator; /* first, so that they are freed with it */
    struct kvb_intake intake;
    struct kvb_queries queries;
    struct kvb_loop loop;
    struct kvb_group group;
    struct kvb_aggregator_service service;
    struct kvb_aggregator_books books;
    struct kvb_audit_marks marks;
    struct kvb_report report;
    struct kvb_query_context ctx;
    struct kvb_subject_names names;
    struct kvb_permissions permissions;
    struct kvb_metrics metrics;
    _Atomic uint64_t values[kvb_aggregator_metric_count];
    struct kvb_buf buf;
};

static struct kvb_aggregator *
new_aggregator(const struct kvb_aggregator_config *config, struct kvb_log *log)
{
    struct whole *whole = calloc(1, sizeof *whole);

    if (!whole) {
        return NULL;
    }
    whole->loop.update_fd = -1;
    whole->metrics = (struct kvb_metrics){ .rows = kvb_aggregator_metric_rows,
                                           .values = whole->values,
                                           .count = kvb_aggregator_metric_count };
    whole->aggregator = (struct kvb_aggregator){
        .config = config,
        .log = log,
        .intake = &whole->intake,
        .queries = &whole->queries,
        .loop = &whole->loop,
        .group = &whole->group,
        .service = &whole->service,
        .books = &whole->books,
        .marks = &whole->marks,
        .report = &whole->report,
        .ctx = &whole->ctx,
        .names = &whole->names,
        .permissions = &whole->permissions,
        .metrics = &whole->metrics,
        .buf = &whole->buf,
    };
    return &whole->aggregator;
}

kvb_status kvb_aggregator_start(
    const struct kvb_aggregator_config *config, struct kvb_log *log,
    struct kvb_aggregator **out_aggregator, struct kvb_detail *detail)
{
    struct kvb_aggregator *aggregator = new_aggregator(config, log);

    if (!aggregator) {
        return KVB_NO_MEMORY;
    }
    kvb_aggregator_set_constants(aggregator);
    kvb_queries_init(aggregator->queries);
    (void)pthread_mutex_init(&aggregator->service->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(aggregator->buf, kvb_max_answer_bytes);
    kvb_group_init(aggregator);
    const kvb_status status = start_aggregator(aggregator, detail);
    if (status != KVB_OK) {
        kvb_aggregator_stop(aggregator);
        return status;
    }
    *out_aggregator = aggregator;
    return KVB_OK;
}

void kvb_aggregator_reload_files(struct kvb_aggregator *aggregator)
{
    if (aggregator->http) {
        kvb_http_reload(aggregator->http);
    }
    if (aggregator->grpc) {
        kvb_grpc_reload(aggregator->grpc);
    }
    kvb_gateways_reload(aggregator->gateways);
}

kvb_status kvb_aggregator_renew_login(
    struct kvb_aggregator *aggregator, const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return kvb_bus_renew(aggregator->bus, login, detail);
}

uint16_t kvb_aggregator_http_port(const struct kvb_aggregator *aggregator)
{
    return aggregator->http ? kvb_http_port(aggregator->http) : 0;
}

void kvb_aggregator_liveness(
    const struct kvb_aggregator *aggregator, struct kvb_liveness *out_liveness)
{
    const struct kvb_metrics *metrics = aggregator->metrics;
    uint64_t streams = 0;

    for (size_t id = kvb_aggregator_streams_syncing; id <= kvb_aggregator_streams_down; id++) {
        streams += kvb_metric_get(metrics, id);
    }
    *out_liveness = (struct kvb_liveness){
        .turns = kvb_metric_get(metrics, kvb_aggregator_turns),
        .streams = streams,
        .exact = kvb_metric_get(metrics, kvb_aggregator_streams_exact),
        .is_connected = kvb_metric_get(metrics, kvb_aggregator_nats_connected) != 0,
    };
}

static void close_ring(struct kvb_ring *ring)
{
    if (ring) {
        kvb_ring_close(ring);
    }
}

static void stop_threads(struct kvb_aggregator *aggregator)
{
    /* Gateways first: they are told, and have answers that run. */
    kvb_gateways_stop(aggregator);
    /* Then no query comes any more, while the index thread still answers those that came: other
     * aggregators of the group get the next ones, and the servers wait for their connections. */
    kvb_group_leave(aggregator);
    kvb_http_stop(aggregator->http);
    kvb_grpc_stop(aggregator->grpc);
    /* Then those that are on a detour: prompts that are read, texts at engines. */
    kvb_door_close_prompts(aggregator);
    kvb_tokenizer_close(aggregator->queries->tokenizer);
    /* The index thread answers what lies in the ring, and ends. */
    atomic_store(&aggregator->loop->is_stopping, true);
    close_ring(aggregator->intake->events);
    close_ring(aggregator->queries->ring);
    if (aggregator->loop->thread.is_running) {
        kvb_thread_join(&aggregator->loop->thread);
        kvb_aggregator_say_bye(aggregator);
    }
    /* Requests to this aggregator alone still come, and are refused with the reason.  When their
     * subscriptions are gone nobody uses the rings; the bus is open for what is refused last. */
    kvb_service_responder_close(aggregator->service->responder);
    kvb_group_close(aggregator);
    kvb_intake_close(aggregator);
    kvb_tokenizer_free(aggregator->queries->tokenizer);
    kvb_queries_close(aggregator);
}

/* Stops everything in the reverse order of the start.  The aggregator may be only partly
 * started. */
void kvb_aggregator_stop(struct kvb_aggregator *aggregator)
{
    if (!aggregator) {
        return;
    }
    stop_threads(aggregator);
    kvb_bus_close(aggregator->bus);
    kvb_control_free(aggregator->control); /* all of its jobs are removed */
    if (aggregator->loop->update_fd >= 0) {
        (void)close(aggregator->loop->update_fd); /* nothing to lose */
    }
    kvb_grpc_free(aggregator->grpc); /* none of its calls is left */
    kvb_gateways_free(aggregator->gateways);
    kvb_dashboard_free(aggregator->dashboard);
    kvb_query_context_done(aggregator->ctx);
    kvb_predictions_free(aggregator->predictions);
    kvb_audit_free(aggregator->audit);
    kvb_requests_free(aggregator->requests);
    kvb_load_tracker_free(aggregator->tracker);
    kvb_followers_free(aggregator->followers);
    kvb_prefix_index_free(aggregator->index);
    kvb_intake_done(aggregator->intake);
    kvb_queries_done(aggregator->queries);
    kvb_group_done(aggregator);
    (void)pthread_mutex_destroy(&aggregator->service->lock);
    kvb_buf_done(aggregator->buf);
    free(aggregator);
}
