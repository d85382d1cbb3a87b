#include "kvbridge/config.h"

#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "daemon/bearer_token.h"
#include "ingest/http/fetch.h"
#include "kvbridge/checkpoint_store.h"
#include "kvbridge/dns_list.h"

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

static kvb_status take_published_label(void *names, const char *name, struct kvb_detail *detail)
{
    return kvb_label_names_add(names, name, detail);
}

static const char *role_name(unsigned value)
{
    return kvb_worker_role_name((enum kvb_worker_role)value);
}

static const char *preset_name(unsigned value)
{
    return kvb_pod_preset_name((enum kvb_pod_preset)value);
}

/* "*" stands for all; a name is one of RFC 1123. */
static kvb_status take_network(void *field, const char *text, struct kvb_detail *detail)
{
    return kvb_networks_add(field, text, detail);
}

static kvb_status take_namespace(void *field, const char *text, struct kvb_detail *detail)
{
    struct kvb_kubernetes_namespaces *list = field;
    const size_t len = strlen(text);
    const bool is_all = strcmp(text, "*") == 0;

    if (list->count == kvb_max_pod_sources) {
        kvb_detail_set(detail, "at most %d: \"*\" watches all", kvb_max_pod_sources);
        return KVB_TOO_LARGE;
    }
    if (!is_all && (len == 0 || len > kvb_pod_namespace_bytes ||
                    strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)) {
        kvb_detail_set(
            detail, "a namespace has 1 to %d of a-z 0-9 -; \"*\" stands for all",
            kvb_pod_namespace_bytes);
        return KVB_BAD_INPUT;
    }
    (void)snprintf(list->names[list->count++], sizeof list->names[0], "%s", is_all ? "" : text);
    return KVB_OK;
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
    { "curve.server_key_file", KVB_CONF_STRING, "", 0, FIELD(curve.server_key_file),
      .help = "CURVE encrypts and authenticates its events and replays: the file of the\n"
              "engine's public key, 40 characters of Z85.  Load stays in clear.  Empty,\n"
              "and the three below too: none." },
    { "curve.public_key_file", KVB_CONF_STRING, "", 0, FIELD(curve.public_key_file),
      .help = "The file of this bridge's public key, which must belong to the secret\n"
              "one; empty: it is computed from that." },
    { "curve.secret_key_file", KVB_CONF_STRING, "", 0, FIELD(curve.secret_key_file),
      .help = "The file of this bridge's secret key.  Other users than its owner and its\n"
              "group may not read it (chmod 0640)." },
    { "curve.client_keys_file", KVB_CONF_STRING, "", 0, FIELD(curve.client_keys_file),
      .help = "With bind = true, the public keys of engines that may connect, one a line,\n"
              "at most 64.  SIGHUP reads all four files again." },
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
    { "address", KVB_CONF_STRING, "", 0, FIELD(facts.address),
      .help = "The URL that a router dials, such as http://10.0.0.7:8000: published byte\n"
              "for byte, and what the candidates of a request name; empty: not known." },
    { "role", KVB_CONF_ENUM, "", 0, KVB_ROLE_COUNT - 1, FIELD(facts.role), .name_of = role_name,
      .help = "Where prefill and decode are apart: what it does; requests select by it." },
    { "labels", KVB_CONF_PAIRS, NULL, 0, 0, FIELD(facts.labels), .take_pair = take_worker_label,
      .help = "Names and values by which requests select workers: at most 16, of 512\n"
              "bytes in all.  Labels named address and role stand for those keys.  When\n"
              "one of the three changes, its stream goes on, and routers\n"
              "receive the change." },
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

/* What the workers of a list that is no file have in common.  model and block_size are required
 * when there is such a list. */
/* An argument names a field. NOLINTBEGIN(bugprone-macro-parentheses) */
#define WORKER_ROWS(group, worker, size, of_model, of_size)                                        \
    { group ".model", KVB_CONF_STRING, "", 0, FIELD(worker.model), .help = of_model },             \
    { group ".block_size", KVB_CONF_U32, size, 0, kvb_max_block_tokens, FIELD(worker.block_size),  \
      .help = of_size },                                                       \
    { group ".hashes", KVB_CONF_ENUM, "publish", 0, KVB_HASHES_COUNT, FIELD(worker.hashes),        \
      .name_of = worker_hashes_name, .help = "As of a worker." },                                  \
    { group ".ranks", KVB_CONF_U32, "1", 1, kvb_max_ranks, FIELD(worker.ranks),                    \
      .help = "As of a worker." },                                                                 \
    { group ".topic", KVB_CONF_STRING, "", 0, FIELD(worker.topic), .help = "As of a worker." },    \
    { group ".curve.server_key_file", KVB_CONF_STRING, "", 0,                                      \
      FIELD(worker.curve.server_key_file), .help = "As of a worker: one key for all." },           \
    { group ".curve.public_key_file", KVB_CONF_STRING, "", 0,                                      \
      FIELD(worker.curve.public_key_file), .help = "As of a worker." },                            \
    { group ".curve.secret_key_file", KVB_CONF_STRING, "", 0,                                      \
      FIELD(worker.curve.secret_key_file), .help = "As of a worker." }
/* NOLINTEND(bugprone-macro-parentheses) */

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
      .help = "on_loss: after a possible loss on the way to NATS the whole stream is\n"
              "published again.\n"
              "never: readers see a hole in the event ids, and ask.  auto: on_loss for\n"
              "json, never for protobuf." },
    { "publish.refresh_s", KVB_CONF_U32, NULL, 0, 86400, FIELD(publish.refresh_s),
      .otherwise = "60 for json",
      .help = "In json all that is held is stored again within this time, so that a\n"
              "router that comes late has it too; 0: only when it is asked for, on\n"
              "P.kv_refresh.  Not with reannounce = never." },
    { "publish.down_clear_ms", KVB_CONF_U32, "5000", 0, 3600000, FIELD(publish.down_clear_ms),
      .help = "After an engine was away for so long, its stream is published as empty; 0: never." },
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
    { "publish.labels", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(publish.labels),
      .take_text = take_published_label,
      .help = "Names of the labels that are published, at most 16; empty: all those of\n"
              "workers in the file and of registered ones, none of a pod's." },
    { "workers", KVB_CONF_LIST, NULL, 0, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct kvb_bridge_config, workers),
      .count_offset = offsetof(struct kvb_bridge_config, worker_count),
      .help = "One group for each engine.  SIGHUP reads them again." },
    { "workers_file", KVB_CONF_STRING, "", 0, FIELD(workers_file),
      .help = "Path of a file with more of them, for lists that a program writes: a list\n"
              "`workers` and nothing else.  Write it anew and rename it into its place.\n"
              "SIGHUP reads it again." },
    { "watch_files", KVB_CONF_BOOL, "false", 0, 0, FIELD(watch_files),
      .help = "true: this file and workers_file are read again when they change, as\n"
              "SIGHUP does; a ConfigMap of Kubernetes, too." },
    { "dns.name", KVB_CONF_STRING, "", 0, FIELD(dns.name),
      .help = "A name whose addresses are engines, such as a headless Service: each one is\n"
              "a worker.  One that three answers do not list leaves; failed queries\n"
              "change nothing.  Empty: none." },
    { "dns.srv", KVB_CONF_STRING, "", 0, FIELD(dns.srv),
      .help = "Instead of dns.name, the name of SRV records, whose targets and ports are\n"
              "the engines' PUB sockets: _kv-events._tcp.vllm-headless." },
    { "dns.port", KVB_CONF_U32, "5557", 1, UINT16_MAX, FIELD(dns.port),
      .help = "The PUB socket of the first rank; rank r: port + r.  Not with dns.srv." },
    { "dns.replay_port", KVB_CONF_U32, "0", 0, UINT16_MAX, FIELD(dns.replay_port),
      .help = "The replay socket, likewise; 0: they have none." },
    { "dns.metrics_port", KVB_CONF_U32, "0", 0, UINT16_MAX, FIELD(dns.metrics_port),
      .help = "The HTTP port: /metrics is read there, and this address is published as the\n"
              "worker's; 0: it has none." },
    { "dns.period_s", KVB_CONF_U32, "5", 1, 3600, FIELD(dns.period_s),
      .help = "How often the name is looked up; seconds." },
    WORKER_ROWS("dns", dns.worker, "0", "The model that they serve; required.",
                "As of a worker; required."),
    { "kubernetes.enabled", KVB_CONF_BOOL, "true", 0, 0, FIELD(kubernetes.is_on),
      .help = "false: as if the group were not there.  It makes pods workers." },
    { "kubernetes.namespaces", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(kubernetes.namespaces),
      .take_text = take_namespace,
      .help = "Whose pods: names, \"*\" for all; empty: those of the namespace in which\n"
              "the bridge itself is a pod." },
    { "kubernetes.selector", KVB_CONF_STRING, "", 0, FIELD(kubernetes.selector),
      .help = "Label selector, as kubectl takes it: app=vllm; empty: the preset's,\n"
              "and with preset = \"ports\" every pod." },
    { "kubernetes.field_selector", KVB_CONF_STRING, "", 0, FIELD(kubernetes.field_selector),
      .help = "Such as spec.nodeName=$(NODE_NAME), for a bridge on each node." },
    { "kubernetes.preset", KVB_CONF_ENUM, "ports", 0, KVB_POD_PRESET_COUNT - 1,
      FIELD(kubernetes.rules.preset), .name_of = preset_name,
      .help = "Whose labels and annotations say ports, model and role.  Container ports\n"
              "named kv-events, kv-replay, metrics and http come first in each." },
    { "kubernetes.events_port", KVB_CONF_U32, NULL, 0, 65535, FIELD(kubernetes.events_port),
      .otherwise = "5557",
      .help = "Of pods that name none; 0: they are not taken.  Rank r: port + r." },
    { "kubernetes.replay_port", KVB_CONF_U32, NULL, 0, 65535, FIELD(kubernetes.replay_port),
      .otherwise = "6557; aibrix 5558; llm-d, dynamo none",
      .help = "Of pods that name none; 0: they have none." },
    { "kubernetes.metrics_port", KVB_CONF_U32, NULL, 0, 65535, FIELD(kubernetes.metrics_port),
      .otherwise = "8000",
      .help = "Of the engine's /metrics, in pods that name none; 0: it is not read." },
    { "kubernetes.discover", KVB_CONF_BOOL, "false", 0, 0, FIELD(kubernetes.discover),
      .help = "true: ports and ranks are what the engine's HTTP port says, as with\n"
              "workers.discover; of an engine without these pages, those of the pod." },
    WORKER_ROWS("kubernetes", kubernetes.worker, "16",
                "Of pods where no label and no argument of the engine names one.",
                "Of pods where no argument of the engine says it; the events' own size wins."),
    { "kubernetes.model_label", KVB_CONF_STRING, "", 0, FIELD(kubernetes.rules.model_label),
      .help = "Label or annotation with the model's name; empty: the preset's." },
    { "kubernetes.role_label", KVB_CONF_STRING, "llm-d.ai/role", 0,
      FIELD(kubernetes.rules.role_label),
      .help = "Label or annotation with prefill, decode or both." },
    { "kubernetes.id_from", KVB_CONF_STRING, "name", 1, FIELD(kubernetes.id_from),
      .help = "What a worker's id is made of: name (Dynamo's hash of the pod's name),\n"
              "uid, or label:x, a label or annotation with a number." },
    { "kubernetes.kubeconfig", KVB_CONF_STRING, "", 0, FIELD(kubernetes.kubeconfig),
      .help = "Path of a file as kubectl has it: server, certificates and user are those\n"
              "of its current context.  Read again every minute.  Other users than its\n"
              "owner and group must not be able to read it." },
    { "kubernetes.api", KVB_CONF_STRING, "", 0, FIELD(kubernetes.api),
      .help = "https://host:port of the API server; empty: the bridge is a pod, and its\n"
              "environment and service account say it." },
    { "kubernetes.token_file", KVB_CONF_STRING, "", 0, FIELD(kubernetes.token_file),
      .help = "Its token, read again every minute; empty: the service account's." },
    { "kubernetes.ca_file", KVB_CONF_STRING, "", 0, FIELD(kubernetes.ca_file),
      .help = "PEM, read at each dial; empty: the service account's, and with `api` the\n"
              "system's." },
    { "kubernetes.watch_s", KVB_CONF_U32, "300", 10, 3600, FIELD(kubernetes.watch_s),
      .help = "How long one watch lasts, and 20 % more or less." },
    { "register.token_file", KVB_CONF_STRING, "", 0, FIELD(registering.token_file),
      .help = "Path of a file with the word that whoever POSTs to /register and\n"
              "/unregister must show; empty: nobody may.  Other users than its owner\n"
              "and its group may not read it (chmod 0640)." },
    { "register.networks", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(registering.networks),
      .take_text = take_network,
      .help = "Networks, such as 10.0.0.0/8, that a registered address must be in when\n"
              "connected to; empty: any but link-local ones and others where clouds\n"
              "answer with credentials." },
    { "discover.networks", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(discovering.networks),
      .take_text = take_network,
      .help = "The same for `discover` URLs and for what the engine there names." },
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
    KVB_CONFIG_HTTP_ROWS(struct kvb_bridge_config, "127.0.0.1:9401"),
    KVB_CONFIG_LOG_ROWS(struct kvb_bridge_config),
};
#undef WORKER_ROWS
#undef FIELD

