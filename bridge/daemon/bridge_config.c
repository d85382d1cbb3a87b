#include "daemon/bridge_config.h"

#include "core/limits.h"
#include "core/own.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *profile_name(unsigned value)
{
    return kvb_profile_name((enum kvb_profile)value);
}

static const char *hashes_name(unsigned value)
{
    return kvb_hashes_name((enum kvb_hashes)value);
}

/* ---- The keys: path, type, default, range, field, help ----------------------------- */

#define FIELD(field) KVB_CONF_FIELD(struct kvb_worker_config, field)

/* clang-format off */
static const struct kvb_conf_key worker_keys[] = {
    { "id", KVB_CONF_U64, NULL, 0, INT64_MAX, FIELD(id),
      .help = "The instance id by which the router knows this engine.  Above\n"
              "2147483647 write 5000000000L or \"5000000000\"." },
    { "model", KVB_CONF_STRING, NULL, 1, FIELD(model),
      .help = "The model it serves; queries name it." },
    { "block_size", KVB_CONF_U32, NULL, 1, kvb_max_block_tokens, FIELD(block_size),
      .help = "Tokens in a block; the events' own size wins." },
    { "lora", KVB_CONF_STRING, "", 0, FIELD(lora),
      .help = "The LoRA adapter of events that name none; empty: the base model." },
    { "events", KVB_CONF_STRING, NULL, 1, FIELD(events),
      .help = "Its PUB socket: tcp://host:port (rank r: port + r), ipc://path,\n"
              "inproc://name." },
    { "replay", KVB_CONF_STRING, "", 0, FIELD(replay),
      .help = "Its replay socket, in the same forms; empty: it has none, and lost\n"
              "events cannot be asked for again." },
    { "first_rank", KVB_CONF_U32, "0", 0, kvb_max_ranks - 1, FIELD(first_rank),
      .help = "The first data-parallel rank read here; it is added to the ports." },
    { "ranks", KVB_CONF_U32, "1", 1, kvb_max_ranks, FIELD(ranks),
      .help = "How many data-parallel ranks are read here." },
    { "topic", KVB_CONF_STRING, "", 0, FIELD(topic),
      .help = "Only messages whose topic begins with this." },
    { "bind", KVB_CONF_BOOL, "false", 0, 0, FIELD(bind),
      .help = "true: listen at `events`; for engines that connect to it." },
    { "total_blocks", KVB_CONF_U64, "0", 0, kvb_max_stream_blocks, FIELD(total_blocks),
      .help = "Blocks that one rank's device memory holds; 0: not known." },
    { "load.zmq", KVB_CONF_STRING, "", 0, FIELD(load.zmq),
      .help = "PUB socket of its load figures, one for all ranks; empty: none." },
    { "load.total_slots", KVB_CONF_U64, "0", 0, UINT32_MAX, FIELD(load.total_slots),
      .help = "Requests it runs at once, where it does not say; 0: not known." },
};
#undef FIELD

static const struct kvb_conf_table worker_table = {
    worker_keys, KVB_COUNT_OF(worker_keys), sizeof(struct kvb_worker_config)
};

#define FIELD(field) KVB_CONF_FIELD(struct kvb_bridge_config, field)

