#pragma once

#include "core/buf.h"
#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Splits an answer of the Kubernetes API into its objects, as its bytes arrive, so that a list of
 * thousands of pods needs the memory of one.
 *
 *     watch   {"type":"ADDED","object":{...}}\n{"type":...}\n        each value is an object
 *     list    {"kind":"PodList","metadata":{...},"items":[{...},{...}]}
 *                                                         ^^^^^ ^^^^^   each item is an object;
 *             the rest, {"kind":...,"items":[]}, is the envelope
 *
 * It follows only strings and brackets.  Whether an object is valid JSON is checked by its reader:
 * invalid JSON is split somewhere, and its parts are refused there.
 *
 * An object above kvb_max_pod_bytes is skipped up to its end; the objects after it are not
 * affected.
 *
 * Pure.  Threads: the caller locks.
 * Memory: one object and one envelope: kvb_max_pod_bytes and kvb_max_pod_envelope_bytes. */
enum kvb_pod_answer { KVB_POD_ANSWER_LIST, KVB_POD_ANSWER_WATCH };

enum { kvb_pod_key_bytes = 8 }; /* enough to recognise "items" */

struct kvb_pod_splitter {
    enum kvb_pod_answer answer;
    struct kvb_buf object;   /* owned: the object that is not complete yet */
    struct kvb_buf envelope; /* owned: the envelope of a list */
    unsigned depth;          /* open brackets */
    unsigned object_depth;   /* open brackets outside the current object */
    bool is_in_string;
    bool is_escaped; /* the previous byte was a backslash */
    bool is_in_object;
    bool is_skipped; /* the object is too large */
    bool is_in_items;
    bool has_envelope_failed; /* the envelope is too large, or memory ran out */
    size_t key_len;           /* of the last string at depth 1; capped at kvb_pod_key_bytes */
    char key[kvb_pod_key_bytes];
};

/* Receives each object, or an empty span for an object that was too large.  Any status except
 * KVB_OK makes kvb_pod_splitter_take() return it at once. */
typedef kvb_status kvb_pod_take_object(void *context, kvb_span object);

/* kvb_pod_splitter_done() frees it, and also accepts {0}. */
void kvb_pod_splitter_init(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer);
void kvb_pod_splitter_done(struct kvb_pod_splitter *splitter);

/* Prepares for the next answer; keeps the buffers. */
void kvb_pod_splitter_begin(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer);

/* KVB_NO_MEMORY, or what `take` returned: the rest of the answer must then be dropped. */
kvb_status kvb_pod_splitter_take(
    struct kvb_pod_splitter *splitter, kvb_span bytes, kvb_pod_take_object *take, void *context);

/* Call it after the last byte of a list.  The envelope is borrowed until the next answer begins.
 * KVB_BAD_INPUT  the list is not complete   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status
kvb_pod_splitter_envelope(const struct kvb_pod_splitter *splitter, kvb_span *out_envelope);