/* The list that workers_file contains. */
struct generated_workers {
    struct kvb_worker_config *items; /* owned */
    size_t count;
};

static const struct kvb_conf_key generated_keys[] = {
    { "workers", KVB_CONF_LIST, NULL, 0, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct generated_workers, items),
      .count_offset = offsetof(struct generated_workers, count) },
};
/* clang-format on */

static const struct kvb_conf_table generated_table = { generated_keys, 1,
                                                       sizeof(struct generated_workers) };

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

enum { key_bytes = 64, place_bytes = kvb_config_path_bytes + 32 };

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

/* "line 12", or "line 12 of PATH" where that is not the file of `here`. */
static const char *place_text(
    char text[place_bytes], const struct kvb_conf_place *place, const struct kvb_conf_place *here)
{
    const bool is_here = strcmp(place->path, here->path) == 0;

    (void)snprintf(
        text, place_bytes, "line %u%s%s", place->line, is_here ? "" : " of ",
        is_here ? "" : place->path);
    return text;
}

static void say_equal_ids(
    struct kvb_conf *conf, const struct kvb_bridge_config *config, const struct numbered *pair)
{
    char first[key_bytes];
    char second[key_bytes];
    char place[place_bytes];

    const struct kvb_conf_place there = kvb_conf_place_of(conf, id_key(first, config, &pair[0]));
    const struct kvb_conf_place here = kvb_conf_place_of(conf, id_key(second, config, &pair[1]));
    kvb_conf_error(
        conf, second, "worker id %" PRIu64 " is used in %s already: give each its own", pair[1].id,
        place_text(place, &there, &here));
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
    struct claim *next; /* earlier one of its bucket */
};