static const struct kvb_conf_key keys[] = {
    KVB_CONFIG_NATS_ROWS(struct kvb_bridge_config),
    { "publish.namespace", KVB_CONF_STRING, NULL, 1, FIELD(publish.name_space),
      .help = "P = namespace.{namespace}.component.{component} of the workers." },
    { "publish.component", KVB_CONF_STRING, NULL, 1, FIELD(publish.component),
      .help = "The same for all bridges whose workers share one router." },
    { "publish.endpoint_name", KVB_CONF_STRING, "generate", 1, FIELD(publish.endpoint_name),
      .help = "The workers' endpoint, as load figures name it." },
    { "publish.profile", KVB_CONF_ENUM, "json", 0, KVB_PROFILE_COUNT - 1, FIELD(publish.profile),
      .name_of = profile_name,
      .help = "The form of P.kv_events: json for routers that read RouterEvents,\n"
              "protobuf for kvaggregator alone: smaller and faster.  One component\n"
              "speaks one profile." },
    { "publish.hashes", KVB_CONF_ENUM, "canonical", 0, KVB_HASHES_COUNT - 1,
      FIELD(publish.hashes), .name_of = hashes_name,
      .help = "Block names: canonical are equal for equal prefixes in the whole\n"
              "fleet, engine are the engine's own." },
    { "publish.load_period_ms", KVB_CONF_U32, "100", 10, 60000, FIELD(publish.load_period_ms),
      .help = "How often load figures go out." },
    { "publish.heartbeat_ms", KVB_CONF_U32, "1000", 100, 60000, FIELD(publish.heartbeat_ms),
      .help = "How often each stream says how it is." },
    { "workers", KVB_CONF_LIST, NULL, 1, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct kvb_bridge_config, workers),
      .count_offset = offsetof(struct kvb_bridge_config, worker_count),
      .help = "One group for each engine." },
    { "limits.max_stream_blocks", KVB_CONF_U64, "4194304", 1024, kvb_max_stream_blocks,
      FIELD(limits.max_stream_blocks),
      .help = "Blocks remembered of one rank, about 100 bytes each." },
    { "limits.max_held_bytes", KVB_CONF_U64, "67108864", 65536, kvb_max_held_bytes,
      FIELD(limits.max_held_bytes),
      .help = "Live events of one rank that wait while a replay runs." },
    KVB_CONFIG_HTTP_ROW(struct kvb_bridge_config, "127.0.0.1:9401"),
    KVB_CONFIG_LOG_ROWS(struct kvb_bridge_config),
};
#undef FIELD
/* clang-format on */

static const struct kvb_conf_table table = { keys, KVB_COUNT_OF(keys),
                                             sizeof(struct kvb_bridge_config) };

void kvb_bridge_config_done(struct kvb_bridge_config *config)
{
    kvb_conf_done(&table, config);
}

void kvb_bridge_config_help(FILE *out)
{
    kvb_conf_help(&table, out);
}

/* ---- Worker ids ------------------------------------------------------------------------ */

enum { key_bytes = 64 };

static const char *worker_key(char text[key_bytes], size_t worker, const char *key)
{
    (void)snprintf(text, key_bytes, "workers[%zu].%s", worker, key);
    return text;
}

/* A worker id, and where it stands; sorted, equal ones are neighbours. */
struct numbered {
    uint64_t id;
    size_t worker;
};

static int compare_ids(const void *one, const void *other)
{
    const struct numbered *a = one;
    const struct numbered *b = other;

    if (a->id != b->id) {
        return a->id < b->id ? -1 : 1;
    }
    return a->worker < b->worker ? -1 : 1;
}

static void check_ids(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    struct numbered ids[kvb_max_workers]; /* 16 KiB */
    char first[key_bytes];
    char second[key_bytes];

    for (size_t i = 0; i < config->worker_count; i++) {
        ids[i] = (struct numbered){ config->workers[i].id, i };
    }
    qsort(ids, config->worker_count, sizeof *ids, compare_ids);
    for (size_t i = 1; i < config->worker_count; i++) {
        if (ids[i].id == ids[i - 1].id && ids[i].id <= INT64_MAX) {
            kvb_conf_error(
                conf, worker_key(second, ids[i].worker, "id"),
                "worker id %" PRIu64 " is used in line %u already: give each its own", ids[i].id,
                kvb_conf_line(conf, worker_key(first, ids[i - 1].worker, "id")));
        }
    }
}

/* ---- Endpoints ---------------------------------------------------------------------------- */

/* The keys of a worker that are endpoints. */
static const struct {
    const char *key;
    size_t offset;
    bool is_per_rank;
} sockets[] = {
    { "events", offsetof(struct kvb_worker_config, events), true },
    { "replay", offsetof(struct kvb_worker_config, replay), true },
    { "load.zmq", offsetof(struct kvb_worker_config, load.zmq), false },
};

/* One endpoint that the file gives. */
struct claim {
    size_t worker;
    const char *key; /* of sockets[] */
    struct kvb_endpoint_range range;
};

