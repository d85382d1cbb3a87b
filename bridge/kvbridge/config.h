#pragma once

#include "core/conf.h"
#include "core/limits.h"
#include "core/networks.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "ingest/dns/entry.h"
#include "ingest/zmq/frames.h"
#include "kvbridge/endpoint.h"
#include "model/stream.h"
#include "model/tier.h"
#include "pods/pod.h"
#include "pods/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* etc/kvbridge.cfg, read once; --help explains each key, from the table in
 * kvbridge/config.c.  Threads: plain data, constant once it is read. */

enum { kvb_config_topic_bytes = 128 };

/* What json publishes; protobuf publishes all tiers. */
enum kvb_publish_tiers { KVB_PUBLISH_DEVICE, KVB_PUBLISH_ALL, KVB_PUBLISH_TIERS_COUNT };

/* Keys of CURVE for the sockets of its events and replays; all paths "": in clear. */
struct kvb_curve_config {
    char server_key_file[kvb_config_path_bytes];
    char public_key_file[kvb_config_path_bytes];
    char secret_key_file[kvb_config_path_bytes];
    char client_keys_file[kvb_config_path_bytes]; /* of engines that may connect: bind */
    uint64_t digest; /* of the keys when the file was read; another one: another worker */
};

/* Who gave a worker's addresses: those that the operator wrote are not restricted. */
enum kvb_address_source {
    KVB_ADDRESSES_OF_OPERATOR,
    KVB_ADDRESSES_OF_REGISTRATION,
    KVB_ADDRESSES_OF_ENGINE
};

/* One engine: a PUB socket per rank, first_rank .. first_rank + ranks - 1, at
 * kvb_endpoint_for_rank() of events, and of replay; load.zmq is one for all. */
struct kvb_worker_config {
    uint64_t id;                 /* 0 .. 2^63-1: what the router calls it; not with ids */
    uint64_t ids[kvb_max_ranks]; /* one for each rank, for routers that know no ranks */
    size_t id_count;             /* 0, or `ranks` */
    uint32_t block_size;         /* tokens */
    unsigned hashes;             /* AS_PUBLISHED, or 1 + enum kvb_hashes */
    char model[kvb_model_bytes + 1];
    char lora[kvb_model_bytes + 1];      /* where the events name none; "": base model */
    char discover[kvb_config_url_bytes]; /* the engine's own URL tells them; "": they stand here */
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes]; /* "": the engine has no replay endpoint */
    bool may_connect;                /* discovered: the engine may not listen at `events` */
    bool store;                      /* no engine: see kvb_worker_is_store() */
    uint32_t first_rank;
    uint32_t ranks;
    char topic[kvb_config_topic_bytes]; /* prefix */
    bool bind;                          /* bind the SUB: the engine connects */
    struct kvb_curve_config curve;
    bool is_id_made;        /* from its address: the configuration has none */
    bool is_discovered;     /* the engine has answered: ranks is right */
    bool has_own_addresses; /* of one rank: nothing is added to them */
    enum kvb_address_source addresses_of;
    enum kvb_replay_request replay_request;
    enum kvb_tier unknown_medium; /* the tier of blocks whose medium is on no list */
    /* That heartbeats carry.  Where they alone differ it is the same worker: kvb_members_compare()
     */
    struct kvb_worker_facts facts;
    char pod_uid[kvb_pod_uid_bytes + 1]; /* another one: another worker; "": it is no pod */
    uint64_t total_blocks;               /* device blocks of a rank; 0: not known */
    struct {
        char zmq[kvb_endpoint_bytes];            /* "": none, like the two below */
        char prometheus[kvb_max_page_url_bytes]; /* http://host:port/metrics */
        char coordinator[kvb_endpoint_bytes];    /* of all ranks, of whichever bridge */
        uint32_t scrape_ms;
        uint64_t total_slots; /* where the engine names none; 0: not known */
    } load;
};

/* Workers that are the members of a DNS name: kvbridge/dns_list.h. */
struct kvb_dns_config {
    char name[kvb_host_bytes]; /* "": none, like srv */
    char srv[kvb_host_bytes];
    uint32_t port;
    uint32_t replay_port; /* 0: they have none, like the next one */
    uint32_t metrics_port;
    uint32_t period_s;
    struct kvb_worker_config worker; /* what they all have; no id, no addresses */
};

/* Whose pods are watched; each has lists of its own. */
struct kvb_kubernetes_namespaces {
    size_t count; /* 0: the one that the bridge's own pod is in */
    char names[kvb_max_pod_sources][kvb_pod_namespace_bytes + 1]; /* "": all of them */
};

/* Workers that are pods: kvbridge/kubernetes.h. */
struct kvb_kubernetes_config {
    bool is_on; /* the file has the group, and does not turn it off */
    struct kvb_kubernetes_namespaces namespaces;
    char selector[512];       /* "": the preset's */
    char field_selector[256]; /* "": none */
    struct kvb_pod_rules rules;
    uint32_t events_port; /* KVB_POD_PORT_OF_PRESET, or a number; like the next two */
    uint32_t replay_port;
    uint32_t metrics_port;
    char id_from[kvb_pod_key_name_bytes + sizeof "label:"];
    struct kvb_worker_config
        worker;    /* what they all have; model and block size: where they say none */
    bool discover; /* the engines say where their events are */
    char kubeconfig[kvb_config_path_bytes]; /* "": api, or in the cluster */
    char api[kvb_config_url_bytes];         /* "": in the cluster */
    char token_file[kvb_config_path_bytes];
    char ca_file[kvb_config_path_bytes];
    uint32_t watch_s; /* a watch is this long, and 20 % more or less */
};

