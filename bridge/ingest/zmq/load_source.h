#pragma once

#include "core/status.h"
#include "ingest/zmq/context.h"
#include "model/load.h"
#include "wire/load/engine_message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Receives the load of one worker from a PUB socket, of one of two kinds:
 *
 *     engine        the last frame of each message is a ForwardPassMetrics map; frames for the
 *                   topic and the sequence number may precede it
 *     coordinator   one frame, see wire/load/engine_message.h
 *
 * The socket sends only one subscription, to all topics: vLLM's coordinator would treat other
 * messages as commands.
 *
 * Threads: only the thread that made it. */
struct kvb_load_source;
struct kvb_resolver;
struct kvb_poller;

struct kvb_load_source_options {
    const char *endpoint;          /* "tcp://127.0.0.1:7557" */
    struct kvb_poller *poller;     /* borrowed; watches the socket */
    size_t owner;                  /* the number that the poller reports for this source */
    struct kvb_resolver *resolver; /* borrowed; NULL: the host is numeric */
};

/* Succeeds even when the host is not resolved yet; kvb_load_source_connect() connects later.
 * KVB_BAD_CONFIG  libzmq refuses the endpoint; detail says why
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail);
void kvb_load_source_close(struct kvb_load_source *source);

/* Opens the socket once its host is resolved; call it a few times a second.
 * KVB_OK         it is open
 * KVB_AGAIN      its host is being looked up
 * KVB_NOT_FOUND  its host cannot be resolved; call it again
 * others         the socket cannot be opened
 * *out_why: why the host cannot be resolved, or ""; borrowed until the source is closed;
 * untouched when the socket was open already. */
kvb_status
kvb_load_source_connect(struct kvb_load_source *source, uint64_t now_ns, const char **out_why);

/* Returns true once for each connection that a protocol error has ended, for example a message
 * above kvb_max_load_payload_bytes: libzmq does not connect again.  Also for one that was ended
 * because more than kvb_max_load_backlog_bytes waited.  Call it a few times a second. */
bool kvb_load_source_is_cut(struct kvb_load_source *source, uint64_t now_ns);

/* Closes the socket, and opens it again at the next address of its host.  Call it at growing
 * intervals for a source that is cut or silent.
 * On failure the source has no socket until a later call opens one. */
kvb_status kvb_load_source_renew(struct kvb_load_source *source, uint64_t now_ns);

/* Receives the next message.  KVB_AGAIN: there is none.  KVB_BAD_INPUT: it has another format and
 * is dropped; the caller counts it. */
kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample);
kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_update *out_update);
