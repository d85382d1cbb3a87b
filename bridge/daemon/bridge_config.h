#pragma once

#include "core/conf.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "daemon/endpoint.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* etc/kvbridge.cfg, read once; what each key means says --help, from the table in
 * bridge_config.c.  Threads: plain data, constant once it is read. */

enum { kvb_config_topic_bytes = 128 };

/* One engine: a PUB socket per rank, first_rank .. first_rank + ranks - 1, at
 * kvb_endpoint_for_rank() of events, and of replay; load.zmq is one for all. */
struct kvb_worker_config {
    uint64_t id; /* 0 .. 2^63-1: what the router calls it */
    char model[kvb_model_bytes + 1];
    uint32_t block_size;            /* tokens */
    char lora[kvb_model_bytes + 1]; /* where the events name none; "": base model */
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes]; /* "": the engine has none */
    uint32_t first_rank;
    uint32_t ranks;
    char topic[kvb_config_topic_bytes]; /* prefix */
    bool bind;                          /* bind the SUB: the engine connects */
    uint64_t total_blocks;              /* device blocks of a rank; 0: not known */
    struct {
        char zmq[kvb_endpoint_bytes]; /* "": none */
        uint64_t total_slots;         /* where the engine names none; 0: not known */
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
        uint32_t load_period_ms;
        uint32_t heartbeat_ms;
    } publish;
    struct kvb_worker_config *workers; /* owned */
    size_t worker_count;               /* 1 .. kvb_max_workers */
    struct {
        uint64_t max_stream_blocks; /* of one stream's mirror */
        uint64_t max_held_bytes;    /* of one stream's batches that wait for a replay */
    } limits;
    char http[kvb_config_listen_bytes]; /* "": off */
    struct kvb_log_config log;
};

/* On KVB_OK the caller undoes *out_config with kvb_bridge_config_done().
 * KVB_BAD_CONFIG  errors, which was {0}, says all that is wrong
 * KVB_NO_MEMORY */
kvb_status kvb_bridge_config_read(
    const char *path, struct kvb_bridge_config *out_config, struct kvb_conf_errors *errors);

/* {0} is fine. */
void kvb_bridge_config_done(struct kvb_bridge_config *config);

/* All keys, for --help. */
void kvb_bridge_config_help(FILE *out);
