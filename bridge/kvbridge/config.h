#pragma once

#include "core/conf.h"
#include "core/limits.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "ingest/dns/entry.h"
#include "ingest/zmq/event_server.h"
#include "ingest/zmq/frames.h"
#include "kvbridge/endpoint.h"
#include "model/stream.h"
#include "model/tier.h"
#include "pods/pod.h"
#include "pods/table.h"
#include "stream/republish/republisher.h"
#include "wire/engine/encode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The configuration of kvbridge.  --help explains each key, from the tables in kvbridge/config.c;
 * etc/kvbridge.cfg is an example.  Threads: plain data, constant once it is read. */

enum { kvb_config_topic_bytes = 128 };

/* What json publishes; protobuf publishes all tiers. */
enum kvb_publish_tiers { KVB_PUBLISH_DEVICE, KVB_PUBLISH_ALL, KVB_PUBLISH_TIERS_COUNT };

/* What readers of republished events take:
 *
 *     style     events    who asks from number 0    who subscribes
 *     ------    ------    ----------------------    --------------
 *     vllm      maps      an announcement to all    the same
 *     aibrix    arrays    the same                  the same
 *     dynamo    maps      a snapshot, to it alone   nothing */
enum kvb_republish_style {
    KVB_REPUBLISH_VLLM,
    KVB_REPUBLISH_AIBRIX,
    KVB_REPUBLISH_DYNAMO,
    KVB_REPUBLISH_STYLE_COUNT
};

/* Its events once more, repaired, for routers that read engines themselves. */
struct kvb_republish_config {
    char events[kvb_endpoint_bytes]; /* of rank 0; "": off */
    char replay[kvb_endpoint_bytes]; /* the same; "": none */
    char topic[kvb_config_topic_bytes];
    enum kvb_republish_style style;
    bool is_of_rank; /* the addresses are those of one rank: nothing is added to them */
};

/* One engine with a PUB socket for each of the ranks first_rank .. first_rank + ranks - 1.
 * kvb_endpoint_for_rank() computes a rank's address from `events` and `replay`.  load.zmq is one
 * for all ranks. */
struct kvb_worker_config {
    uint64_t id;                 /* 0 .. 2^63-1, the id in published messages; not with ids */
    uint64_t ids[kvb_max_ranks]; /* one for each rank, for routers that do not know ranks */
    size_t id_count;             /* 0, or `ranks` */
    uint32_t block_size;         /* tokens */
    unsigned hashes;             /* AS_PUBLISHED, or 1 + enum kvb_hashes */
    char model[kvb_model_bytes + 1];
    char model_rule[kvb_model_rule_bytes + 1]; /* of a pod: see kvb_pod; "": configured */
    char lora[kvb_model_bytes + 1];            /* for events that name none; "": base model */
    char discover[kvb_config_url_bytes]; /* HTTP URL of the engine, which gives the addresses; "":
                                            configured below */
    char discover_token_file[kvb_config_path_bytes]; /* "": the engine wants no key */
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes]; /* "": the engine has no replay endpoint */
    bool may_connect;                /* discovered: the engine may not listen at `events` */
    bool store;                      /* a store, not an engine: see kvb_worker_is_store() */
    bool bind;                       /* bind the SUB socket: the engine connects */
    uint32_t first_rank;
    uint32_t ranks;
    char topic[kvb_config_topic_bytes]; /* prefix */
    bool is_id_made;                    /* computed from the address, not configured */
    bool is_discovered;                 /* the engine has answered, so `ranks` is known */
    bool has_own_addresses;     /* the addresses of one rank: no rank is added to the ports */
    bool has_foreign_addresses; /* of a registration or an engine, not of the operator: no metadata
                                   address is connected to */
    bool has_salts;        /* requests may have salts, adapters or images that events do not name */
    bool is_sglang_hybrid; /* SGLang publishes nothing of its sliding-window or Mamba pool */
    enum kvb_replay_request replay_request;
    enum kvb_tier unknown_medium; /* the tier of blocks with an unknown medium */
    enum kvb_offload_removals offload_removals;
    uint32_t speculative_drop; /* blocks, or KVB_DROP_DETECT; see kvb_stream_options */
    uint64_t speculative_drop_groups[kvb_max_drop_groups];
    size_t speculative_drop_group_count;
    uint32_t attention_chunk;      /* tokens; 0: not known */
    uint32_t offload_chunk_blocks; /* see kvb_mirror_options; 0: as the events show */
    /* Heartbeats publish these.  A worker whose facts alone differ is the same:
     * kvb_members_compare().
     */
    struct kvb_worker_facts facts;
    char pod_uid[kvb_pod_uid_bytes + 1]; /* a different one makes a different worker; "": not a pod
                                          */
    uint64_t total_blocks;               /* device blocks of a rank; 0: not known */
    struct kvb_republish_config republish;
    /* Of the defaults alone: the first rank's ports of workers that a source finds by their host;
     * 0: the engine has none; KVB_PORT_OF_SOURCE: as usual for the source. */
    uint32_t events_port;
    uint32_t replay_port;
    uint32_t metrics_port;
    struct {
        char zmq[kvb_endpoint_bytes];            /* "": none; the next two too */
        char prometheus[kvb_max_page_url_bytes]; /* http://host:port/metrics */
        char coordinator[kvb_endpoint_bytes]; /* one for all ranks, also those of other bridges */
        uint32_t scrape_ms;
        uint64_t total_slots; /* if the engine does not say; 0: not known */
    } load;
};