enum { claim_buckets = 4096 };

/* A hash table by host, chained: 8,192 workers have 24,576 endpoints. */
struct claims {
    struct kvb_conf *conf;
    struct claim *items; /* owned */
    size_t count;
    struct claim *buckets[claim_buckets];
};

static struct claim **bucket_of_claim(struct claims *claims, const struct claim *claim)
{
    struct kvb_endpoint_range whole = claim->range;

    whole.first = 0; /* the same bucket for all ports of a host */
    return &claims->buckets[kvb_endpoint_range_hash(&whole) % claim_buckets];
}

static void say_clash(struct kvb_conf *conf, const struct claim *later, const struct claim *earlier)
{
    const bool is_tcp = later->range.base.scheme == KVB_ENDPOINT_TCP;
    char one[key_bytes];
    char other[key_bytes];
    char place[place_bytes];
    const struct kvb_conf_place there =
        kvb_conf_place_of(conf, worker_key_path(other, earlier->worker, earlier->key));
    const struct kvb_conf_place here =
        kvb_conf_place_of(conf, worker_key_path(one, later->worker, later->key));

    kvb_conf_error(
        conf, one, "its %s %u .. %u are also those of %s in %s (%u .. %u): move one of them",
        is_tcp ? "ports" : "ranks", later->range.first, later->range.last, there.key,
        place_text(place, &there, &here), earlier->range.first, earlier->range.last);
}

