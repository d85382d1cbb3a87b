#include "kvbridge/bridge.h"

#include "bus/permissions.h"
#include "bus/subject.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "daemon/http_access.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/refresh.h"
#include "kvbridge/rivals.h"
#include "kvbridge/shown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum { max_request_bytes = 1 << 16 };

/* Unlike any other bridge's, also on the same host. */
static kvb_status draw_bridge_id(struct kvb_bridge *bridge)
{
    char host[32] = "";
    uint32_t random = 0;

    (void)gethostname(host, sizeof host - 1); /* else: no host in the name */
    if (getrandom(&random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    (void)snprintf(
        bridge->bridge_id, sizeof bridge->bridge_id, "%s-%ld-%08x", host, (long)getpid(), random);
    return KVB_OK;
}

static kvb_status make_bridge_subjects(struct kvb_bridge *bridge)
{
    struct bridge_publisher *publisher = bridge->publisher;
    const struct kvb_subject_names *names = &publisher->names;

    kvb_bridge_subject_names(bridge->config, &publisher->names);
    KVB_TRY(kvb_permissions_make(
        KVB_CLIENT_BRIDGE, names, kvb_bridge_permission_settings(bridge->config),
        &publisher->permissions));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_HEARTBEAT, names, publisher->heartbeat_subject));
    KVB_TRY(kvb_contract_subject_make(
        KVB_SUBJECT_HEARTBEAT_JSON, names, publisher->heartbeat_json_subject));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_LOAD, names, publisher->load_subject));
    return kvb_contract_subject_make(KVB_SUBJECT_BRIDGE_STATUS, names, publisher->status_subject);
}

/* The ingest thread asks the bus in its next turn. */
static void note_bus_change(void *context, bool is_connected)
{
    const struct kvb_bridge *bridge = context;
    const uint64_t one = 1;

    (void)is_connected;
    (void)!write(bridge->wake_fd, &one, sizeof one); /* full: it is readable anyway */
}

static kvb_status open_bridge_bus(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const struct kvb_bridge_config *config = bridge->config;
    const struct kvb_bus_options options = { .control = bridge->control,
                                             .url = config->nats.url,
                                             .name = "kvbridge",
                                             .login = &config->nats.login,
                                             .log = bridge->log,
                                             .on_change = note_bus_change,
                                             .context = bridge };

    KVB_TRY(make_bridge_subjects(bridge));
    KVB_TRY(kvb_bus_open(&options, &bridge->publisher->bus, detail));
    return kvb_event_publisher_init(
        &bridge->publisher->events, bridge->publisher->bus, config->publish.formats,
        kvb_json_lists(config), config->publish.name_space, config->publish.component);
}

static const struct kvb_stream *find_stream(void *context, uint64_t worker_id, uint32_t dp_rank)
{
    const struct kvb_bridge *bridge = context;
    const struct bridge_rank *rank = kvb_bridge_find_rank(bridge, worker_id, dp_rank);

    return rank ? rank->served.stream : NULL;
}

/* A requester verifies the answer by a heartbeat, and should not have to wait for the next one. */
static void want_beat(void *context, uint64_t worker_id, uint32_t dp_rank)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_find_rank(bridge, worker_id, dp_rank);

    if (rank) {
        kvb_advertiser_want_beat(&rank->served.advertiser, KVB_BEAT_SOON);
        kvb_serve_wake(&rank->served);
    }
}

/* After the ranks: from here on requests come in. */
static kvb_status open_sync(struct kvb_bridge *bridge)
{
    char subject[kvb_subject_bytes];

    bridge->publisher->sync.bus = bridge->publisher->bus;
    bridge->publisher->sync.find = find_stream;
    bridge->publisher->sync.answered = want_beat;
    bridge->publisher->sync.context = bridge;
    /* The requests come on a thread of nats.c: all that it uses must be there before. */
    KVB_TRY(kvb_sync_responder_init(&bridge->publisher->sync));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_SYNC, &bridge->publisher->names, subject));
    return kvb_bus_subscribe(
        bridge->publisher->bus, subject, kvb_sync_responder_receive, &bridge->publisher->sync,
        &bridge->publisher->syncs);
}

/* Health probes, which may decide to restart this process, must always be answered. */
static const char *const vital_paths[] = { "/livez", "/readyz", NULL };

static const struct kvb_http_path_rule path_rules[] = {
    { "/livez", KVB_HTTP_OPEN },
    { "/readyz", KVB_HTTP_OPEN },
    { "/metrics", KVB_HTTP_OF_METRICS },
    { "/register", KVB_HTTP_OF_REGISTER },
    { "/unregister", KVB_HTTP_OF_REGISTER },
    { "/drain", KVB_HTTP_OF_REGISTER },
    { "/undrain", KVB_HTTP_OF_REGISTER },
    { NULL, KVB_HTTP_GUARDED },
};