#define KVB_PORT_OF_SOURCE KVB_POD_PORT_OF_PRESET

/* `discover` and `tokenize`, where they mean the worker's `address`. */
#define KVB_AT_ADDRESS "address"

/* Workers that are the members of a DNS name: kvbridge/dns_list.h. */
struct kvb_dns_config {
    char name[kvb_host_bytes]; /* "": none */
    uint32_t period_s;
};

/* The namespaces that are watched, each with a list of its own. */
struct kvb_kubernetes_namespaces {
    size_t count; /* 0: the namespace of the bridge's own pod */
    char names[kvb_max_pod_sources][kvb_pod_namespace_bytes + 1]; /* "": all namespaces */
};

/* Workers that are pods: kvbridge/kubernetes.h. */
struct kvb_kubernetes_config {
    bool is_on; /* the file has the group, and does not turn it off */
    struct kvb_kubernetes_namespaces namespaces;
    char selector[512];       /* "": the selector of the preset */
    char field_selector[256]; /* "": none */
    struct kvb_pod_rules rules;
    char id_from[kvb_pod_key_name_bytes + sizeof "label:"];
    char kubeconfig[kvb_config_path_bytes]; /* "": use api, or the own cluster */
    char api[kvb_config_url_bytes];         /* "": use the own cluster */
    char token_file[kvb_config_path_bytes];
    char ca_file[kvb_config_path_bytes];
    uint32_t watch_s; /* mean duration; each watch differs by up to 20 % */
};

struct kvb_bridge_config {
    struct kvb_nats_config nats;
    struct {
        char name_space[kvb_name_bytes + 1];
        char component[kvb_name_bytes + 1];
        char endpoint_name[kvb_name_bytes + 1];
        unsigned formats; /* enum kvb_format; never empty */
        enum kvb_hashes hashes;
        enum kvb_publish_tiers tiers;
        enum kvb_copies copies;
        enum kvb_reannounce reannounce;
        uint32_t refresh_s;     /* 0: on request only, or never: kvb_bridge_config_refreshes() */
        uint32_t down_clear_ms; /* 0: never */
        uint32_t load_period_ms;
        uint32_t load_expire_ms;
        uint32_t heartbeat_ms;
        /* Names of the published labels; none: all labels of configured and registered workers. */
        struct kvb_label_names labels;
    } publish;
    /* What a worker has that its source does not say, whichever source it is. */
    struct kvb_worker_config defaults;
    struct kvb_worker_config *workers;        /* owned */
    size_t worker_count;                      /* 0 .. kvb_max_workers */
    char workers_file[kvb_config_path_bytes]; /* its workers are appended to `workers`; "": none */
    bool watch_files; /* a changed configuration or workers_file acts as SIGHUP */
    struct kvb_dns_config dns;
    struct kvb_kubernetes_config kubernetes;
    struct {
        char token_file[kvb_config_path_bytes]; /* "": nobody may register */
    } registering;
    struct {
        uint64_t max_stream_blocks; /* blocks in the mirror of a stream */
        uint64_t max_held_bytes;    /* batches of a stream that wait for a replay */
        uint64_t max_replay_bytes;  /* batches of one replay that wait to be applied */
        uint64_t sync_blocks;       /* blocks in the log of a stream's newest events */
    } limits;
    char checkpoint[kvb_config_path_bytes]; /* directory; "": no checkpoints */
    uint32_t checkpoint_s;
    char http[kvb_config_listen_bytes]; /* "": off */
    struct kvb_http_security http_security;
    struct kvb_log_config log;
};

