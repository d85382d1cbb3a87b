#include "kvbridge/config.h"

#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "daemon/bearer_token.h"
#include "daemon/service.h"
#include "ingest/http/fetch.h"
#include "kvbridge/checkpoint_store.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/endpoint.h"
#include "kvbridge/kube_access.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

/* ---- While the files are read ---- */

enum { topic_bytes = 128 };

/* A group of `workers`.  The spec borrows its texts from the file, and from this struct. */
struct worker_group {
    struct kvb_worker_spec spec;
    uint64_t ids[kvb_max_ranks];
    size_t id_count;
    uint64_t drop_groups[kvb_max_drop_groups];
    size_t drop_group_count;
    struct kvb_worker_facts facts;
    char made_discover[kvb_config_url_bytes]; /* of discover = "address" */
    uint32_t events_port;                     /* of the defaults alone */
    uint32_t replay_port;                     /* of the defaults alone */
    uint32_t metrics_port;                    /* of the defaults alone */
};

struct bridge_file {
    struct kvb_bridge_config config; /* must be first: rows have the offsets of its fields */
    struct worker_group defaults;
    struct worker_group *workers; /* owned */
    size_t worker_count;
};

/* ---- Names of values ---- */

static const char *tiers_name(unsigned value)
{
    return value == KVB_PUBLISH_ALL ? "all" : "device";
}