struct claims {
    struct kvb_conf *conf;
    struct claim *items;
    size_t count;
};

static void say_clash(struct kvb_conf *conf, const struct claim *later, const struct claim *earlier)
{
    const bool is_tcp = later->range.base.scheme == KVB_ENDPOINT_TCP;
    char one[key_bytes];
    char other[key_bytes];

    (void)worker_key(other, earlier->worker, earlier->key);
    kvb_conf_error(
        conf, worker_key(one, later->worker, later->key),
        "its %s %u .. %u are also those of %s in line %u (%u .. %u): move one of them",
        is_tcp ? "ports" : "ranks", later->range.first, later->range.last, other,
        kvb_conf_line(conf, other), earlier->range.first, earlier->range.last);
}

/* Says the first clash only: one typing error would otherwise fill the list. */
static void add_claim(struct claims *claims, const struct claim *claim)
{
    for (size_t i = 0; i < claims->count; i++) {
        if (kvb_endpoint_range_clashes(&claim->range, &claims->items[i].range)) {
            say_clash(claims->conf, claim, &claims->items[i]);
            break;
        }
    }
    claims->items[claims->count++] = *claim;
}

static void claim_endpoint(
    struct claims *claims, const struct kvb_worker_config *worker, size_t at, size_t socket)
{
    const char *text = (const char *)worker + sockets[socket].offset;
    struct claim claim = { .worker = at, .key = sockets[socket].key };
    struct kvb_detail detail;
    char key[key_bytes];

    if (text[0] == '\0') {
        return; /* has none, or its row has complained */
    }
    const uint32_t first = sockets[socket].is_per_rank ? worker->first_rank : 0;
    const uint32_t ranks = sockets[socket].is_per_rank ? worker->ranks : 1;
    if (kvb_endpoint_range_of(text, first, ranks, &claim.range, &detail) != KVB_OK) {
        kvb_conf_error(claims->conf, worker_key(key, at, claim.key), "%s", detail.text);
        return;
    }
    add_claim(claims, &claim);
}

static kvb_status check_endpoints(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    const size_t most = config->worker_count * KVB_COUNT_OF(sockets);
    struct claims claims = { .conf = conf };

    claims.items = calloc(most ? most : 1, sizeof *claims.items);
    if (!claims.items) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < config->worker_count; i++) {
        for (size_t socket = 0; socket < KVB_COUNT_OF(sockets); socket++) {
            claim_endpoint(&claims, &config->workers[i], i, socket);
        }
    }
    free(claims.items);
    return KVB_OK;
}

/* ---- All together ------------------------------------------------------------------------- */

static void check_streams(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    uint64_t streams = 0;

    for (size_t i = 0; i < config->worker_count; i++) {
        streams += config->workers[i].ranks;
    }
    if (streams > kvb_max_streams) {
        kvb_conf_error(
            conf, "workers", "has %" PRIu64 " ranks in all: at most %d go into one bridge", streams,
            kvb_max_streams);
    }
}

static kvb_status check(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    kvb_config_check_nats(conf, &config->nats);
    kvb_config_check_name(conf, "publish.namespace", config->publish.name_space, false);
    kvb_config_check_name(conf, "publish.component", config->publish.component, false);
    kvb_config_check_name(conf, "publish.endpoint_name", config->publish.endpoint_name, false);
    kvb_config_check_listen(conf, "http", config->http);
    check_ids(conf, config);
    check_streams(conf, config);
    return check_endpoints(conf, config);
}

static void drop_conf(struct kvb_conf **conf)
{
    kvb_conf_close(*conf);
}

kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors)
{
    KVB_OWN(drop_conf) struct kvb_conf *conf = NULL;
    struct kvb_bridge_config config = { .worker_count = 0 };

    KVB_TRY(kvb_conf_open(path, errors, &conf));
    KVB_TRY(kvb_conf_read(conf, &table, &config));
    kvb_status status = check(conf, &config);
    if (status == KVB_OK && errors->count > 0) {
        status = KVB_BAD_CONFIG;
    }
    if (status != KVB_OK) {
        kvb_bridge_config_done(&config);
        return status;
    }
    *out_config = config;
    return KVB_OK;
}
