#pragma once

#include "core/detail.h"
#include "core/status.h"
#include "ingest/zmq/context.h"
#include "model/load.h"
#include "wire/load/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the load of one worker from a PUB socket, of one of two kinds:
 *
 *     engine        the last frame of each message is a ForwardPassMetrics map; topic and
 *                   seq frames may stand before it
 *     coordinator   one frame, see wire/load/coordinator.h
 *
 * The only bytes sent are the subscription to everything: vLLM's coordinator would take
 * other bytes as commands.
 *
 * Threads: only the thread that made it. */
struct kvb_load_source;
struct kvb_resolver;
struct kvb_poller;

struct kvb_load_source_options {
    const char *endpoint;          /* "tcp://127.0.0.1:7557" */
    struct kvb_poller *poller;     /* borrowed; watches the socket */
    size_t owner;                  /* the poller's number for this source */
    struct kvb_resolver *resolver; /* borrowed; NULL: the host is numeric */
};

/* A host that is not resolved yet is no error: kvb_load_source_connect() connects later.
 * KVB_BAD_CONFIG  libzmq refuses the endpoint; detail says why
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail);
void kvb_load_source_close(struct kvb_load_source *source);

/* Opens the socket once its host is resolved; call it a few times a second.
 * KVB_OK         it is open
 * KVB_AGAIN      its host is being looked up
 * KVB_NOT_FOUND  its host cannot be resolved; it will be tried again
 * others         it cannot be opened
 * *out_why: why its host cannot be resolved, "" when it can; borrowed until the source is
 * closed; untouched when the socket was open. */
kvb_status
kvb_load_source_connect(struct kvb_load_source *source, uint64_t now_ns, const char **out_why);

/* True once for each connection that a protocol error has ended, such as a message above
 * kvb_max_load_payload_bytes: libzmq will not connect again.  Call it a few times a second. */
bool kvb_load_source_is_cut(struct kvb_load_source *source, uint64_t now_ns);

/* Opens the socket again, at the next address of its host.  Call it for a source that is cut or
 * silent, in growing intervals.
 * KVB_IO: it has no socket until the next call */
kvb_status kvb_load_source_renew(struct kvb_load_source *source, uint64_t now_ns);

/* The next message.  KVB_AGAIN there is none; KVB_BAD_INPUT it has another format: count
 * it. */
kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample);
kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_update *out_update);
