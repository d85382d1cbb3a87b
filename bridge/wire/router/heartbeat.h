#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/stream.h"
#include "wire/json/writer.h"

/* StreamHeartbeat (proto/kvbridge.proto) on P.kv_heartbeat, and its JSON form on
 * P.kv_heartbeat_json.
 *
 * decode: KVB_BAD_INPUT  not such a message, or an invalid value: an unknown
 *                        state, a worker_id above 2^63-1, an invalid label
 *                        (model/labels.h), a name of a model, an address or
 *                        a name of a pod that is too long, or served names
 *                        that are invalid or too many (model/served_names.h)
 * both:   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_heartbeat_encode(const struct kvb_heartbeat *heartbeat, struct kvb_buf *out);
kvb_status kvb_heartbeat_decode(kvb_span bytes, struct kvb_heartbeat *out_heartbeat);

/* The same content as one JSON object, with the keys of the aggregator's answers:
 *
 *     {"worker_id":7,"dp_rank":0,"model":"m","block_size":16,...,"state":"EXACT",...}
 *
 * proto/states.md lists the keys.  Errors stay in json->status. */
void kvb_heartbeat_json_write(const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json);

/* Writes a member of an object: "formats":["json","protobuf"]. */
void kvb_formats_json_write(unsigned formats, struct kvb_json_writer *json);

/* Writes a member of an object, unverified_tiers, with the reason of each such tier; nothing where
 * there is none. */
void kvb_unverified_tiers_json_write(
    const struct kvb_heartbeat *heartbeat, struct kvb_json_writer *json);

/* Writes members of an object: draining, labels, address, role, pod, namespace_k8s, node, ready,
 * tokenize.
 * A fact that is not known is omitted; draining is omitted if false. */
void kvb_worker_facts_json_write(
    const struct kvb_worker_facts *facts, struct kvb_json_writer *json);

/* Writes a member of an object, served_names; nothing where none are known. */
void kvb_served_names_json_write(
    const struct kvb_served_names *names, struct kvb_json_writer *json);

/* {name:value,...} */
void kvb_labels_json_write(const struct kvb_labels *labels, struct kvb_json_writer *json);
