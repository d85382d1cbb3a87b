#pragma once

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

/* What `kvctl explain` says of the answers of a bridge and of an aggregator.
 * Pure.  Threads: any thread. */

enum { kvctl_sentence_bytes = 256 };

/* The table: one row for each run of blocks of which the same is to be said, with the members
 * blocks, tokens, hash (of the first one), bridge (the lists that have it), router, why.
 * router_blocks: how many the aggregator lists from the beginning; below 0: no request was made, or
 * it did not answer.  The caller frees it. */
struct json_object *kvctl_explain_table(struct json_object *bridge, int64_t router_blocks);

/* Where the prefix of the bridge's list ends, and why. */
void kvctl_explain_break(struct json_object *bridge, char text[kvctl_sentence_bytes]);

/* Sentences about what bridge and aggregator say differently; router: a row of R.kv_match; NULL:
 * the aggregator does not know the stream.  The caller frees it. */
struct json_object *
kvctl_explain_differences(struct json_object *bridge, struct json_object *router);

/* Blocks of the bridge's size that the row lists on the device. */
int64_t kvctl_explain_router_blocks(struct json_object *bridge, struct json_object *router);

/* "event 17, 2026-08-01T12:00:00.123Z".  time_ms 0: the event alone. */
void kvctl_explain_event(uint64_t event_id, uint64_t time_ms, char *text, size_t size);

/* "4, 6, 9": the known workers (rows with worker_id) that are nearest, at most five. */
void kvctl_near_workers(
    struct json_object *rows, uint64_t worker_id, char text[kvctl_sentence_bytes]);
