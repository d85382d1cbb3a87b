#include "kvbridge/config.h"

#include "core/limits.h"
#include "core/own.h"
#include "ingest/http/fetch.h"
#include "kvbridge/checkpoint_store.h"
#include "kvbridge/register_token.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *profile_name(unsigned value)
{
    return kvb_profile_name((enum kvb_profile)value);
}

static const char *copies_name(unsigned value)
{
    return kvb_copies_name((enum kvb_copies)value);
}

static const char *clear_name(unsigned value)
{
    return kvb_clear_name((enum kvb_clear)value);
}

/* What publish.hashes says, or something else. */
static const char *worker_hashes_name(unsigned value)
{
    return value == KVB_WORKER_HASHES_AS_PUBLISHED ? "publish"
                                                   : kvb_hashes_name((enum kvb_hashes)(value - 1));
}

static const char *reannounce_name(unsigned value)
{
    return kvb_reannounce_name((enum kvb_reannounce)value);
}

static const char *hashes_name(unsigned value)
{
    return kvb_hashes_name((enum kvb_hashes)value);
}

static const char *tiers_name(unsigned value)
{
    return value == KVB_PUBLISH_ALL ? "all" : "device";
}

static const char *request_name(unsigned value)
{
    return kvb_replay_request_name((enum kvb_replay_request)value);
}

static const char *tier_name(unsigned value)
{
    return kvb_tier_name((enum kvb_tier)value);
}

static kvb_status
take_worker_label(void *labels, const char *name, const char *value, struct kvb_detail *detail)
{
    return kvb_labels_add(labels, name, value, detail);
}

/* ---- The keys: path, type, default, range, field, help ----------------------------- */

#define FIELD(field) KVB_CONF_FIELD(struct kvb_worker_config, field)

