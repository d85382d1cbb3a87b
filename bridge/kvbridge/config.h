#pragma once

#include "bus/permissions.h"
#include "core/conf.h"
#include "core/limits.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "ingest/dns/entry.h"
#include "kvbridge/endpoint.h"
#include "kvbridge/worker_list.h"
#include "model/stream.h"
#include "model/tier.h"
#include "pods/pod.h"
#include "pods/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The configuration of kvbridge.  --help explains each key, from the tables in kvbridge/config.c;
 * etc/kvbridge.cfg is an example.  Threads: plain data, constant once it is read. */

/* What json publishes; protobuf publishes all tiers. */
enum kvb_publish_tiers { KVB_PUBLISH_DEVICE, KVB_PUBLISH_ALL, KVB_PUBLISH_TIERS_COUNT };

/* What a worker has that its source does not say, whichever source it is. */
struct kvb_worker_defaults {
    struct kvb_worker_spec *spec; /* a reference; block_size UINT32_MAX: as usual for the source */
    /* The first rank's ports of workers that a source finds by their host; 0: the engine has none;
     * KVB_PORT_OF_SOURCE: as usual for the source. */
    uint32_t events_port;
    uint32_t replay_port;
    uint32_t metrics_port;
};

#define KVB_PORT_OF_SOURCE KVB_POD_PORT_OF_PRESET

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
    bool is_on; /* the file has the group */
    struct kvb_kubernetes_namespaces namespaces;
    char selector[512];       /* "": the selector of the preset */
    char field_selector[256]; /* "": none */
    struct kvb_pod_rules rules;
    char id_from[kvb_pod_key_name_bytes + sizeof "label:"];
    char kubeconfig[kvb_config_path_bytes]; /* "": use the own cluster */
};

struct kvb_bridge_config {
    struct kvb_nats_config nats;
    struct {
        char name_space[kvb_name_bytes + 1];
        char component[kvb_name_bytes + 1];
        unsigned formats; /* enum kvb_format; never empty */
        enum kvb_publish_tiers tiers;
        enum kvb_copies copies;
        enum kvb_reannounce reannounce;
        uint32_t refresh_s;     /* 0: on request only, or never: kvb_bridge_config_refreshes() */
        uint32_t down_clear_ms; /* 0: never */
        uint32_t load_period_ms;
        uint32_t heartbeat_ms;
        /* Names of the published labels; none: all labels of configured and registered workers. */
        struct kvb_label_names labels;
    } publish;
    struct kvb_worker_defaults defaults;
    struct kvb_worker_list workers;           /* of the file, and of workers_file */
    char workers_file[kvb_config_path_bytes]; /* its workers are added to `workers`; "": none */
    bool watch_files; /* a changed configuration or workers_file acts as SIGHUP */
    struct kvb_dns_config dns;
    struct kvb_kubernetes_config kubernetes;
    struct {
        char token_file[kvb_config_path_bytes]; /* "": nobody may register */
    } registering;
    struct {
        uint64_t max_stream_blocks; /* blocks in the mirror of a stream */
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

/* Ranks whose events are republished. */
size_t kvb_republished_ranks(const struct kvb_bridge_config *config);

/* The lists whose blocks are published in JSON, and in any format, as a bit set indexed by enum
 * kvb_tier. */
unsigned kvb_json_lists(const struct kvb_bridge_config *config);
unsigned kvb_published_lists(const struct kvb_bridge_config *config);

/* {0} is fine. */
void kvb_bridge_config_done(struct kvb_bridge_config *config);

bool kvb_worker_defaults_are_same(
    const struct kvb_worker_defaults *one, const struct kvb_worker_defaults *other);

/* All keys, for --help and the manual. */
const struct kvb_conf_table *kvb_bridge_config_keys(void);

/* ---- What a bridge uses of NATS, by its configuration ---- */

/* Fills in all but what only a running process knows: inbox and id are "*".  The texts are those of
 * the configuration, which has to outlive *out. */
void kvb_bridge_subject_names(
    const struct kvb_bridge_config *config, struct kvb_subject_names *out);

/* Of enum kvb_permission_setting. */
unsigned kvb_bridge_permission_settings(const struct kvb_bridge_config *config);