static kvb_status open_bridge_http(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    const char *register_token_file = bridge->config->registering.token_file;
    const struct kvb_http_options options = { .control = bridge->control,
                                              .listen = bridge->config->http,
                                              .security = &bridge->config->http_security,
                                              .register_token_file = register_token_file,
                                              .rules = path_rules,
                                              .max_body_bytes = max_request_bytes,
                                              .threads = http_threads,
                                              .max_connections = max_http_connections,
                                              .vital = vital_paths,
                                              .log = bridge->log,
                                              .metrics = &bridge->shown->metrics,
                                              .first_metric = kvb_bridge_http_connections,
                                              .handler = kvb_bridge_answer,
                                              .context = bridge };

    return bridge->config->http[0] ? kvb_http_start(&options, &bridge->shown->http, detail)
                                   : KVB_OK;
}

static kvb_status start_ingest_thread(struct kvb_bridge *bridge)
{
    KVB_TRY(kvb_poller_add_fd(bridge->ingest->poller, kvb_stop_owner, bridge->wake_fd));
    KVB_TRY(kvb_poller_add_fd(
        bridge->ingest->poller, kvb_sync_owner, kvb_sync_responder_fd(&bridge->publisher->sync)));
    KVB_TRY(kvb_poller_add_fd(
        bridge->ingest->poller, kvb_refresh_owner, kvb_ring_fd(bridge->refresh->requests)));
    return kvb_thread_start(&bridge->thread, kvb_bridge_run, bridge);
}

static kvb_status start_bridge_parts(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    bridge->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bridge->wake_fd < 0) {
        return KVB_IO;
    }
    KVB_TRY(kvb_control_new(&bridge->control));
    KVB_TRY(kvb_control_start(bridge->control));
    KVB_TRY(kvb_bridge_open_checkpoints(bridge, detail)); /* early: the caller may wait for it */
    KVB_TRY(draw_bridge_id(bridge));
    kvb_rival_table_init(&bridge->rivals->table, bridge->bridge_id);
    bridge->publisher->id = kvb_hash64(
        (kvb_span){ .data = (const uint8_t *)bridge->bridge_id, .len = strlen(bridge->bridge_id) },
        0);
    KVB_TRY(open_bridge_bus(bridge, detail));
    KVB_TRY(kvb_bridge_open_rooms(bridge, detail));
    KVB_TRY(kvb_bridge_open_stats(bridge));
    /* Made before the ingest thread, which reports their state; started after it, because only it
     * takes their lists. */
    KVB_TRY(kvb_bridge_make_sources(bridge));
    KVB_TRY(kvb_bridge_open_membership(bridge, detail));
    /* After the ranks: all of them would be due at once. */
    kvb_bridge_spread_checkpoints(bridge);
    KVB_TRY(open_sync(bridge));
    KVB_TRY(kvb_bridge_open_refresh(bridge));
    KVB_TRY(kvb_bridge_open_rivals(bridge));
    KVB_TRY(kvb_bridge_open_service(bridge));
    /* Before HTTP answers /livez: the thread has not turned yet, and does not hang. */
    atomic_store(&bridge->shown->turned_ns, kvb_clock_monotonic_ns());
    KVB_TRY(open_bridge_http(bridge, detail));
    KVB_TRY(start_ingest_thread(bridge));
    return kvb_bridge_start_sources(bridge);
}

/* A bridge and its parts. */
struct whole {
    struct kvb_bridge bridge; /* must be first: the bridge is freed as a whole */
    struct bridge_ingest ingest;
    struct bridge_publisher publisher;
    struct bridge_membership membership;
    struct bridge_shown shown;
    struct bridge_checkpoints checkpoints;
    struct bridge_refresh refresh;
    struct bridge_rivals rivals;
};

static struct kvb_bridge *join_parts(struct whole *whole)
{
    whole->bridge = (struct kvb_bridge){ .ingest = &whole->ingest,
                                         .publisher = &whole->publisher,
                                         .membership = &whole->membership,
                                         .shown = &whole->shown,
                                         .checkpoints = &whole->checkpoints,
                                         .refresh = &whole->refresh,
                                         .rivals = &whole->rivals };
    return &whole->bridge;
}

kvb_status kvb_bridge_start(
    const struct kvb_bridge_config *config, struct kvb_log *log, struct kvb_bridge **out_bridge,
    struct kvb_detail *detail)
{
    struct whole *whole = calloc(1, sizeof *whole);