/* clang-format off */
static const struct kvb_conf_key worker_keys[] = {
    { "id", KVB_CONF_U64, NULL, 0, INT64_MAX, FIELD(id),
      .otherwise = "made from its address",
      .help = "The instance id by which the router knows this engine.  Above\n"
              "2147483647 write 5000000000L or \"5000000000\".  One made from the\n"
              "address stays the same as long as the address does; /state lists it." },
    { "ids", KVB_CONF_U64S, NULL, 0, INT64_MAX, FIELD(ids),
      .count_offset = offsetof(struct kvb_worker_config, id_count),
      .help = "Instead of `id`, one for each rank: routers up to Dynamo 1.3 that\n"
              "read json know no ranks, or clear all of a worker's at once." },
    { "model", KVB_CONF_STRING, NULL, 1, FIELD(model),
      .help = "The model it serves; queries name it." },
    { "block_size", KVB_CONF_U32, NULL, 1, kvb_max_block_tokens, FIELD(block_size),
      .help = "Tokens in a block; the events' own size wins." },
    { "hashes", KVB_CONF_ENUM, "publish", 0, KVB_HASHES_COUNT, FIELD(hashes),
      .name_of = worker_hashes_name,
      .help = "Its block names, where publish.hashes is not right: engine for a pool\n"
              "whose events hold no tokens, so that its blocks can be named at all." },
    { "lora", KVB_CONF_STRING, "", 0, FIELD(lora),
      .help = "The LoRA adapter of events that name none; empty: the base model." },
    { "discover", KVB_CONF_STRING, "", 0, FIELD(discover),
      .help = "The engine's HTTP address, http://host:8000: events, replay, topic and\n"
              "ranks are then what its /kv_event_sources (vLLM 0.32) or /server_info\n"
              "(SGLang 0.5.23) says, asked for again when its connection was lost.\n"
              "The engine must bind: tcp://*:port.  Empty: they stand here." },
    { "events", KVB_CONF_STRING, NULL, 1, FIELD(events), .instead = "discover",
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
    { "replay_request", KVB_CONF_ENUM, "plain", 0, KVB_REQUEST_COUNT - 1, FIELD(replay_request),
      .name_of = request_name,
      .help = "How it wants to be asked for a replay: plain for every engine, mooncake\n"
              "for stores that follow Mooncake's subscriber guide." },
    { "unknown_medium", KVB_CONF_ENUM, "external", 0, KVB_TIER_COUNT - 1, FIELD(unknown_medium),
      .name_of = tier_name,
      .help = "The tier of blocks in a medium that is on no list; such events are\n"
              "counted.  device only where every such medium is memory of the device." },
    { "store", KVB_CONF_BOOL, "false", 0, 0, FIELD(store),
      .help = "true: a store that all workers share, and no engine: requests are never\n"
              "routed to it.  Known of those asked for replays as mooncake, and of those\n"
              "whose events are a store's." },
    { "labels", KVB_CONF_PAIRS, NULL, 0, 0, FIELD(labels), .take_pair = take_worker_label,
      .help = "Names and values by which requests select workers, such as role and\n"
              "address: at most 16, of 512 bytes in all.  A label that changes opens\n"
              "the worker anew, as every key does." },
    { "total_blocks", KVB_CONF_U64, "0", 0, kvb_max_stream_blocks, FIELD(total_blocks),
      .help = "Blocks that one rank's device memory holds; 0: not known.  Disregarded, and the\n"
              "log says so, when the engine was seen to hold more." },
    { "load.zmq", KVB_CONF_STRING, "", 0, FIELD(load.zmq),
      .help = "PUB socket of its load figures, one for all ranks; empty: none." },
    { "load.prometheus", KVB_CONF_STRING, "", 0, FIELD(load.prometheus),
      .help = "Its page of metrics, as http://host:port/metrics, of vLLM or SGLang;\n"
              "one for all ranks; empty: none." },
    { "load.scrape_ms", KVB_CONF_U32, "1000", 50, 60000, FIELD(load.scrape_ms),
      .help = "How often it is read." },
    { "load.coordinator", KVB_CONF_STRING, "", 0, FIELD(load.coordinator),
      .help = "Where vLLM's data-parallel coordinator tells its front ends how busy\n"
              "all ranks are; it is listened to and never written to; empty: none." },
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
    { "publish.tiers", KVB_CONF_ENUM, "device", 0, KVB_PUBLISH_TIERS_COUNT - 1,
      FIELD(publish.tiers), .name_of = tiers_name,
      .help = "The tiers that json publishes: device for readers that know no tiers, all\n"
              "for those that do.  protobuf publishes all." },
    { "publish.copies", KVB_CONF_ENUM, "interval", 0, KVB_COPIES_COUNT - 1,
      FIELD(publish.copies), .name_of = copies_name,
      .help = "What a stored event of a block that is held already is.  interval: a\n"
              "second copy or a re-announcement, as its context shows; blocks of which\n"
              "nothing shows it count as doubtful.  count: always a second copy; exact\n"
              "where no request asks vLLM for kv_cache_report_mode \"full\"." },
    { "publish.clear", KVB_CONF_ENUM, "event", 0, KVB_CLEAR_COUNT - 1, FIELD(publish.clear),
      .name_of = clear_name,
      .help = "How json says that a stream holds nothing any more: removed spells it\n"
              "out, for Dynamo 0.1 to 0.3.0, which stop for good at the event." },
    { "publish.reannounce", KVB_CONF_ENUM, "auto", 0, KVB_REANNOUNCE_COUNT - 1,
      FIELD(publish.reannounce), .name_of = reannounce_name,
      .help = "on_loss: what may be lost on the way to NATS is told anew as a whole.\n"
              "never: readers see a hole in the event ids, and ask.  auto: on_loss for\n"
              "json, never for protobuf." },
    { "publish.refresh_s", KVB_CONF_U32, NULL, 0, 86400, FIELD(publish.refresh_s),
      .otherwise = "60 for json",
      .help = "In json all that is held is stored again within this time, so that a\n"
              "router that comes late has it too; 0: only when it is asked for, on\n"
              "P.kv_refresh.  Not with reannounce = never." },
    { "publish.down_clear_ms", KVB_CONF_U32, "5000", 0, 3600000, FIELD(publish.down_clear_ms),
      .help = "Of an engine away for so long readers are told that it holds nothing; 0: never." },
    { "publish.load_period_ms", KVB_CONF_U32, "100", 10, 60000, FIELD(publish.load_period_ms),
      .help = "How often load figures go out." },
    { "publish.load_expire_ms", KVB_CONF_U32, "3000", 100, 3600000, FIELD(publish.load_expire_ms),
      .help = "Figures older than this go out no more; those of a page live for three\n"
              "readings at least, those of a coordinator for 15 s." },
    { "publish.heartbeat_ms", KVB_CONF_U32, "1000", 100, 60000, FIELD(publish.heartbeat_ms),
      .help = "How often each stream says how it is." },
    { "publish.standby", KVB_CONF_BOOL, "false", 0, 0, FIELD(publish.standby),
      .help = "true: read the engines, but publish a stream only while no other bridge does:\n"
              "from three missing heartbeats of it, or its goodbye, until one that is no\n"
              "standby publishes it again." },
    { "workers", KVB_CONF_LIST, NULL, 0, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct kvb_bridge_config, workers),
      .count_offset = offsetof(struct kvb_bridge_config, worker_count),
      .help = "One group for each engine.  SIGHUP reads them again." },
    { "register.token_file", KVB_CONF_STRING, "", 0, FIELD(registering.token_file),
      .help = "Path of a file with the word that whoever POSTs to /register and\n"
              "/unregister must show; empty: nobody may.  Other users than its owner\n"
              "and its group may not read it (chmod 0640)." },
    { "limits.max_stream_blocks", KVB_CONF_U64, "4194304", 1024, kvb_max_stream_blocks,
      FIELD(limits.max_stream_blocks),
      .help = "Blocks remembered of one rank, about 60 bytes each." },
    { "limits.max_held_bytes", KVB_CONF_U64, "67108864", 65536, kvb_max_reorder_bytes,
      FIELD(limits.max_held_bytes),
      .help = "Live events of one rank that wait while a replay runs." },
    { "limits.max_replay_bytes", KVB_CONF_U64, "67108864", 65536, kvb_max_replay_bytes,
      FIELD(limits.max_replay_bytes),
      .help = "Replayed batches of one rank that wait to be applied; what comes above\n"
              "is asked for again.  At most 8 replays run at once." },
    { "limits.sync_blocks", KVB_CONF_U64, "16384", 0, kvb_max_router_blocks,
      FIELD(limits.sync_blocks),
      .help = "Blocks of one rank's newest events, 16 bytes each, for aggregators that\n"
              "missed some; 0: they are given all that is held instead." },
    { "checkpoint", KVB_CONF_STRING, "", 0, FIELD(checkpoint),
      .help = "Directory of what a restart goes on from; empty: the lists are fetched\n"
              "from the engines again.  Under systemd: /var/lib/kvbridge." },
    { "checkpoint_s", KVB_CONF_U32, "10", 1, 3600, FIELD(checkpoint_s),
      .help = "How often a stream that changed is written there; seconds." },
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

const struct kvb_conf_table *kvb_bridge_config_keys(void)
{
    return &table;
}

const struct kvb_conf_table *kvb_worker_config_keys(void)
{
    return &worker_table;
}

/* ---- Worker ids ------------------------------------------------------------------------ */

enum { key_bytes = 64 };

static const char *worker_key_path(char text[key_bytes], size_t worker, const char *key)
{
    (void)snprintf(text, key_bytes, "workers[%zu].%s", worker, key);
    return text;
}

/* Before ids are compared: one that is made may be one that is given. */
static void make_ids(struct kvb_bridge_config *config)
{
    for (size_t i = 0; i < config->worker_count; i++) {
        struct kvb_worker_config *worker = &config->workers[i];
        if (worker->id == UINT64_MAX && worker->id_count == 0) {
            worker->id = kvb_worker_id_of_address(worker);
            worker->is_id_made = true;
        }
    }
}

/* A worker id, and where it stands; sorted, equal ones are neighbours. */
struct numbered {
    uint64_t id;
    size_t worker;
    size_t at; /* in ids; of `id`: 0 */
};

static int compare_worker_ids(const void *one, const void *other)
{
    const struct numbered *a = one;
    const struct numbered *b = other;

    if (a->id != b->id) {
        return a->id < b->id ? -1 : 1;
    }
    if (a->worker != b->worker) {
        return a->worker < b->worker ? -1 : 1;
    }
    return (a->at > b->at) - (a->at < b->at);
}

static const char *id_key(
    char text[key_bytes], const struct kvb_bridge_config *config, const struct numbered *numbered)
{
    char key[key_bytes] = "id";

    if (config->workers[numbered->worker].id_count > 0) {
        (void)snprintf(key, sizeof key, "ids[%zu]", numbered->at);
    }
    return worker_key_path(text, numbered->worker, key);
}

static void say_equal_ids(
    struct kvb_conf *conf, const struct kvb_bridge_config *config, const struct numbered *pair)
{
    char first[key_bytes];
    char second[key_bytes];

    kvb_conf_error(
        conf, id_key(second, config, &pair[1]),
        "worker id %" PRIu64 " is used in line %u already: give each its own", pair[1].id,
        kvb_conf_line(conf, id_key(first, config, &pair[0])));
}

/* ids stand for as many ranks, and instead of id. */
static void
check_id_count(struct kvb_conf *conf, const struct kvb_worker_config *worker, size_t number)
{
    char key[key_bytes];

    if (worker->id_count > 0 && worker->id_count != worker->ranks && worker->discover[0] == '\0') {
        kvb_conf_error(
            conf, worker_key_path(key, number, "ids"),
            "has %zu ids for %u ranks: give one for each", worker->id_count, worker->ranks);
    }
    if (worker->id_count > 0 && worker->id != UINT64_MAX) {
        kvb_conf_error(
            conf, worker_key_path(key, number, "id"), "leave it out: `ids` stands in its place");
    }
}

static size_t number_ids(const struct kvb_bridge_config *config, struct numbered *out)
{
    size_t count = 0;

    for (size_t i = 0; i < config->worker_count; i++) {
        const struct kvb_worker_config *worker = &config->workers[i];
        const size_t ids = worker->id_count > 0 ? worker->id_count : 1;
        for (size_t at = 0; at < ids; at++) {
            out[count++] = (struct numbered){ kvb_worker_id_of_rank(worker, (uint32_t)at), i, at };
        }
    }
    return count;
}

static kvb_status check_ids(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    struct numbered *ids =
        calloc(config->worker_count * kvb_max_ranks + 1, sizeof *ids); /* 3 MiB at most */

    if (!ids) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < config->worker_count; i++) {
        check_id_count(conf, &config->workers[i], i);
    }
    const size_t count = number_ids(config, ids);
    qsort(ids, count, sizeof *ids, compare_worker_ids);
    for (size_t i = 1; i < count; i++) {
        if (ids[i].id == ids[i - 1].id && ids[i].id <= INT64_MAX) {
            say_equal_ids(conf, config, &ids[i - 1]);
        }
    }
    free(ids);
    return KVB_OK;
}