static const char *style_name(unsigned value)
{
    static const char *const names[KVB_REPUBLISH_STYLE_COUNT] = { "vllm", "aibrix", "dynamo" };
    return names[value];
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

static kvb_status take_format(void *field, const char *text, struct kvb_detail *detail)
{
    unsigned *formats = field;

    for (enum kvb_format format = 0; format < KVB_FORMAT_COUNT; format++) {
        if (strcmp(text, kvb_format_name(format)) == 0) {
            *formats |= 1U << format;
            return KVB_OK;
        }
    }
    kvb_detail_set(detail, "expected \"json\" or \"protobuf\"");
    return KVB_BAD_CONFIG;
}

/* Takes "*", which stands for all namespaces, or a name as in RFC 1123. */
static kvb_status take_namespace(void *field, const char *text, struct kvb_detail *detail)
{
    struct kvb_kubernetes_namespaces *list = field;
    const size_t len = strlen(text);
    const bool is_all = strcmp(text, "*") == 0;

    if (list->count == kvb_max_pod_sources) {
        kvb_detail_set(
            detail, "at most %d names: \"*\" watches all namespaces", kvb_max_pod_sources);
        return KVB_TOO_LARGE;
    }
    if (!is_all && (len == 0 || len > kvb_pod_namespace_bytes ||
                    strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)) {
        kvb_detail_set(
            detail, "a namespace has 1 to %d letters of a-z 0-9 -; \"*\" stands for all",
            kvb_pod_namespace_bytes);
        return KVB_BAD_INPUT;
    }
    (void)snprintf(list->names[list->count++], sizeof list->names[0], "%s", is_all ? "" : text);
    return KVB_OK;
}

/* ---- The keys: path, type, default, range, field, help ----------------------------- */

#define FIELD(field) KVB_CONF_FIELD(struct worker_group, field)

/* clang-format off */
static const struct kvb_conf_key worker_keys[] = {
    { "id", KVB_CONF_U64, NULL, 0, INT64_MAX, FIELD(spec.id),
      .otherwise = "made from its address",
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The instance id by which the router knows this engine.  Write numbers\n"
              "above 2147483647 as 5000000000L or \"5000000000\".  The default is\n"
              "computed from the address and stays the same as long as the address does;\n"
              "/state shows it." },
    { "ids", KVB_CONF_U64S, NULL, 0, INT64_MAX, FIELD(ids),
      .count_offset = offsetof(struct worker_group, id_count),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "Instead of `id`, one id for each rank, for routers that do not know ranks:\n"
              "Dynamo up to 1.3 with json ignores ranks, or clears all ranks of a worker\n"
              "at once." },
    { "model", KVB_CONF_TEXT, NULL, 1, kvb_model_bytes, FIELD(spec.model),
      .help = "The model that the engine serves; queries name it." },
    { "block_size", KVB_CONF_U32, NULL, 1, kvb_max_block_tokens, FIELD(spec.block_size),
      .help = "Tokens in a block.  A size in the events takes precedence." },
    { "hashes", KVB_CONF_ENUM, "canonical", 0, KVB_HASHES_COUNT - 1, FIELD(spec.hashes),
      .name_of = kvb_hashes_name,
      .help = "How blocks are named.  canonical: equal prefixes have equal names in the\n"
              "whole fleet.  engine: the engine's own names, for routers that want them\n"
              "and for events without tokens." },
    { "lora", KVB_CONF_TEXT, "", 0, kvb_model_bytes, FIELD(spec.lora),
      .help = "The LoRA adapter of events that name none; empty: the base model." },
    { "discover", KVB_CONF_TEXT, "", 0, kvb_config_url_bytes - 1, FIELD(spec.discover),
      .help = "The engine's HTTP address, such as http://host:8000.  The bridge reads\n"
              "events, replay, topic and ranks from its /kv_event_sources (vLLM 0.32) or\n"
              "/server_info (SGLang 0.5.23), and reads them again after a lost\n"
              "connection.  The engine must bind tcp://*:port.  \"address\": its `address`,\n"
              "as pods and members of a DNS name have one.  Empty: other keys give them,\n"
              "as for a pod without these pages." },
    { "discover_token_file", KVB_CONF_TEXT, "", 0, kvb_config_path_bytes - 1, FIELD(spec.discover_token_file),
      .help = "File with the API key that the engine's HTTP server wants, sent as a\n"
              "bearer token with requests to `discover`; read again for each.  Empty:\n"
              "none.  Only its owner and its group may have access." },
    { "events", KVB_CONF_TEXT, NULL, 1, kvb_endpoint_bytes - 1, FIELD(spec.events), .instead = "discover",
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The PUB socket of the engine: tcp://host:port (rank r uses port + r),\n"
              "ipc://path or inproc://name." },
    { "replay", KVB_CONF_TEXT, "", 0, kvb_endpoint_bytes - 1, FIELD(spec.replay),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The replay socket of the engine, in the same forms; empty: it has none,\n"
              "and lost events cannot be requested again." },
    { "first_rank", KVB_CONF_U32, "0", 0, kvb_max_ranks - 1, FIELD(spec.first_rank),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The first data-parallel rank that this bridge reads; it is added to\n"
              "the ports." },
    { "ranks", KVB_CONF_U32, "1", 1, kvb_max_ranks, FIELD(spec.ranks),
      .help = "How many data-parallel ranks this bridge reads." },
    { "topic", KVB_CONF_TEXT, "", 0, topic_bytes - 1, FIELD(spec.topic),
      .help = "Take only messages whose topic begins with this text." },
    { "bind", KVB_CONF_BOOL, "false", 0, 0, FIELD(spec.bind),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "true: the bridge listens at `events`, for engines that connect to it." },
    { "unknown_medium", KVB_CONF_ENUM, "external", 0, KVB_TIER_COUNT - 1, FIELD(spec.unknown_medium),
      .name_of = kvb_tier_name,
      .help = "The tier of blocks in an unknown medium; such events are counted.  Choose\n"
              "device only if every such medium is device memory." },
    { "offload_removals", KVB_CONF_ENUM, "detect", 0, KVB_OFFLOAD_COUNT - 1, FIELD(spec.offload_removals),
      .name_of = kvb_offload_removals_name,
      .help = "Whether the engine publishes which blocks leave the tiers host, disk and\n"
              "external: complete, incomplete, or detect: a tier counts as complete from\n"
              "its first removal on.  The list of a tier that is not is\n"
              "UNVERIFIED(no_removals); that of the device is not affected." },
    { "speculative_drop", KVB_CONF_U32, NULL, 0, kvb_max_speculative_drop, FIELD(spec.speculative_drop),
      .otherwise = "found",
      .help = "Blocks by which the engine gives a request less than it holds: 1 for vLLM\n"
              "with EAGLE or MTP, up to 0.32, and from 0.33 on where the blocks' hashes\n"
              "have no lookahead (disable_lookahead_block_hashes, or a KV connector).\n"
              "Ignored while the blocks have lookahead.  Without the key it is found, if\n"
              "/server_info or the pod's arguments name the method; if the metrics page\n"
              "shows speculation of an unknown method: UNVERIFIED(speculation)." },
    { "speculative_drop_groups", KVB_CONF_U64S, NULL, 0, kvb_max_drop_groups - 1,
      FIELD(drop_groups),
      .count_offset = offsetof(struct worker_group, drop_group_count),
      .help = "In a model with several cache groups, the numbers (group_idx) of those that\n"
              "drop these blocks.  None: those of full attention, where the draft model\n"
              "is; all of them in a model of windows alone." },
    { "attention_chunk", KVB_CONF_U32, "0", 0, INT32_MAX, FIELD(spec.attention_chunk),
      .help = "Tokens in a chunk of chunked local attention (attention_chunk_size in the\n"
              "model's config.json), which its events do not give; 0: not known, such a\n"
              "stream is UNVERIFIED(groups)." },
    { "salts", KVB_CONF_BOOL, "true", 0, 0, FIELD(spec.has_salts),
      .help = "false: no request to this engine has a cache salt, an adapter or an image.\n"
              "vLLM up to 0.16 and SGLang before 0.5.20 do not publish them: such a\n"
              "stream is UNVERIFIED(salts) unless this is false.  Events that name them\n"
              "are read in any case." },
    { "sglang_hybrid", KVB_CONF_BOOL, "false", 0, 0, FIELD(spec.is_sglang_hybrid),
      .help = "true: an SGLang engine whose model has sliding-window or Mamba layers.\n"
              "SGLang publishes nothing of these, so its stream is UNVERIFIED(groups).\n"
              "The metrics page shows it too, if load.prometheus is set." },
    { "offload_chunk_blocks", KVB_CONF_U32, "0", 0, kvb_max_chunk_blocks,
      FIELD(spec.offload_chunk_blocks),
      .help = "Blocks of the device in a chunk of vLLM's offload connector\n"
              "(blocks_per_chunk), which are loaded together only.  0: as its events show;\n"
              "they do not without self_describing_kv_events." },
    { "store", KVB_CONF_BOOL, "false", 0, 0, FIELD(spec.store),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "true: this is not an engine but a store that all workers share, so no\n"
              "request is routed to it.  Its replay, if it has one, is asked as in Mooncake's\n"
              "subscriber guide.  Implied by events that only a store sends." },
    { "address", KVB_CONF_STRING, "", 0, FIELD(facts.address),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The URL at which routers reach the engine, such as http://10.0.0.7:8000.\n"
              "It is published unchanged, and answers to route requests contain it;\n"
              "empty: not known." },
    { "tokenize", KVB_CONF_STRING, "", 0, FIELD(facts.tokenize),
      .help = "The URL at which aggregators ask the engine for the tokens of a text, such\n"
              "as http://10.0.0.7:8000: they POST to /tokenize there.  It is published.\n"
              "\"address\": its `address`.  Empty: they do not ask this engine." },
    { "role", KVB_CONF_ENUM, "", 0, KVB_ROLE_COUNT - 1, FIELD(facts.role), .name_of = kvb_worker_role_name,
      .help = "What the engine does where prefill and decode are separate; route requests\n"
              "can select by it." },
    { "labels", KVB_CONF_PAIRS, NULL, 0, 0, FIELD(facts.labels), .take_pair = take_worker_label,
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "Names and values by which route requests select workers: at most 16, of\n"
              "512 bytes in all.  A label named address or role sets that key.  A change\n"
              "of address, tokenize, role or labels is published and does not interrupt the stream." },
    { "total_blocks", KVB_CONF_U64, "0", 0, kvb_max_stream_blocks, FIELD(spec.total_blocks),
      .help = "Blocks that the device memory of one rank holds; 0: not known.  Ignored,\n"
              "with a log line, once the engine holds more." },
    { "republish.events", KVB_CONF_TEXT, "", 0, kvb_endpoint_bytes - 1, FIELD(spec.republish.events),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "Publish its events once more, repaired, for routers that read engines\n"
              "themselves: the address to listen at, tcp://127.0.0.1:5657 (rank r:\n"
              "port + r) or ipc://path.  Empty: off.  Token ids stay in memory then, and\n"
              "leave the host where the address is not loopback." },
    { "republish.replay", KVB_CONF_TEXT, "", 0, kvb_endpoint_bytes - 1, FIELD(spec.republish.replay),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "Where they ask for what they missed, in the same forms; empty: nowhere." },
    { "republish.topic", KVB_CONF_TEXT, "", 0, topic_bytes - 1, FIELD(spec.republish.topic),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The topic of all its messages; empty: kv@HOST:PORT@MODEL, which llm-d reads." },
    { "republish.style", KVB_CONF_ENUM, "vllm", 0, KVB_REPUBLISH_STYLE_COUNT - 1,
      FIELD(spec.republish.style), .name_of = style_name,
      .help = "What its readers take.  vllm: events as maps, as vLLM writes them from 0.24 on;\n"
              "who subscribes, or asks from number 0, has all blocks announced to all readers,\n"
              "at most every 10 s.  aibrix: the same with events as arrays.  dynamo: maps; who\n"
              "asks from number 0 alone is sent all blocks, and nothing is announced." },
    { "load.zmq", KVB_CONF_TEXT, "", 0, kvb_endpoint_bytes - 1, FIELD(spec.load.zmq),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The PUB socket of the engine's load figures, one for all ranks;\n"
              "empty: none." },
    { "load.prometheus", KVB_CONF_TEXT, "", 0, kvb_max_page_url_bytes - 1, FIELD(spec.load.prometheus),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The engine's metrics page, such as http://host:port/metrics, of vLLM or\n"
              "SGLang, one for all ranks; empty: none." },
    { "load.scrape_ms", KVB_CONF_U32, "1000", 50, 60000, FIELD(spec.load.scrape_ms),
      .help = "How often the metrics page is read, in ms." },
    { "load.coordinator", KVB_CONF_TEXT, "", 0, kvb_endpoint_bytes - 1, FIELD(spec.load.coordinator),
      .scope = KVB_CONF_OF_A_GROUP,
      .help = "The socket at which vLLM's data-parallel coordinator publishes the load of\n"
              "all ranks.  The bridge only reads it; empty: none." },
    { "load.total_slots", KVB_CONF_U64, "0", 0, UINT32_MAX, FIELD(spec.load.total_slots),
      .help = "How many requests the engine runs at once, if its load figures do not say;\n"
              "0: not known." },
    { "events_port", KVB_CONF_U32, NULL, 0, UINT16_MAX, FIELD(events_port),
      .scope = KVB_CONF_OF_DEFAULTS, .otherwise = "5557",
      .help = "The port of PUB sockets, of members of a DNS name and of pods that name\n"
              "none; 0: such pods are not taken.  Rank r uses port + r." },
    { "replay_port", KVB_CONF_U32, NULL, 0, UINT16_MAX, FIELD(replay_port),
      .scope = KVB_CONF_OF_DEFAULTS, .otherwise = "pods 6557; aibrix 5558; dns, llm-d, dynamo none",
      .help = "The same of replay sockets; 0: the engines have none." },
    { "metrics_port", KVB_CONF_U32, NULL, 0, UINT16_MAX, FIELD(metrics_port),
      .scope = KVB_CONF_OF_DEFAULTS, .otherwise = "pods 8000; dns none",
      .help = "The same of HTTP: the bridge reads /metrics there.  Of members of a DNS\n"
              "name it is the `address` too; 0: none." },
};
#undef FIELD

#define NO_CURVE                                                                                   \
    "no engine uses CURVE; keep the sockets on loopback (a sidecar), or encrypt the network "      \
    "between the hosts (a mesh, WireGuard)"
static const struct kvb_conf_removed removed_of_worker[] = {
    { "curve", NO_CURVE },
    { "republish.curve", NO_CURVE },
    { "republish.form", "republish.style says it: \"vllm\" writes maps, \"aibrix\" arrays" },
    { "republish.layout", "replies have the topic, as those of vLLM from 0.26 on" },
    { "republish.from_zero", "republish.style says it: \"dynamo\" answers with a snapshot" },
    { "republish.announce_on_subscribe", "republish.style says it: all but \"dynamo\" announce" },
    { "republish.tiers", "the blocks of the device are republished" },
    { "replay_request", "store = true says it: stores are asked as Mooncake's guide says" },
};

static const struct kvb_conf_table worker_table = { worker_keys, KVB_COUNT_OF(worker_keys),
                                                    sizeof(struct worker_group),
                                                    removed_of_worker,
                                                    KVB_COUNT_OF(removed_of_worker) };

#define FIELD(field) KVB_CONF_FIELD(struct kvb_bridge_config, field)

static const struct kvb_conf_key keys[] = {
    KVB_CONFIG_NATS_ROWS(struct kvb_bridge_config),
    { "publish.namespace", KVB_CONF_STRING, NULL, 1, FIELD(publish.name_space),
      .help = "The subjects below begin with P =\n"
              "namespace.{namespace}.component.{component}, the names by which routers\n"
              "know the workers." },
    { "publish.component", KVB_CONF_STRING, NULL, 1, FIELD(publish.component),
      .help = "The second part of P.  All bridges whose workers share one router use the\n"
              "same names." },
    { "publish.formats", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(publish.formats),
      .take_text = take_format,
      .help = "How events are published.  \"json\", on P.kv_events, for routers that read\n"
              "RouterEvents; \"protobuf\", on P.kv_events_pb, for kvaggregator, which is\n"
              "smaller and faster; or both.  None: \"json\"." },
    { "publish.tiers", KVB_CONF_ENUM, "device", 0, KVB_PUBLISH_TIERS_COUNT - 1,
      FIELD(publish.tiers), .name_of = tiers_name,
      .help = "The tiers that json has: device for readers that do not know tiers,\n"
              "all for readers that do.  protobuf has all." },
    { "publish.copies", KVB_CONF_ENUM, "interval", 0, KVB_COPIES_COUNT - 1,
      FIELD(publish.copies), .name_of = kvb_copies_name,
      .help = "What a stored event for a block that is already held means.  interval:\n"
              "a second copy or a repeated announcement, by its context; a block\n"
              "whose context does not show which becomes doubtful.  count: always a\n"
              "second copy, which is exact if no request sets vLLM's\n"
              "kv_cache_report_mode to \"full\"." },
    { "publish.reannounce", KVB_CONF_ENUM, "auto", 0, KVB_REANNOUNCE_COUNT - 1,
      FIELD(publish.reannounce), .name_of = kvb_reannounce_name,
      .help = "on_loss: publish the whole stream again when events may have been lost on\n"
              "the way to NATS.\n"
              "never: readers notice the gap in the event ids and send a request.\n"
              "auto: on_loss for json, never for protobuf." },
    { "publish.refresh_s", KVB_CONF_U32, NULL, 0, 86400, FIELD(publish.refresh_s),
      .otherwise = "60 for json",
      .help = "In json, store all held blocks again within this time, in seconds, so that\n"
              "a router that starts late receives them; 0: only on a request to\n"
              "P.kv_refresh.  No effect with reannounce = never." },
    { "publish.down_clear_ms", KVB_CONF_U32, "5000", 0, 3600000, FIELD(publish.down_clear_ms),
      .help = "Publish a clear after an engine has been unreachable this long, in ms; 0\n"
              "disables it." },
    { "publish.load_period_ms", KVB_CONF_U32, "100", 10, 60000, FIELD(publish.load_period_ms),
      .help = "How often load figures are published, in ms." },
    { "publish.heartbeat_ms", KVB_CONF_U32, "1000", 100, 60000, FIELD(publish.heartbeat_ms),
      .help = "How often each stream publishes its state, in ms." },
    { "publish.labels", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(publish.labels),
      .take_text = take_published_label,
      .help = "Names of the labels that are published, at most 16.  Empty: all labels of\n"
              "configured and registered workers, and no label of a pod." },
    { "defaults", KVB_CONF_DEFAULTS, .items = &worker_table,
      .offset = offsetof(struct bridge_file, defaults),
      .help = "What a worker has that its source does not say: the groups of `workers`\n"
              "and of workers_file, members of the DNS name, pods, registrations.  Keys\n"
              "as in `workers`:" },
    { "workers", KVB_CONF_LIST, NULL, 0, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct bridge_file, workers),
      .count_offset = offsetof(struct bridge_file, worker_count),
      .help = "One group for each engine.  SIGHUP reads the list again." },
    { "workers_file", KVB_CONF_STRING, "", 0, FIELD(workers_file),
      .help = "Path of a file that a program writes, with more workers: only a list named\n"
              "`workers`.  Replace it with rename(2).  SIGHUP reads it again." },
    { "watch_files", KVB_CONF_BOOL, "false", 0, 0, FIELD(watch_files),
      .help = "true: a change of this file or of workers_file has the effect of SIGHUP.\n"
              "This also works for a mounted ConfigMap of Kubernetes." },
    { "dns.name", KVB_CONF_STRING, "", 0, FIELD(dns.name),
      .help = "A DNS name whose addresses are engines, such as a headless Service.  Each\n"
              "address is a worker; `defaults` gives its model, block_size and ports.  A\n"
              "worker is removed when three answers in a row lack it; failed look-ups\n"
              "change nothing.  Empty: none." },
    { "dns.period_s", KVB_CONF_U32, "5", 1, 3600, FIELD(dns.period_s),
      .help = "How often the name is looked up, in seconds." },
    { "kubernetes.namespaces", KVB_CONF_TEXTS, NULL, 0, 0, FIELD(kubernetes.namespaces),
      .take_text = take_namespace,
      .help = "This group makes pods workers.  What their labels, annotations, ports and\n"
              "arguments do not say is in `defaults`.  The namespaces whose pods are\n"
              "watched; \"*\": all; empty: the namespace of the bridge's own pod, or of the\n"
              "kubeconfig." },
    { "kubernetes.selector", KVB_CONF_STRING, "", 0, FIELD(kubernetes.selector),
      .help = "Label selector as in kubectl, such as app=vllm; empty: the selector of the\n"
              "preset; the preset \"ports\" selects all pods." },
    { "kubernetes.field_selector", KVB_CONF_STRING, "", 0, FIELD(kubernetes.field_selector),
      .help = "Field selector as in kubectl, such as spec.nodeName=$(NODE_NAME) for one\n"
              "bridge on each node; empty: none." },
    { "kubernetes.preset", KVB_CONF_ENUM, "ports", 0, KVB_POD_PRESET_COUNT - 1,
      FIELD(kubernetes.rules.preset), .name_of = kvb_pod_preset_name,
      .help = "The system whose labels and annotations give ports, model and role.\n"
              "Container ports named kv-events, kv-replay, metrics and http always\n"
              "come first." },
    { "kubernetes.model_label", KVB_CONF_STRING, "", 0, FIELD(kubernetes.rules.model_label),
      .help = "Label or annotation that has the model's name; empty: the one of\n"
              "the preset." },
    { "kubernetes.role_label", KVB_CONF_STRING, "llm-d.ai/role", 0,
      FIELD(kubernetes.rules.role_label),
      .help = "Label or annotation that has the role: prefill, decode or both." },
    { "kubernetes.id_from", KVB_CONF_STRING, "name", 1, FIELD(kubernetes.id_from),
      .help = "From what a worker's id is made: name (Dynamo's hash of the pod's name),\n"
              "uid, or label:KEY, a label or annotation whose value is a number." },
    { "kubernetes.kubeconfig", KVB_CONF_STRING, "", 0, FIELD(kubernetes.kubeconfig),
      .help = "Path of a kubeconfig as for kubectl.  Server, certificates and user are\n"
              "those of its current context.  It is read again every minute.  Only its\n"
              "owner and its group may have access.  Empty: the bridge runs in a pod, and\n"
              "takes them from the pod's environment and service account." },
    { "register.token_file", KVB_CONF_STRING, "", 0, FIELD(registering.token_file),
      .help = "Path of a file with the token that a POST to /register or /unregister must\n"
              "carry; empty: nobody may register.  Only its owner and its group may have\n"
              "access (chmod 0640)." },
    { "limits.max_stream_blocks", KVB_CONF_U64, "4194304", 1024, kvb_max_stream_blocks,
      FIELD(limits.max_stream_blocks),
      .help = "Most blocks that are kept of one rank, about 60 bytes each." },
    { "limits.sync_blocks", KVB_CONF_U64, "16384", 0, kvb_max_router_blocks,
      FIELD(limits.sync_blocks),
      .help = "Blocks of one rank's newest events, 16 bytes each, that are kept for\n"
              "aggregators that missed some; 0: aggregators\n"
              "receive all held blocks instead.  Below 9152, batches that arrive together\n"
              "do not share a message of protobuf." },
    { "checkpoint", KVB_CONF_STRING, "", 0, FIELD(checkpoint),
      .help = "Directory from which a restarted bridge restores its streams; empty: it\n"
              "requests them from the engines.  Under systemd: /var/lib/kvbridge." },
    { "checkpoint_s", KVB_CONF_U32, "10", 1, 3600, FIELD(checkpoint_s),
      .help = "How often a changed stream is written there, in seconds." },
    KVB_CONFIG_HTTP_ROWS(struct kvb_bridge_config, "127.0.0.1:9401"),
    KVB_CONFIG_LOG_ROWS(struct kvb_bridge_config),
};
#undef FIELD

/* The list that workers_file contains. */
struct generated_workers {
    struct worker_group *items; /* owned */
    size_t count;
};

static const struct kvb_conf_key generated_keys[] = {
    { "workers", KVB_CONF_LIST, NULL, 0, kvb_max_workers, .items = &worker_table,
      .offset = offsetof(struct generated_workers, items),
      .count_offset = offsetof(struct generated_workers, count) },
};
/* clang-format on */

static const struct kvb_conf_table generated_table = { .keys = generated_keys,
                                                       .count = 1,
                                                       .bytes = sizeof(struct generated_workers) };

#define NO_NETWORKS                                                                                \
    "link-local addresses and metadata services of clouds are always refused; restrict further "   \
    "with a firewall or a NetworkPolicy"
#define KUBECONFIG                                                                                 \
    "a kubeconfig says it (kubernetes.kubeconfig), with certificate-authority and tokenFile"
#define IN_DEFAULTS(key) "defaults." key " serves every source of workers"
#define AT_ADDRESS(key) "defaults." key " = \"address\" serves every source of workers"
static const struct kvb_conf_removed removed[] = {
    { "publish.profile",
      "publish.formats = [\"json\"], [\"protobuf\"] or both serves; protobuf is on "
      "the subject kv_events_pb" },
    { "publish.clear",
      "a clear is published as `cleared`, which Dynamo understands from 0.3.1 on" },
    { "publish.standby",
      "one bridge publishes a stream; let systemd or the kubelet restart it, and set checkpoint" },
    { "publish.endpoint_name", "load figures have \"generate\"" },
    { "publish.hashes", IN_DEFAULTS("hashes") },
    { "publish.load_expire_ms", "load figures are published for 3 s" },
    { "limits.max_held_bytes", "64 MiB of a rank's live events wait for a replay" },
    { "limits.max_replay_bytes", "64 MiB of a replay wait to be applied" },
    { "announce_to", "etc/examples/announce.py registers republished ranks at Dynamo's services" },
    { "dns.curve", NO_CURVE },
    { "dns.srv",
      "dns.name with an A or AAAA record for each engine, and defaults.events_port, serve for it" },
    { "kubernetes.curve", NO_CURVE },
    { "dns.port", IN_DEFAULTS("events_port") },
    { "dns.model", IN_DEFAULTS("model") },
    { "dns.block_size", IN_DEFAULTS("block_size") },
    { "dns.hashes", IN_DEFAULTS("hashes") },
    { "dns.ranks", IN_DEFAULTS("ranks") },
    { "dns.speculative_drop", IN_DEFAULTS("speculative_drop") },
    { "dns.attention_chunk", IN_DEFAULTS("attention_chunk") },
    { "dns.topic", IN_DEFAULTS("topic") },
    { "dns.salts", IN_DEFAULTS("salts") },
    { "dns.sglang_hybrid", IN_DEFAULTS("sglang_hybrid") },
    { "dns.replay_port", IN_DEFAULTS("replay_port") },
    { "dns.metrics_port", IN_DEFAULTS("metrics_port") },
    { "dns.tokenize", AT_ADDRESS("tokenize") },
    { "kubernetes.events_port", IN_DEFAULTS("events_port") },
    { "kubernetes.model", IN_DEFAULTS("model") },
    { "kubernetes.block_size", IN_DEFAULTS("block_size") },
    { "kubernetes.hashes", IN_DEFAULTS("hashes") },
    { "kubernetes.ranks", IN_DEFAULTS("ranks") },
    { "kubernetes.speculative_drop", IN_DEFAULTS("speculative_drop") },
    { "kubernetes.attention_chunk", IN_DEFAULTS("attention_chunk") },
    { "kubernetes.topic", IN_DEFAULTS("topic") },
    { "kubernetes.salts", IN_DEFAULTS("salts") },
    { "kubernetes.sglang_hybrid", IN_DEFAULTS("sglang_hybrid") },
    { "kubernetes.replay_port", IN_DEFAULTS("replay_port") },
    { "kubernetes.metrics_port", IN_DEFAULTS("metrics_port") },
    { "kubernetes.tokenize", AT_ADDRESS("tokenize") },
    { "kubernetes.discover", AT_ADDRESS("discover") },
    { "kubernetes.discover_token_file", IN_DEFAULTS("discover_token_file") },
    { "kubernetes.enabled", "without the group no pods are watched" },
    { "kubernetes.api", KUBECONFIG },
    { "kubernetes.token_file", KUBECONFIG },
    { "kubernetes.ca_file", KUBECONFIG },
    { "kubernetes.watch_s", "a watch lasts about 5 minutes" },
    { "http_security.client_ca_file", KVB_CONFIG_NO_CLIENT_CA },
    { "register.networks", NO_NETWORKS },
    { "discover", NO_NETWORKS },
};

static const struct kvb_conf_table table = { keys, KVB_COUNT_OF(keys), sizeof(struct bridge_file),
                                             removed, KVB_COUNT_OF(removed) };

void kvb_bridge_config_done(struct kvb_bridge_config *config)
{
    kvb_worker_list_done(&config->workers);
    kvb_worker_spec_unref(config->defaults.spec);
    *config = (struct kvb_bridge_config){ 0 };
}

bool kvb_worker_defaults_are_same(
    const struct kvb_worker_defaults *one, const struct kvb_worker_defaults *other)
{
    return one->events_port == other->events_port && one->replay_port == other->replay_port &&
           one->metrics_port == other->metrics_port &&
           kvb_worker_specs_are_same(one->spec, other->spec) &&
           kvb_spec_facts_are_same(&one->spec->facts, &other->spec->facts);
}

const struct kvb_conf_table *kvb_bridge_config_keys(void)
{
    return &table;
}

/* ---- Worker ids ------------------------------------------------------------------------ */

enum { key_bytes = 64, place_bytes = kvb_config_path_bytes + 32, usual_refresh_s = 60 };

static const char *worker_key_path(char text[key_bytes], size_t worker, const char *key)
{
    (void)snprintf(text, key_bytes, "workers[%zu].%s", worker, key);
    return text;
}

static void make_ids(struct bridge_file *file)
{
    /* Before ids are compared, because a computed id may equal a configured one. */
    for (size_t i = 0; i < file->worker_count; i++) {
        struct kvb_worker_spec *worker = &file->workers[i].spec;
        if (worker->id == UINT64_MAX && worker->id_count == 0) {
            worker->id = kvb_worker_id_of_address(worker);
            worker->is_id_made = true;
        }
    }
}

/* A worker id and where the file has it.  After sorting, equal ids are adjacent. */
struct numbered {
    uint64_t id;
    size_t worker;
    size_t at; /* index in `ids`; 0 for `id` */
};

static int compare_worker_ids(const void *one, const void *other)
{
    const struct numbered *a = one;
    const struct numbered *b = other;

    if (a->id != b->id) {
        return a->id < b->id ? -1 : 1;
    }
    /* In the order of the file, so that the later one is the one at fault. */
    if (a->worker != b->worker) {
        return a->worker < b->worker ? -1 : 1;
    }
    return (a->at > b->at) - (a->at < b->at);
}

static const char *
id_key(char text[key_bytes], const struct bridge_file *file, const struct numbered *numbered)
{
    char key[key_bytes] = "id";

    if (file->workers[numbered->worker].id_count > 0) {
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

static void
say_equal_ids(struct kvb_conf *conf, const struct bridge_file *file, const struct numbered *pair)
{
    char first[key_bytes];
    char second[key_bytes];
    char place[place_bytes];

    const struct kvb_conf_place there = kvb_conf_place_of(conf, id_key(first, file, &pair[0]));
    const struct kvb_conf_place here = kvb_conf_place_of(conf, id_key(second, file, &pair[1]));
    kvb_conf_error(
        conf, second, "worker id %" PRIu64 " is used in %s already: give each its own", pair[1].id,
        place_text(place, &there, &here));
}

/* `ids` needs one id for each rank, and excludes `id`. */
static void
check_id_count(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char key[key_bytes];

    /* With `discover` only the engine says how many ranks there are. */
    if (worker->id_count > 0 && worker->id_count != worker->ranks && worker->discover[0] == '\0') {
        kvb_conf_error(
            conf, worker_key_path(key, number, "ids"),
            "has %zu ids for %u ranks: give one for each", worker->id_count, worker->ranks);
    }
    if (worker->id_count > 0 && worker->id != UINT64_MAX) {
        kvb_conf_error(conf, worker_key_path(key, number, "id"), "leave it out: `ids` replaces it");
    }
}

static size_t number_ids(const struct bridge_file *file, struct numbered *out)
{
    size_t count = 0;

    for (size_t i = 0; i < file->worker_count; i++) {
        const struct kvb_worker_spec *worker = &file->workers[i].spec;
        const size_t ids = worker->id_count > 0 ? worker->id_count : 1;
        for (size_t at = 0; at < ids; at++) {
            out[count++] = (struct numbered){ kvb_worker_id_of_rank(worker, (uint32_t)at), i, at };
        }
    }
    return count;
}

static kvb_status check_ids(struct kvb_conf *conf, const struct bridge_file *file)
{
    struct numbered *ids =
        calloc(file->worker_count * kvb_max_ranks + 1, sizeof *ids); /* 24 MiB at most */

    if (!ids) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < file->worker_count; i++) {
        check_id_count(conf, &file->workers[i].spec, i);
    }
    const size_t count = number_ids(file, ids);
    qsort(ids, count, sizeof *ids, compare_worker_ids);
    for (size_t i = 1; i < count; i++) {
        /* Above INT64_MAX there is no id: its mistake was reported. */
        if (ids[i].id == ids[i - 1].id && ids[i].id <= INT64_MAX) {
            say_equal_ids(conf, file, &ids[i - 1]);
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
    bool is_shared; /* several workers may name the same coordinator */
    bool is_ours;   /* the bridge listens there: see check_republish() */
    bool may_bind;  /* it listens there if `bind` is true */
} sockets[] = {
    { "events", offsetof(struct kvb_worker_spec, events), .is_per_rank = true, .may_bind = true },
    { "replay", offsetof(struct kvb_worker_spec, replay), .is_per_rank = true },
    { "republish.events", offsetof(struct kvb_worker_spec, republish.events), .is_per_rank = true,
      .is_ours = true },
    { "republish.replay", offsetof(struct kvb_worker_spec, republish.replay), .is_per_rank = true,
      .is_ours = true },
    { "load.zmq", offsetof(struct kvb_worker_spec, load.zmq), .is_shared = false },
    { "load.coordinator", offsetof(struct kvb_worker_spec, load.coordinator), .is_shared = true },
};

/* Refuses what no socket can use. */
static kvb_status
check_place(const struct kvb_endpoint *endpoint, bool binds, bool may_bind, struct kvb_detail *why)
{
    const char *place = (const char *)endpoint->place.data;
    const size_t len = endpoint->place.len;
    struct in6_addr address;
    char host[kvb_endpoint_host_bytes] = "";

    if (endpoint->scheme == KVB_ENDPOINT_INPROC) {
        kvb_detail_set(
            why, "inproc:// reaches no other process: give the engine tcp://*:PORT or ipc://path");
        return KVB_BAD_CONFIG;
    }
    if (endpoint->scheme == KVB_ENDPOINT_IPC) {
        return KVB_OK;
    }
    /* An engine's own endpoint is often copied to its reader: what an engine binds is not what a
     * bridge connects to. */
    if (len == 1 && place[0] == '*' && !binds) {
        kvb_detail_set(
            why,
            "* is where an engine listens, and a bridge cannot connect to it: write the "
            "engine's host instead of *%s",
            may_bind ? ", or set bind = true if the engine connects to this bridge" : "");
        return KVB_BAD_CONFIG;
    }
    if (place[0] != '[') {
        if (memchr(place, ':', len)) {
            kvb_detail_set(
                why, "an address of IPv6 needs brackets: tcp://[%.*s]:%u", (int)len, place,
                endpoint->port);
            return KVB_BAD_CONFIG;
        }
        return KVB_OK;
    }
    /* A zone, as in [fe80::1%eth0], is not part of the address. */
    if (len > 2 && len < sizeof host && place[len - 1] == ']') {
        memcpy(host, place + 1, len - 2);
        host[strcspn(host, "%")] = '\0';
    }
    /* Also what is no pair of brackets: `host` is empty then. */
    if (inet_pton(AF_INET6, host, &address) != 1) {
        kvb_detail_set(why, "in brackets: expected an address of IPv6, as in tcp://[fd00::7]:5557");
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* One endpoint that the file gives. */
struct claim {
    size_t worker;
    const char *key; /* a key of sockets[] */
    bool is_shared;
    struct kvb_endpoint_range range;
    struct claim *next; /* earlier claim in the same bucket */
};

enum { claim_buckets = 4096 };

/* A chained hash table by host: 8,192 workers have up to 49,152 endpoints. */
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

/* Reports only the clash with the first claim: otherwise one typing error would fill the list. */
static void add_claim(struct claims *claims, const struct claim *claim)
{
    struct claim **bucket = bucket_of_claim(claims, claim);
    const struct claim *first = NULL;

    /* The newest comes first in a bucket, so the last hit is the first in the file. */
    for (const struct claim *earlier = *bucket; earlier; earlier = earlier->next) {
        if (!(claim->is_shared && earlier->is_shared) &&
            kvb_endpoint_range_clashes(&claim->range, &earlier->range)) {
            first = earlier;
        }
    }
    if (first) {
        say_clash(claims->conf, claim, first);
    }
    /* Kept even if it clashes: a third one may clash with this one alone. */
    struct claim *kept = &claims->items[claims->count++];
    *kept = *claim;
    kept->next = *bucket;
    *bucket = kept;
}

static void claim_endpoint(
    struct claims *claims, const struct kvb_worker_spec *worker, size_t at, size_t socket)
{
    const char *text = NULL;
    struct claim claim = { .worker = at,
                           .key = sockets[socket].key,
                           .is_shared = sockets[socket].is_shared };
    struct kvb_detail detail;
    char key[key_bytes];

    memcpy(&text, (const uint8_t *)worker + sockets[socket].offset, sizeof text);
    if (text[0] == '\0') {
        return; /* none is given, or its error was already reported */
    }
    /* A socket for all ranks has one port; else the ports of all ranks are claimed. */
    const uint32_t first = sockets[socket].is_per_rank ? worker->first_rank : 0;
    const uint32_t ranks = sockets[socket].is_per_rank ? worker->ranks : 1;
    const bool may_bind = sockets[socket].may_bind;
    if (kvb_endpoint_range_of(text, first, ranks, &claim.range, &detail) != KVB_OK ||
        (!sockets[socket].is_ours &&
         check_place(&claim.range.base, may_bind && worker->bind, may_bind, &detail) != KVB_OK)) {
        kvb_conf_error(claims->conf, worker_key_path(key, at, claim.key), "%s", detail.text);
        return;
    }
    if (may_bind && worker->bind && kvb_endpoint_is_host_name(&claim.range.base)) {
        kvb_conf_warning(
            claims->conf, worker_key_path(key, at, claim.key),
            "with bind = true, %.*s must lead to an address of this host, else nothing can "
            "connect: "
            "write that address, a network interface, or *",
            (int)claim.range.base.place.len, (const char *)claim.range.base.place.data);
    }
    add_claim(claims, &claim);
}

static kvb_status check_endpoints(struct kvb_conf *conf, const struct bridge_file *file)
{
    const size_t max = file->worker_count * KVB_COUNT_OF(sockets);
    struct claims claims = { .conf = conf };

    claims.items = calloc(max ? max : 1, sizeof *claims.items);
    if (!claims.items) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < file->worker_count; i++) {
        for (size_t socket = 0; socket < KVB_COUNT_OF(sockets); socket++) {
            claim_endpoint(&claims, &file->workers[i].spec, i, socket);
        }
    }
    free(claims.items);
    return KVB_OK;
}

static void check_pages(struct kvb_conf *conf, const struct bridge_file *file)
{
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    for (size_t i = 0; i < file->worker_count; i++) {
        const char *url = file->workers[i].spec.load.prometheus;
        if (url[0] != '\0' && kvb_fetch_check_url(url, &detail) != KVB_OK) {
            kvb_conf_error(conf, worker_key_path(key, i, "load.prometheus"), "%s", detail.text);
        }
    }
}

static void
check_api_key(struct kvb_conf *conf, const char *key, const struct kvb_worker_spec *worker)
{
    char token[kvb_bearer_token_bytes];
    struct kvb_detail detail = { .text = "" };

    /* It is read again for each request, when a mistake in it is only logged; here it stops the
     * start. */
    if (worker->discover_token_file[0] != '\0' &&
        kvb_api_key_read(worker->discover_token_file, token, &detail) != KVB_OK) {
        kvb_conf_error(conf, key, "%s", detail.text);
    }
    explicit_bzero(token, sizeof token);
}

/* With `discover` the engine gives these settings, so the file must not.  What is a default may be
 * for other workers. */
static void check_discovered(
    struct kvb_conf *conf, const struct kvb_worker_spec *defaults,
    const struct kvb_worker_spec *worker, size_t number)
{
    const struct {
        const char *key;
        bool is_given;
    } advertised[] = {
        { "events", worker->events[0] != '\0' },
        { "replay", worker->replay[0] != '\0' },
        { "topic", strcmp(worker->topic, defaults->topic) != 0 },
        { "ranks", worker->ranks != defaults->ranks },
        { "first_rank", worker->first_rank != 0 },
        { "bind", worker->bind },
    };
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    if (kvb_fetch_check_url(worker->discover, &detail) != KVB_OK) {
        kvb_conf_error(conf, worker_key_path(key, number, "discover"), "%s", detail.text);
    }
    if (strcmp(worker->discover_token_file, defaults->discover_token_file) != 0) {
        check_api_key(conf, worker_key_path(key, number, "discover_token_file"), worker);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(advertised); i++) {
        if (advertised[i].is_given) {
            kvb_conf_error(
                conf, worker_key_path(key, number, advertised[i].key),
                "leave it out: with `discover` the engine gives it");
        }
    }
}

static void check_discovery(struct kvb_conf *conf, const struct bridge_file *file)
{
    const struct kvb_worker_spec *defaults = &file->defaults.spec;

    for (size_t i = 0; i < file->worker_count; i++) {
        const struct kvb_worker_spec *worker = &file->workers[i].spec;
        if (worker->discover[0] != '\0') {
            check_discovered(conf, defaults, worker, i);
            /* Only of its own group: the one of `defaults` is for those workers that are
             * discovered. */
        } else if (strcmp(worker->discover_token_file, defaults->discover_token_file) != 0) {
            char key[key_bytes];
            kvb_conf_error(
                conf, worker_key_path(key, i, "discover_token_file"),
                "is for requests to `discover`, which this worker does not have: leave it out");
        }
    }
    check_api_key(conf, "defaults.discover_token_file", defaults);
}

/* ---- Facts and defaults ------------------------------------------------------------------- */

/* True: it stands for the worker's `address`. */
static bool is_at_address(
    struct kvb_conf *conf, const struct kvb_worker_facts *facts, size_t number, const char *name,
    const char *value)
{
    char key[key_bytes];
    const bool is_named = strcmp(value, KVB_AT_ADDRESS) == 0;

    if (is_named && facts->address[0] == '\0') {
        kvb_conf_error(
            conf, worker_key_path(key, number, name),
            "is \"" KVB_AT_ADDRESS "\", and this worker has no `address`: add it");
    }
    return is_named;
}

static void settle_facts(struct kvb_conf *conf, struct bridge_file *file)
{
    const struct kvb_label_names *published = &file->config.publish.labels;
    struct kvb_detail detail = { .text = "" };
    char key[key_bytes];

    for (size_t i = 0; i < file->worker_count; i++) {
        struct worker_group *group = &file->workers[i];
        struct kvb_worker_facts *facts = &group->facts;
        if (!kvb_utf8_is_plain(facts->address)) {
            kvb_conf_error(
                conf, worker_key_path(key, i, "address"), "is not UTF-8: save the file as UTF-8");
        }
        if (kvb_worker_facts_settle(facts, &detail) != KVB_OK) {
            kvb_conf_error(conf, worker_key_path(key, i, "labels"), "%s", detail.text);
        }
        if (is_at_address(conf, facts, i, "tokenize", facts->tokenize)) {
            memcpy(facts->tokenize, facts->address, sizeof facts->tokenize);
        }
        /* The group has room for it, because a spec borrows its texts. */
        if (is_at_address(conf, facts, i, "discover", group->spec.discover)) {
            (void)snprintf(group->made_discover, sizeof group->made_discover, "%s", facts->address);
            group->spec.discover = group->made_discover;
        }
        /* A mistake in the default is reported once, by check_defaults(). */
        if (!kvb_worker_tokenize_is_valid(facts->tokenize) &&
            strcmp(facts->tokenize, file->defaults.facts.tokenize) != 0) {
            kvb_conf_error(
                conf, worker_key_path(key, i, "tokenize"),
                "expected http://host:port or https://host:port, perhaps with a path, without a "
                "user, a query or a slash at the end");
        }
        /* Last: labels named address or role were read above, and may be left out of what is
         * published. */
        if (published->count > 0) {
            kvb_labels_keep(&facts->labels, published);
        }
    }
}

static void check_defaults(struct kvb_conf *conf, const struct worker_group *defaults)
{
    if (defaults->spec.discover[0] != '\0' &&
        strcmp(defaults->spec.discover, KVB_AT_ADDRESS) != 0) {
        kvb_conf_error(
            conf, "defaults.discover",
            "expected \"" KVB_AT_ADDRESS "\": each engine is asked at its own address");
    }
    if (strcmp(defaults->facts.tokenize, KVB_AT_ADDRESS) != 0 &&
        !kvb_worker_tokenize_is_valid(defaults->facts.tokenize)) {
        kvb_conf_error(
            conf, "defaults.tokenize", "expected \"" KVB_AT_ADDRESS "\", or a URL for all workers");
    }
}

/* ---- Readers of P.kv_events ------------------------------------------------------------- */

static bool publishes_json(const struct kvb_bridge_config *config)
{
    return kvb_formats_have(config->publish.formats, KVB_FORMAT_JSON);
}

bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config)
{
    return publishes_json(config) && config->publish.reannounce != KVB_REANNOUNCE_NEVER;
}

static void settle_refresh(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    const bool is_given = config->publish.refresh_s != UINT32_MAX;

    /* UINT32_MAX: the key is absent. */
    if (kvb_bridge_config_refreshes(config)) {
        config->publish.refresh_s = is_given ? config->publish.refresh_s : usual_refresh_s;
        return;
    }
    if (is_given && config->publish.refresh_s > 0) {
        kvb_conf_warning(
            conf, "publish.refresh_s", "has no effect %s: readers request what they lack",
            publishes_json(config) ? "with publish.reannounce = \"never\""
                                   : "without \"json\" in publish.formats");
    }
    config->publish.refresh_s = 0;
}

static void
check_shared_id(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char key[key_bytes];

    if (worker->ranks > 1 && worker->ranks <= kvb_max_ranks && worker->id_count == 0) {
        kvb_conf_warning(
            conf, worker_key_path(key, number, "id"),
            "%u ranks share it: routers that do not know ranks apply a removal from one rank to "
            "all; `ids` gives each rank an id of its own",
            worker->ranks);
    }
}

/* A store has no device tier, so readers of that tier alone receive none of its blocks. */
static void check_store(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char key[key_bytes];

    if (worker->store) {
        kvb_conf_warning(
            conf, worker_key_path(key, number, "store"),
            "nothing of this store is published: json publishes only the device tier; set "
            "publish.tiers = \"all\" if all readers know tiers, or publish.formats = "
            "[\"protobuf\"]");
    }
}

/* Reports settings with which readers of json would lose or misread events.  Sets publish.refresh_s
 * when it is absent or has no effect. */
static void settle_readers(struct kvb_conf *conf, struct bridge_file *file)
{
    struct kvb_bridge_config *config = &file->config;
    const bool is_device_only = (kvb_published_lists(config) & 1U << KVB_TIER_HOST) == 0;

    settle_refresh(conf, config);
    for (size_t i = 0; i < file->worker_count && publishes_json(config); i++) {
        check_shared_id(conf, &file->workers[i].spec, i);
        if (is_device_only) {
            check_store(conf, &file->workers[i].spec, i);
        }
    }
}

/* ---- republish ----------------------------------------------------------------------------- */

static bool is_listen_host(kvb_span host, const char *text)
{
    return host.len == strlen(text) && memcmp(host.data, text, host.len) == 0;
}

/* Nobody outside this host can connect. */
static bool is_private(const struct kvb_endpoint *endpoint)
{
    static const char loopback[] = "127.";
    const kvb_span host = endpoint->place;

    return endpoint->scheme != KVB_ENDPOINT_TCP || is_listen_host(host, "[::1]") ||
           (host.len > strlen(loopback) && memcmp(host.data, loopback, strlen(loopback)) == 0);
}

/* An interface that this host lacks may come later, or be one of the host where the bridge runs. */
static void report_host_name(struct kvb_conf *conf, const char *key, const struct kvb_endpoint *at)
{
    const int len =
        (int)(at->place.len < kvb_endpoint_host_bytes ? at->place.len : kvb_endpoint_host_bytes);
    const char *host = (const char *)at->place.data;

    /* Too long for the name of an interface, or surely none. */
    if (at->place.len >= IF_NAMESIZE || is_listen_host(at->place, "localhost")) {
        kvb_conf_error(
            conf, key, "%.*s is a name: a socket listens at an address, such as 127.0.0.1, or *",
            len, host);
    } else {
        kvb_conf_warning(
            conf, key,
            "%.*s is neither an address nor a network interface of this host: nobody can connect "
            "before it is one",
            len, host);
    }
}

/* An address that is none is reported with the other endpoints. */
static void check_listener(struct kvb_conf *conf, const char *key, const char *text)
{
    struct kvb_endpoint endpoint;

    if (text[0] == '\0' || kvb_endpoint_parse(text, &endpoint, NULL) != KVB_OK) {
        return;
    }
    if (endpoint.scheme == KVB_ENDPOINT_INPROC) {
        kvb_conf_error(conf, key, "inproc:// reaches no other process: use tcp:// or ipc://");
    } else if (kvb_endpoint_is_host_name(&endpoint)) {
        report_host_name(conf, key, &endpoint);
    } else if (!is_private(&endpoint)) {
        kvb_conf_warning(
            conf, key,
            "%.64s is not loopback: token ids of prompts leave this host, unencrypted; "
            "listen at 127.0.0.1, or let only routers reach the port",
            text);
    }
}

static void
check_republished(struct kvb_conf *conf, const struct kvb_worker_spec *worker, size_t number)
{
    char events[key_bytes];
    char replay[key_bytes];
    char topic[key_bytes];

    (void)worker_key_path(events, number, "republish.events");
    (void)worker_key_path(replay, number, "republish.replay");
    (void)worker_key_path(topic, number, "republish.topic");
    if (!kvb_worker_is_republished(worker)) {
        if (worker->republish.replay[0] != '\0') {
            kvb_conf_error(conf, events, "is missing: replay alone republishes nothing");
        }
        return;
    }
    if (worker->store) {
        kvb_conf_error(
            conf, events, "leave it out: a store's events have no tokens, which readers need");
    }
    check_listener(conf, events, worker->republish.events);
    check_listener(conf, replay, worker->republish.replay);
    if (worker->republish.topic[0] == '\0' && strchr(worker->model, '@')) {
        kvb_conf_warning(
            conf, topic,
            "is kv@HOST:PORT@MODEL, and the model's name has an @: llm-d does not find the model");
    }
}

static void check_republish(struct kvb_conf *conf, const struct bridge_file *file)
{
    size_t ranks = 0;

    for (size_t i = 0; i < file->worker_count; i++) {
        const struct kvb_worker_spec *worker = &file->workers[i].spec;
        check_republished(conf, worker, i);
        ranks += kvb_worker_is_republished(worker) ? worker->ranks : 0;
    }
    if (ranks > kvb_max_republished_ranks) {
        kvb_conf_error(
            conf, "workers", "republishes %zu ranks: at most %d in one bridge", ranks,
            kvb_max_republished_ranks);
    }
}

/* ---- kubernetes ---------------------------------------------------------------------------- */

static void check_namespaces(struct kvb_conf *conf, const struct kvb_kubernetes_config *config)
{
    const struct kvb_kubernetes_namespaces *list = &config->namespaces;

    for (size_t i = 0; i < list->count; i++) {
        for (size_t other = 0; other < i; other++) {
            if (strcmp(list->names[i], list->names[other]) == 0) {
                kvb_conf_error(conf, "kubernetes.namespaces", "has a name twice: leave one out");
            }
        }
        if (list->names[i][0] == '\0' && list->count > 1) {
            kvb_conf_error(
                conf, "kubernetes.namespaces",
                "\"*\" stands for all namespaces: give it alone, or give names");
        }
    }
}

static void warn_of_kubeconfig(struct kvb_conf *conf, const struct kvb_detail *doubt)
{
    if (doubt->text[0] != '\0') {
        kvb_conf_warning(conf, "kubernetes.kubeconfig", "%s", doubt->text);
    }
}

static void check_kubeconfig(struct kvb_conf *conf, const struct kvb_kubernetes_config *config)
{
    struct kvb_detail detail = { .text = "" };
    struct kvb_kube_doubts doubts = { .token = { .text = "" } };

    if (config->kubeconfig[0] != '/') {
        kvb_conf_error(
            conf, "kubernetes.kubeconfig",
            "begin it with /: it must not depend on where the daemon starts");
    } else if (kvb_kube_access_check(config->kubeconfig, &doubts, &detail) != KVB_OK) {
        kvb_conf_error(conf, "kubernetes.kubeconfig", "%s", detail.text);
    }
    warn_of_kubeconfig(conf, &doubts.token);
    warn_of_kubeconfig(conf, &doubts.server);
}

static void settle_kubernetes(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    struct kvb_kubernetes_config *of = &config->kubernetes;

    if (!of->is_on) {
        return;
    }
    /* What a pod does not say is in `defaults`; pods/pod.c knows only these rules. */
    of->rules.events_port = config->defaults.events_port;
    of->rules.replay_port = config->defaults.replay_port;
    of->rules.metrics_port = config->defaults.metrics_port;
    of->rules.ranks = config->defaults.spec->ranks;
    of->rules.labels = config->publish.labels;
    (void)snprintf(of->rules.model, sizeof of->rules.model, "%s", config->defaults.spec->model);
    if (kvb_pod_rules_take_id(&of->rules, of->id_from) != KVB_OK) {
        kvb_conf_error(conf, "kubernetes.id_from", "expected name, uid or label:KEY");
    }
    check_namespaces(conf, of);
    if (of->kubeconfig[0] != '\0') {
        check_kubeconfig(conf, of);
    } else if (!secure_getenv("KUBERNETES_SERVICE_HOST")) { /* --check may run outside of the pod */
        kvb_conf_warning(
            conf, "kubernetes.kubeconfig",
            "is not set, and this is not a pod (KUBERNETES_SERVICE_HOST is not set either): "
            "outside a cluster give the path of a kubeconfig");
    }
}

/* ---- All together ------------------------------------------------------------------------- */

/* A missing directory is only a warning where it can be made, because systemd creates it at the
 * first start. */
static void check_checkpoint(struct kvb_conf *conf, const struct kvb_bridge_config *config)
{
    struct kvb_detail detail = { .text = "" };

    if (config->checkpoint[0] == '\0') {
        return;
    }
    if (config->checkpoint[0] != '/') {
        kvb_conf_error(
            conf, "checkpoint",
            "must begin with /, so that it does not depend on the working directory");
    } else if (kvb_checkpoint_directory_check(config->checkpoint, &detail) != KVB_OK) {
        if (kvb_checkpoint_directory_may_come(config->checkpoint)) {
            kvb_conf_warning(conf, "checkpoint", "%s", detail.text);
        } else {
            kvb_conf_error(conf, "checkpoint", "%s", detail.text);
        }
    }
}

static void check_token(struct kvb_conf *conf, const struct bridge_file *file)
{
    const struct kvb_bridge_config *config = &file->config;
    char token[kvb_bearer_token_bytes];
    struct kvb_detail detail = { .text = "" };
    const char *path = config->registering.token_file;

    if (path[0] != '\0' && kvb_bearer_token_read(path, token, &detail) != KVB_OK) {
        kvb_conf_error(conf, "register.token_file", "%s", detail.text);
    }
    /* A bridge without any source of workers would run and do nothing. */
    if (path[0] == '\0' && file->worker_count == 0 && config->workers_file[0] == '\0' &&
        !kvb_dns_list_is_configured(&config->dns) && !config->kubernetes.is_on) {
        kvb_conf_error(
            conf, "workers",
            "is empty: add a group, or set workers_file, kubernetes, dns.name, or "
            "register.token_file, so that workers can register");
    }
}

static void check_streams(struct kvb_conf *conf, const struct bridge_file *file)
{
    uint64_t streams = 0;

    for (size_t i = 0; i < file->worker_count; i++) {
        streams += file->workers[i].spec.ranks;
    }
    if (streams > kvb_max_streams) {
        kvb_conf_error(
            conf, "workers", "has %" PRIu64 " ranks in all: one bridge reads at most %d", streams,
            kvb_max_streams);
    }
}

static kvb_status check_bridge_config(struct kvb_conf *conf, const struct bridge_file *file)
{
    const struct kvb_bridge_config *config = &file->config;

    kvb_config_check_nats(conf, &config->nats);
    kvb_config_check_name(conf, "publish.namespace", config->publish.name_space, false);
    kvb_config_check_name(conf, "publish.component", config->publish.component, false);
    kvb_config_check_listener(conf, KVB_LISTENER_HTTP, config->http, &config->http_security);
    check_checkpoint(conf, config);
    check_token(conf, file);
    check_streams(conf, file);
    check_discovery(conf, file);
    kvb_dns_list_check(conf, &config->dns, &config->defaults);
    check_republish(conf, file);
    check_pages(conf, file);
    KVB_TRY(check_ids(conf, file));
    return check_endpoints(conf, file);
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
    struct kvb_conf *conf, struct bridge_file *file, const struct generated_workers *generated)
{
    const size_t count = file->worker_count + generated->count;

    if (count > kvb_max_workers) {
        kvb_conf_error(
            conf, "workers_file", "makes %zu workers in all: one bridge reads at most %d", count,
            kvb_max_workers);
        return KVB_OK;
    }
    /* No spec borrows from a group yet: attach() comes after the last move. */
    struct worker_group *workers = realloc(file->workers, (count + 1) * sizeof *workers);
    if (!workers) {
        return KVB_NO_MEMORY;
    }
    /* By plain copies: their texts belong to the file that was read, which stays open. */
    memcpy(&workers[file->worker_count], generated->items, generated->count * sizeof *workers);
    file->workers = workers;
    file->worker_count = count;
    return KVB_OK;
}

/* A file without the list `workers` is an error: it is unfinished, or the wrong file.  An empty
 * list is written as workers = (). */
static kvb_status read_workers_file(
    struct kvb_conf *conf, struct bridge_file *file, struct kvb_conf_errors *errors,
    struct kvb_conf **out_more)
{
    KVB_OWN(drop_generated) struct generated_workers generated = { 0 };
    const char *path = file->config.workers_file;

    if (path[0] == '\0') {
        return KVB_OK;
    }
    if (path[0] != '/') {
        kvb_conf_error(
            conf, "workers_file",
            "must begin with /, so that it does not depend on the working directory");
        return KVB_OK;
    }
    KVB_TRY(kvb_conf_open(path, errors, out_more));
    /* Errors in it count on from the list of the first file. */
    kvb_conf_continue(conf, "workers", file->worker_count, *out_more);
    KVB_TRY(kvb_conf_read_more(*out_more, &generated_table, &file->defaults, &generated));
    if (!generated.items && errors->count == 0) {
        kvb_conf_error(*out_more, "workers", "is missing: write workers = (); for an empty list");
    }
    return generated.items ? append_workers(conf, file, &generated) : KVB_OK;
}

/* The spec borrows what is in the group.  A group must not move afterwards. */
static void attach(struct worker_group *group)
{
    struct kvb_worker_spec *spec = &group->spec;

    spec->ids = group->ids;
    spec->id_count = group->id_count;
    for (size_t i = 0; i < group->drop_group_count; i++) {
        if (group->drop_groups[i] < kvb_max_drop_groups) { /* else an error was reported */
            spec->speculative_drop_groups |= 1U << group->drop_groups[i];
        }
    }
    spec->pod_uid = "";
    spec->model_rule = "";
    spec->facts = kvb_spec_facts_of(&group->facts);
}

static kvb_status settle_config(struct kvb_conf *conf, struct bridge_file *file)
{
    struct kvb_bridge_config *config = &file->config;

    if (config->publish.formats == 0) {
        config->publish.formats = 1U << KVB_FORMAT_JSON;
    }
    /* From here on specs borrow from their groups, and no group may move. */
    attach(&file->defaults);
    for (size_t i = 0; i < file->worker_count; i++) {
        attach(&file->workers[i]);
    }
    config->defaults = (struct kvb_worker_defaults){ .spec = &file->defaults.spec,
                                                     .events_port = file->defaults.events_port,
                                                     .replay_port = file->defaults.replay_port,
                                                     .metrics_port = file->defaults.metrics_port };
    settle_facts(conf, file);
    check_defaults(conf, &file->defaults);
    /* After the facts, which may have given `discover` its URL. */
    make_ids(file); /* from the addresses */
    settle_kubernetes(conf, config);
    settle_readers(conf, file);
    return check_bridge_config(conf, file);
}

/* Copies what is right, so that the files can be closed. */
static kvb_status keep_workers(struct bridge_file *file, struct kvb_bridge_config *out_config)
{
    struct kvb_bridge_config config = file->config;

    /* It pointed into the file, and is freed with the copy if memory runs out. */
    config.defaults.spec = NULL;
    kvb_status status = kvb_worker_spec_new(&file->defaults.spec, &config.defaults.spec);
    for (size_t i = 0; i < file->worker_count && status == KVB_OK; i++) {
        /* Again, because the labels that are not published were taken out meanwhile. */
        file->workers[i].spec.facts = kvb_spec_facts_of(&file->workers[i].facts);
        status = kvb_worker_list_add(&config.workers, &file->workers[i].spec);
    }
    if (status != KVB_OK) {
        kvb_bridge_config_done(&config);
        return status;
    }
    *out_config = config;
    return KVB_OK;
}

static void drop_bridge_file(struct bridge_file *file)
{
    kvb_conf_done(&table, file);
}

kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors)
{
    KVB_OWN(drop_bridge_conf) struct kvb_conf *conf = NULL;
    KVB_OWN(drop_bridge_conf) struct kvb_conf *more = NULL; /* workers_file */
    KVB_OWN(drop_bridge_file) struct bridge_file file = { .worker_count = 0 };

    KVB_TRY(kvb_conf_open(path, errors, &conf));
    KVB_TRY(kvb_conf_read(conf, &table, &file));
    /* The group alone turns it on: all of its keys have defaults. */
    file.config.kubernetes.is_on = kvb_conf_has(conf, "kubernetes");
    KVB_TRY(read_workers_file(conf, &file, errors, &more));
    KVB_TRY(settle_config(conf, &file));
    return errors->count > 0 ? KVB_BAD_CONFIG : keep_workers(&file, out_config);
}

/* ---- What follows from a configuration ------------------------------------------------------- */

static const unsigned all_lists = (1U << KVB_LIST_COUNT) - 1;

/* A reader of json may not know tiers, and would apply a removal from the host to the device.  The
 * window list has a subject to which such readers do not subscribe. */
unsigned kvb_json_lists(const struct kvb_bridge_config *config)
{
    return config->publish.tiers == KVB_PUBLISH_ALL ? all_lists
                                                    : 1U << KVB_LIST_WINDOW | 1U << KVB_TIER_DEVICE;
}

unsigned kvb_published_lists(const struct kvb_bridge_config *config)
{
    return kvb_formats_have(config->publish.formats, KVB_FORMAT_PROTOBUF) ? all_lists
                                                                          : kvb_json_lists(config);
}

size_t kvb_republished_ranks(const struct kvb_bridge_config *config)
{
    size_t ranks = 0;

    for (size_t i = 0; i < config->workers.count; i++) {
        const struct kvb_worker_spec *worker = config->workers.items[i].spec;
        ranks += kvb_worker_is_republished(worker) ? worker->ranks : 0;
    }
    return ranks;
}

void kvb_bridge_subject_names(const struct kvb_bridge_config *config, struct kvb_subject_names *out)
{
    *out = (struct kvb_subject_names){
        .workers_namespace = config->publish.name_space,
        .workers_component = config->publish.component,
        .inbox_prefix = kvb_bus_login_inbox(&config->nats.login),
        .inbox = "*",
        .id = "*",
    };
    kvb_service_name_of(config->publish.name_space, config->publish.component, out->service);
}

unsigned kvb_bridge_permission_settings(const struct kvb_bridge_config *config)
{
    const unsigned formats = config->publish.formats;

    return (kvb_formats_have(formats, KVB_FORMAT_JSON) ? KVB_SETTING_JSON : 0U) |
           (kvb_formats_have(formats, KVB_FORMAT_PROTOBUF) ? KVB_SETTING_PROTOBUF : 0U);
}