/* Says the clash with the first one only: one typing error would otherwise fill the list. */
static void add_claim(struct claims *claims, const struct claim *claim)
{
    struct claim **bucket = bucket_of_claim(claims, claim);
    const struct claim *first = NULL;

    for (const struct claim *earlier = *bucket; earlier; earlier = earlier->next) {
        if (!(claim->is_shared && earlier->is_shared) &&
            kvb_endpoint_range_clashes(&claim->range, &earlier->range)) {
            first = earlier;
        }
    }
    if (first) {
        say_clash(claims->conf, claim, first);
    }
    struct claim *kept = &claims->items[claims->count++];
    *kept = *claim;
    kept->next = *bucket;
    *bucket = kept;
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

static void settle_curves(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    char key[key_bytes];

    for (size_t i = 0; i < config->worker_count; i++) {
        kvb_bridge_config_settle_curve(conf, worker_key_path(key, i, "curve"), &config->workers[i]);
    }
    kvb_bridge_config_settle_curve(conf, "dns.curve", &config->dns.worker);
    kvb_bridge_config_settle_curve(conf, "kubernetes.curve", &config->kubernetes.worker);
}

static void check_facts(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    for (size_t i = 0; i < config->worker_count; i++) {
        struct kvb_worker_facts *facts = &config->workers[i].facts;
        if (!kvb_utf8_is_plain(facts->address)) {
            kvb_conf_error(conf, worker_key_path(key, i, "address"), "is no UTF-8: write it so");
        }
        if (kvb_worker_facts_settle(facts, &detail) != KVB_OK) {
            kvb_conf_error(conf, worker_key_path(key, i, "labels"), "%s", detail.text);
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
    char token[kvb_bearer_token_bytes];
    struct kvb_detail detail = { .text = "" };
    const char *path = config->registering.token_file;

    if (path[0] != '\0' && kvb_bearer_token_read(path, token, &detail) != KVB_OK) {
        kvb_conf_error(conf, "register.token_file", "%s", detail.text);
    }
    if (path[0] == '\0' && config->worker_count == 0 && config->workers_file[0] == '\0' &&
        !kvb_dns_list_is_configured(&config->dns) && !config->kubernetes.is_on) {
        kvb_conf_error(
            conf, "workers",
            "has no group: add one, or set workers_file, kubernetes, dns.name, or "
            "register.token_file, so that workers can register");
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
    kvb_config_check_http(conf, config->http, &config->http_security);
    check_checkpoint(conf, config);
    check_token(conf, config);
    check_streams(conf, config);
    check_discovery(conf, config);
    kvb_dns_list_check(conf, &config->dns);
    check_pages(conf, config);
    KVB_TRY(check_ids(conf, config));
    return check_endpoints(conf, config);
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void drop_bridge_conf(struct kvb_conf **conf)
{
    kvb_conf_close(*conf);
}

static void drop_generated(struct generated_workers *generated)
{
    kvb_conf_done(&generated_table, generated);
}

/* The workers of workers_file become the last ones of `workers`. */
static kvb_status append_workers(
    struct kvb_conf *conf, struct kvb_bridge_config *config,
    const struct generated_workers *generated)
{
    const size_t count = config->worker_count + generated->count;

    if (count > kvb_max_workers) {
        kvb_conf_error(
            conf, "workers_file", "makes %zu workers in all: at most %d go into one bridge", count,
            kvb_max_workers);
        return KVB_OK;
    }
    struct kvb_worker_config *workers = realloc(config->workers, (count + 1) * sizeof *workers);
    if (!workers) {
        return KVB_NO_MEMORY;
    }
    memcpy(&workers[config->worker_count], generated->items, generated->count * sizeof *workers);
    config->workers = workers;
    config->worker_count = count;
    return KVB_OK;
}

/* A file without a list is one that is being written, or another file: an empty list is
 * workers = (). */
static kvb_status read_workers_file(
    struct kvb_conf *conf, struct kvb_bridge_config *config, struct kvb_conf_errors *errors,
    struct kvb_conf **out_file)
{
    KVB_OWN(drop_generated) struct generated_workers generated = { 0 };

    if (config->workers_file[0] == '\0') {
        return KVB_OK;
    }
    if (config->workers_file[0] != '/') {
        kvb_conf_error(
            conf, "workers_file", "begin it with /: it must not depend on where the daemon starts");
        return KVB_OK;
    }
    KVB_TRY(kvb_conf_open(config->workers_file, errors, out_file));
    kvb_conf_continue(conf, "workers", config->worker_count, *out_file);
    KVB_TRY(kvb_conf_read(*out_file, &generated_table, &generated));
    if (!generated.items && errors->count == 0) {
        kvb_conf_error(*out_file, "workers", "is missing: write workers = (); for none");
    }
    return generated.items ? append_workers(conf, config, &generated) : KVB_OK;
}

static kvb_status settle_config(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    make_ids(config);
    check_facts(conf, config);
    settle_curves(conf, config);
    kvb_bridge_config_settle_kubernetes(conf, config);
    kvb_bridge_config_settle_readers(conf, config);
    return check_bridge_config(conf, config);
}

kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors)
{
    KVB_OWN(drop_bridge_conf) struct kvb_conf *conf = NULL;
    KVB_OWN(drop_bridge_conf) struct kvb_conf *workers_file = NULL;
    struct kvb_bridge_config config = { .worker_count = 0 };

    KVB_TRY(kvb_conf_open(path, errors, &conf));
    KVB_TRY(kvb_conf_read(conf, &table, &config));
    config.kubernetes.is_on &= kvb_conf_has(conf, "kubernetes");
    config.registering.networks.key = "register.networks";
    config.discovering.networks.key = "discover.networks";
    kvb_status status = read_workers_file(conf, &config, errors, &workers_file);
    if (status == KVB_OK) {
        status = settle_config(conf, &config);
    }
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