/* ---- Endpoints ---------------------------------------------------------------------------- */

/* The keys of a worker that are endpoints. */
static const struct {
    const char *key;
    size_t offset;
    bool is_per_rank;
    bool is_shared; /* one coordinator speaks for all ranks, whoever reads them */
} sockets[] = {
    { "events", offsetof(struct kvb_worker_config, events), .is_per_rank = true },
    { "replay", offsetof(struct kvb_worker_config, replay), .is_per_rank = true },
    { "load.zmq", offsetof(struct kvb_worker_config, load.zmq), .is_shared = false },
    { "load.coordinator", offsetof(struct kvb_worker_config, load.coordinator), .is_shared = true },
};

/* One endpoint that the file gives. */
struct claim {
    size_t worker;
    const char *key; /* of sockets[] */
    bool is_shared;
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

    (void)worker_key_path(other, earlier->worker, earlier->key);
    kvb_conf_error(
        conf, worker_key_path(one, later->worker, later->key),
        "its %s %u .. %u are also those of %s in line %u (%u .. %u): move one of them",
        is_tcp ? "ports" : "ranks", later->range.first, later->range.last, other,
        kvb_conf_line(conf, other), earlier->range.first, earlier->range.last);
}

/* Says the first clash only: one typing error would otherwise fill the list. */
static void add_claim(struct claims *claims, const struct claim *claim)
{
    for (size_t i = 0; i < claims->count; i++) {
        const struct claim *earlier = &claims->items[i];
        if (!(claim->is_shared && earlier->is_shared) &&
            kvb_endpoint_range_clashes(&claim->range, &earlier->range)) {
            say_clash(claims->conf, claim, earlier);
            break;
        }
    }
    claims->items[claims->count++] = *claim;
}

