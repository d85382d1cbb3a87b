#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "core/status.h"
#include "model/router_batch.h"
#include "wire/json/writer.h"

/* Messages of the NATS contract as JSON lines, whatever their encoding: the output of
 * `kvctl watch --all`.
 *
 *     P.kv_events, P.kv_events_pb     one line an event
 *     P.kv_window_events              the same
 *     P.kv_heartbeat                  the object of P.kv_heartbeat_json
 *     P.kv_sync.W.R                   the request, decoded
 *     P.kv_refresh                    the same; {} requests all streams
 *     every other subject             its JSON unchanged, on one line
 *
 *     {"subject":"namespace.dynamo.component.VllmWorker.load_metrics","data":{...}}
 *     {"subject":"namespace.dynamo.component.Router.kv_match","reply":"_INBOX.x","data":{...}}
 *     {"subject":"namespace.dynamo.x","bytes":3,"error":"bad_input"}    cannot be decoded
 *
 * Threads: the caller locks. */

/* "stored", "removed", "cleared". */
const char *kvb_watch_kind_name(enum kvb_router_kind kind);

/* The keys of one event: worker_id, dp_rank, event_id, kind, tier, parent_hash, blocks.
 * The caller opens and closes the object.  Errors stay in json->status. */
void kvb_watch_event_json(
    const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_json_writer *json);

/* Appends the message as lines, at most max_lines (1 or more) of them, and adds their number
 * to *lines.  batch is decoded into; {0} to begin with, ended by the caller.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: the last line may be incomplete; discard what was appended. */

kvb_status kvb_watch_message_json(
    const struct kvb_bus_message *message, uint64_t max_lines, struct kvb_router_batch *batch,
    struct kvb_buf *out, uint64_t *lines);
