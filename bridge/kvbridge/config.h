#pragma once

#include "core/conf.h"
#include "core/limits.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "ingest/zmq/frames.h"
#include "kvbridge/endpoint.h"
#include "model/stream.h"
#include "model/tier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* etc/kvbridge.cfg, read once; --help explains each key, from the table in
 * kvbridge/config.c.  Threads: plain data, constant once it is read. */

enum { kvb_config_topic_bytes = 128 };

/* What json publishes; protobuf publishes all tiers. */
enum kvb_publish_tiers { KVB_PUBLISH_DEVICE, KVB_PUBLISH_ALL, KVB_PUBLISH_TIERS_COUNT };

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
    bool is_id_made;                    /* from its address: the configuration has none */
    bool is_discovered;                 /* the engine has answered: ranks is right */
    bool has_own_addresses;             /* of one rank: nothing is added to them */
    enum kvb_replay_request replay_request;
    enum kvb_tier unknown_medium; /* the tier of blocks whose medium is on no list */
    struct kvb_labels labels;     /* that heartbeats carry */
    uint64_t total_blocks;        /* device blocks of a rank; 0: not known */
    struct {
        char zmq[kvb_endpoint_bytes];            /* "": none, like the two below */
        char prometheus[kvb_max_page_url_bytes]; /* http://host:port/metrics */
        char coordinator[kvb_endpoint_bytes];    /* of all ranks, of whichever bridge */
        uint32_t scrape_ms;
        uint64_t total_slots; /* where the engine names none; 0: not known */
    } load;
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
        bool standby; /* publish a stream only while no other bridge does */
    } publish;
    struct kvb_worker_config *workers; /* owned */
    size_t worker_count;               /* 0 .. kvb_max_workers; 0 where some may register */
    struct {
        char token_file[kvb_config_path_bytes]; /* "": nobody may register */
    } registering;
    struct {
        uint64_t max_stream_blocks; /* of one stream's mirror */
        uint64_t max_held_bytes;    /* of one stream's batches that wait for a replay */
        uint64_t max_replay_bytes;  /* of one replay, received and not applied */
        uint64_t sync_blocks;       /* of one stream's newest events */
    } limits;
    char checkpoint[kvb_config_path_bytes]; /* directory; "": none are kept */
    uint32_t checkpoint_s;
    char http[kvb_config_listen_bytes]; /* "": off */
    struct kvb_log_config log;
};

/* On KVB_OK the caller undoes *out_config with kvb_bridge_config_done().
 * KVB_BAD_CONFIG  errors, which was {0}, says all that is wrong
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors);

/* True when blocks may be published again for routers that send no requests. */
bool kvb_bridge_config_refreshes(const struct kvb_bridge_config *config);

/* Reports, as errors and warnings, what readers of json would miss or misread, and sets
 * publish.refresh_s where it was left out or has no effect.  For kvb_bridge_config_read() alone. */
void kvb_bridge_config_settle_readers(struct kvb_conf *conf, struct kvb_bridge_config *config);

enum { KVB_WORKER_HASHES_AS_PUBLISHED };

/* How the worker's blocks are named. */
enum kvb_hashes
kvb_worker_hashes(const struct kvb_bridge_config *config, const struct kvb_worker_config *worker);

/* Does the configuration say that it is a store which all workers share?  What the store's own
 * events show comes on top. */
bool kvb_worker_is_store(const struct kvb_worker_config *worker);

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