    if (!whole) {
        return KVB_NO_MEMORY;
    }
    struct kvb_bridge *bridge = join_parts(whole);
    bridge->config = config;
    bridge->log = log;
    bridge->wake_fd = -1;
    bridge->started_ns = kvb_clock_monotonic_ns();
    bridge->shown->metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                   .values = bridge->shown->values,
                                                   .count = kvb_bridge_metric_count };
    kvb_buf_init(&bridge->publisher->buf, kvb_max_nats_payload_bytes);
    kvb_buf_init(&bridge->publisher->status, kvb_max_state_bytes);
    kvb_buf_init(&bridge->shown->state_text, kvb_max_state_bytes);
    kvb_detail_set(&bridge->shown->not_ready, "starting");
    (void)pthread_mutex_init(&bridge->shown->text_lock, NULL); /* cannot fail without attributes */
    const kvb_status status = start_bridge_parts(bridge, detail);
    if (status != KVB_OK) {
        kvb_bridge_stop(bridge);
        return status;
    }
    *out_bridge = bridge;
    return KVB_OK;
}

void kvb_bridge_reload_http(struct kvb_bridge *bridge)
{
    if (bridge->shown->http) {
        kvb_http_reload(bridge->shown->http);
    }
}

kvb_status kvb_bridge_renew_login(
    struct kvb_bridge *bridge, const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return kvb_bus_renew(bridge->publisher->bus, login, detail);
}

uint16_t kvb_bridge_http_port(const struct kvb_bridge *bridge)
{
    return bridge->shown->http ? kvb_http_port(bridge->shown->http) : 0;
}

void kvb_bridge_liveness(const struct kvb_bridge *bridge, struct kvb_liveness *out_liveness)
{
    const struct kvb_metrics *metrics = &bridge->shown->metrics;

    *out_liveness = (struct kvb_liveness){
        .turns = kvb_metric_get(metrics, kvb_bridge_turns),
        .streams = atomic_load(&bridge->shown->stream_count),
        .exact = kvb_metric_get(metrics, kvb_bridge_streams_exact),
        .is_connected = kvb_metric_get(metrics, kvb_bridge_nats_connected) != 0,
    };
}

static void stop_thread(struct kvb_bridge *bridge)
{
    const uint64_t one = 1;

    atomic_store(&bridge->is_stopping, true);
    if (bridge->thread.is_running) {
        (void)!write(bridge->wake_fd, &one, sizeof one); /* else: it wakes in 200 ms */
        kvb_thread_join(&bridge->thread);
    }
}

/* In the reverse order of the start; takes half-started bridges. */
void kvb_bridge_stop(struct kvb_bridge *bridge)
{
    if (!bridge) {
        return;
    }
    /* Who may wait for a command ends first, while the ingest thread still carries commands out. */
    kvb_http_stop(bridge->shown->http);
    kvb_bridge_stop_sources(bridge->membership);
    stop_thread(bridge);
    /* Only now: until its end the ingest thread has reported their state and given hints. */
    kvb_bridge_free_sources(bridge->membership);
    kvb_bridge_close_stats(bridge->shown);
    kvb_bridge_close_service(bridge->shown);
    kvb_bridge_close_checkpoints(bridge->checkpoints);
    kvb_bridge_close_ranks(bridge);
    kvb_bridge_close_membership(bridge->membership);
    kvb_bus_unsubscribe(bridge->rivals->incoming);
    kvb_bus_unsubscribe(bridge->refresh->incoming);
    kvb_bus_unsubscribe(bridge->publisher->syncs);
    kvb_bus_close(bridge->publisher->bus);
    kvb_control_free(bridge->control); /* all of its jobs are removed */
    kvb_rival_table_done(&bridge->rivals->table);
    kvb_bridge_close_refresh(bridge->refresh);
    kvb_sync_responder_done(&bridge->publisher->sync);
    kvb_event_publisher_done(&bridge->publisher->events);
    kvb_server_done(&bridge->ingest->server);
    kvb_event_batch_done(&bridge->ingest->batches[0]);
    kvb_event_batch_done(&bridge->ingest->batches[1]);
    (void)pthread_mutex_destroy(&bridge->shown->text_lock);
    kvb_buf_done(&bridge->shown->state_text);
    kvb_buf_done(&bridge->publisher->status);
    kvb_buf_done(&bridge->publisher->buf);
    if (bridge->wake_fd >= 0) {
        (void)close(bridge->wake_fd);
    }
    free(bridge);
}