static void claim_endpoint(
    struct claims *claims, const struct kvb_worker_config *worker, size_t at, size_t socket)
{
    const char *text = (const char *)worker + sockets[socket].offset;
    struct claim claim = { .worker = at,
                           .key = sockets[socket].key,
                           .is_shared = sockets[socket].is_shared };
    struct kvb_detail detail;
    char key[key_bytes];

    if (text[0] == '\0') {
        return; /* has none, or its row has complained */
    }
    const uint32_t first = sockets[socket].is_per_rank ? worker->first_rank : 0;
    const uint32_t ranks = sockets[socket].is_per_rank ? worker->ranks : 1;
    if (kvb_endpoint_range_of(text, first, ranks, &claim.range, &detail) != KVB_OK) {
        kvb_conf_error(claims->conf, worker_key_path(key, at, claim.key), "%s", detail.text);
        return;
    }
    add_claim(claims, &claim);
}

static kvb_status check_endpoints(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    const size_t max = config->worker_count * KVB_COUNT_OF(sockets);
    struct claims claims = { .conf = conf };

    claims.items = calloc(max ? max : 1, sizeof *claims.items);
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

static void check_pages(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    for (size_t i = 0; i < config->worker_count; i++) {
        const char *url = config->workers[i].load.prometheus;
        if (url[0] != '\0' && kvb_fetch_check_url(url, &detail) != KVB_OK) {
            kvb_conf_error(conf, worker_key_path(key, i, "load.prometheus"), "%s", detail.text);
        }
    }
}

/* The engine tells what the file then must not. */
static void
check_discovered(struct kvb_conf *conf, const struct kvb_worker_config *worker, size_t number)
{
    const struct {
        const char *key;
        bool is_given;
    } advertised[] = {
        { "events", worker->events[0] != '\0' },   { "replay", worker->replay[0] != '\0' },
        { "topic", worker->topic[0] != '\0' },     { "ranks", worker->ranks != 1 },
        { "first_rank", worker->first_rank != 0 }, { "bind", worker->bind },
    };
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    if (kvb_fetch_check_url(worker->discover, &detail) != KVB_OK) {
        kvb_conf_error(conf, worker_key_path(key, number, "discover"), "%s", detail.text);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(advertised); i++) {
        if (advertised[i].is_given) {
            kvb_conf_error(
                conf, worker_key_path(key, number, advertised[i].key),
                "leave it out: the engine that `discover` names tells it");
        }
    }
}

static void check_discovery(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    for (size_t i = 0; i < config->worker_count; i++) {
        if (config->workers[i].discover[0] != '\0') {
            check_discovered(conf, &config->workers[i], i);
        }
    }
}

/* ---- All together ------------------------------------------------------------------------- */

/* systemd makes the directory at the first start: until then a warning. */
static void check_checkpoint(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    struct kvb_detail detail = { .text = "" };

    if (config->checkpoint[0] == '\0') {
        return;
    }
    if (config->checkpoint[0] != '/') {
        kvb_conf_error(
            conf, "checkpoint", "begin it with /: it must not depend on where the daemon starts");
    } else if (kvb_checkpoint_directory_check(config->checkpoint, &detail) != KVB_OK) {
        kvb_conf_warning(conf, "checkpoint", "%s", detail.text);
    }
}

static void check_token(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    char token[kvb_register_token_bytes];
    struct kvb_detail detail = { .text = "" };
    const char *path = config->registering.token_file;

    if (path[0] != '\0' && kvb_register_token_read(path, token, &detail) != KVB_OK) {
        kvb_conf_error(conf, "register.token_file", "%s", detail.text);
    }
    if (path[0] == '\0' && config->worker_count == 0) {
        kvb_conf_error(
            conf, "workers",
            "has no group: add one, or set register.token_file, so that workers can register");
    }
}

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

static kvb_status check_bridge_config(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    kvb_config_check_nats(conf, &config->nats);
    kvb_config_check_name(conf, "publish.namespace", config->publish.name_space, false);
    kvb_config_check_name(conf, "publish.component", config->publish.component, false);
    kvb_config_check_name(conf, "publish.endpoint_name", config->publish.endpoint_name, false);
    kvb_config_check_listen(conf, "http", config->http);
    check_checkpoint(conf, config);
    check_token(conf, config);
    check_streams(conf, config);
    check_discovery(conf, config);
    check_pages(conf, config);
    KVB_TRY(check_ids(conf, config));
    return check_endpoints(conf, config);
}

static void drop_bridge_conf(struct kvb_conf **conf)
{
    kvb_conf_close(*conf);
}

kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors)
{
    KVB_OWN(drop_bridge_conf) struct kvb_conf *conf = NULL;
    struct kvb_bridge_config config = { .worker_count = 0 };

    KVB_TRY(kvb_conf_open(path, errors, &conf));
    KVB_TRY(kvb_conf_read(conf, &table, &config));
    make_ids(&config);
    kvb_bridge_config_settle_readers(conf, &config);
    kvb_status status = check_bridge_config(conf, &config);
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