struct kvb_bridge_config {
    struct kvb_nats_config nats;
    struct {
        char name_space[kvb_name_bytes + 1];
        char component[kvb_name_bytes + 1];
        char endpoint_name[kvb_name_bytes + 1];
        enum kvb_profile profile;
        enum kvb_hashes hashes;
        enum kvb_publish_tiers tiers;
        enum kvb_copies copies;
        enum kvb_clear clear;
        enum kvb_reannounce reannounce;
        uint32_t refresh_s;     /* 0: only when asked, or not at all: _refreshes() */
        uint32_t down_clear_ms; /* 0: never */
        uint32_t load_period_ms;
        uint32_t load_expire_ms;
        uint32_t heartbeat_ms;
        /* Of the labels that go out; none: all that the file or a registration gives. */
        struct kvb_label_names labels;
        bool standby; /* publish a stream only while no other bridge does */
    } publish;
    struct kvb_worker_config *workers;        /* owned */
    size_t worker_count;                      /* 0 .. kvb_max_workers; 0 where some may register */
    char workers_file[kvb_config_path_bytes]; /* more of them, at the end of `workers`; "": none */
    bool watch_files; /* a change of the configuration or of workers_file is as a SIGHUP */
    struct kvb_dns_config dns;
    struct kvb_kubernetes_config kubernetes;
    struct {
        char token_file[kvb_config_path_bytes]; /* "": nobody may register */
        struct kvb_networks networks;           /* of registered workers */
    } registering;
    struct {
        struct kvb_networks networks; /* of engines that are discovered, and of what they say */
    } discovering;
    struct {
        uint64_t max_stream_blocks; /* of one stream's mirror */
        uint64_t max_held_bytes;    /* of one stream's batches that wait for a replay */
        uint64_t max_replay_bytes;  /* of one replay, received and not applied */
        uint64_t sync_blocks;       /* of one stream's newest events */
    } limits;
    char checkpoint[kvb_config_path_bytes]; /* directory; "": none are kept */
    uint32_t checkpoint_s;
    char http[kvb_config_listen_bytes]; /* "": off */
    struct kvb_http_security http_security;
    struct kvb_log_config log;
};

/* Reads the file, and the one that its workers_file names.  On KVB_OK the caller undoes
 * *out_config with kvb_bridge_config_done().
 * KVB_BAD_CONFIG  errors, which was {0}, says all that is wrong
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors);

/* True when blocks may be published again for routers that send no requests. */
bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config);

/* Reports, as errors and warnings, what readers of json would miss or misread, and sets
 * publish.refresh_s where it was left out or has no effect.  For kvb_bridge_config_read() alone. */
void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_config *config);

/* The same of the group `kubernetes`; fills its rules. */
void kvb_bridge_config_settle_kubernetes(struct kvb_conf *conf, struct kvb_bridge_config *config);

/* The same of a group `curve`, such as "workers[2].curve"; fills its digest. */
void kvb_bridge_config_settle_curve(
    struct kvb_conf *conf, const char *group, struct kvb_worker_config *worker);

enum { KVB_WORKER_HASHES_AS_PUBLISHED };

/* How the worker's blocks are named. */
enum kvb_hashes
kvb_worker_hashes(const struct kvb_bridge_config *config, const struct kvb_worker_config *worker);

/* Does the configuration say that it is a store which all workers share?  What the store's own
 * events show comes on top. */
bool kvb_worker_is_store(const struct kvb_worker_config *worker);

/* Are its sockets encrypted? */
bool kvb_worker_has_curve(const struct kvb_worker_config *worker);

struct kvb_curve;

/* Reads the key files again; the caller ends *out_curve with kvb_curve_forget().
 * KVB_BAD_CONFIG  detail says what is wrong with which file */
kvb_status kvb_worker_read_curve(
    const struct kvb_worker_config *worker, struct kvb_curve *out_curve, struct kvb_detail *detail);

/* The lists of blocks that are published, a bit each, by enum kvb_tier. */
unsigned kvb_published_lists(const struct kvb_bridge_config *config);

/* The id of a worker without a configured one: a hash of its first rank's address, or of the URL
 * if it is discovered.  It is below 2^53, so that readers which store numbers as doubles keep it.
 * An address that means this host, such as 127.0.0.1, gives another id on each host. */
uint64_t kvb_worker_id_of_address(const struct kvb_worker_config *worker);

/* The keys of one worker. */
const struct kvb_conf_table *kvb_worker_config_keys(void);

/* What the router calls the worker's rank number `at`, 0 .. ranks - 1. */
uint64_t kvb_worker_id_of_rank(const struct kvb_worker_config *worker, uint32_t at);

/* How many sources of load it has; each has one connection at a time. */
size_t kvb_worker_load_sources(const struct kvb_worker_config *worker);

/* {0} is fine. */
void kvb_bridge_config_done(struct kvb_bridge_config *config);

/* All keys, for --help and the manual. */
const struct kvb_conf_table *kvb_bridge_config_keys(void);