/* Reads the file, and its workers_file.  On KVB_OK the caller frees *out_config with
 * kvb_bridge_config_done().
 * KVB_BAD_CONFIG  *errors, which must be {0} before the call, lists all mistakes
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors);

/* True when blocks may be published again for routers that send no requests. */
bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config);

/* Reports settings with which readers of json would lose or misread events, as errors and warnings.
 * Sets publish.refresh_s when it is absent or has no effect.  Internal to kvb_bridge_config_read(),
 * like the next two. */
void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_config *config);

/* Checks the group `kubernetes` and fills its rules. */
void kvb_bridge_config_settle_kubernetes(struct kvb_conf *conf, struct kvb_bridge_config *config);

/* Checks the groups `republish` of all workers. */
void kvb_bridge_config_check_republish(
    struct kvb_conf *conf, const struct kvb_bridge_config *config);

/* Are its events republished? */
bool kvb_worker_is_republished(const struct kvb_worker_config *worker);

/* Ranks whose events are republished. */
size_t kvb_republished_ranks(const struct kvb_bridge_config *config);

/* The topic under which one rank is republished: its own, or kv@HOST:PORT@MODEL, where HOST is this
 * host where the socket listens everywhere. */
void kvb_worker_republish_topic(
    const struct kvb_worker_config *worker, char out_topic[kvb_event_topic_bytes]);

enum { KVB_WORKER_HASHES_AS_PUBLISHED };

/* How the worker's blocks are named. */
enum kvb_hashes
kvb_worker_hashes(const struct kvb_bridge_config *config, const struct kvb_worker_config *worker);

/* True: the configuration says that this is a store which all workers share.  The events of a store
 * can show it too. */
bool kvb_worker_is_store(const struct kvb_worker_config *worker);

/* The lists whose blocks are published in JSON, and in any format, as a bit set indexed by enum
 * kvb_tier. */
unsigned kvb_json_lists(const struct kvb_bridge_config *config);
unsigned kvb_published_lists(const struct kvb_bridge_config *config);

/* The id of a worker without a configured one: a hash of its first rank's address, or of the URL
 * if it is discovered.  It is below 2^53, so that readers which store numbers as doubles keep it.
 * An address that means this host, such as 127.0.0.1, gives another id on each host. */
uint64_t kvb_worker_id_of_address(const struct kvb_worker_config *worker);

/* The configuration keys of one worker. */
const struct kvb_conf_table *kvb_worker_config_keys(void);

/* The published worker id of the rank with index `at`, 0 .. ranks - 1. */
uint64_t kvb_worker_id_of_rank(const struct kvb_worker_config *worker, uint32_t at);

/* How many load sources the worker has, and whether its list of models is read elsewhere; each
 * needs one connection. */
size_t kvb_worker_load_sources(const struct kvb_worker_config *worker);

/* Where the engine lists the names that it serves: {discover}/v1/models, or the same beside a
 * metrics page whose path ends in /metrics.  "": not known.  out has kvb_max_page_url_bytes. */
void kvb_worker_models_url(const struct kvb_worker_config *worker, char *out);

/* {0} is fine. */
void kvb_bridge_config_done(struct kvb_bridge_config *config);

/* All keys, for --help and the manual. */
const struct kvb_conf_table *kvb_bridge_config_keys(void);
