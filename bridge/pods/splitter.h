#pragma once

#include "core/buf.h"
#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Splits an answer of the Kubernetes API into its objects, as its bytes arrive, so that a list of
 * thousands of pods needs the memory of one.
 *
 *     watch   {"type":"ADDED","object":{...}}\n{"type":...}\n        each value is an object
 *     list    {"kind":"PodList","metadata":{...},"items":[{...},{...}]}
 *                                                         ^^^^^ ^^^^^   each item is one
 *             and what is left, {"kind":...,"items":[]}, is the envelope
 *
 * It follows strings and brackets only.  Whether an object is JSON is for who reads it: what is no
 * JSON is split somewhere, and its parts are refused.
 *
 * An object above kvb_max_pod_bytes is skipped up to its end; those behind it are not affected.
 *
 * Pure.  Threads: the caller locks.
 * Memory: one object and one envelope: kvb_max_pod_bytes and kvb_max_pod_envelope_bytes. */
enum kvb_pod_answer { KVB_POD_ANSWER_LIST, KVB_POD_ANSWER_WATCH };

enum { kvb_pod_key_bytes = 8 }; /* enough to recognise "items" */

struct kvb_pod_splitter {
    enum kvb_pod_answer answer;
    struct kvb_buf object;   /* owned: the one that is not complete */
    struct kvb_buf envelope; /* owned: of a list */
    unsigned depth;          /* of brackets */
    unsigned object_depth;   /* inside the object, where there is one */
    bool is_in_string;
    bool is_escaped; /* the byte before was a backslash */
    bool is_in_object;
    bool is_skipped; /* the object is too large */
    bool is_in_items;
    bool has_envelope_failed; /* it is too large, or there is no memory */
    size_t key_len;           /* of the string at depth 1 that came last; above: longer */
    char key[kvb_pod_key_bytes];
};

/* Gets each object; span: "" (len 0) for one that was too large.  Anything but KVB_OK ends the
 * call of kvb_pod_splitter_take(). */
typedef kvb_status kvb_pod_take_object(void *context, kvb_span object);

/* Undone by kvb_pod_splitter_done(), which also takes {0}. */
void kvb_pod_splitter_init(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer);
void kvb_pod_splitter_done(struct kvb_pod_splitter *splitter);

/* Begins another answer; keeps the memory. */
void kvb_pod_splitter_begin(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer);

/* KVB_NO_MEMORY, or whatever `take` returned; the answer cannot be gone on with then. */
kvb_status kvb_pod_splitter_take(
    struct kvb_pod_splitter *splitter, kvb_span bytes, kvb_pod_take_object *take, void *context);

/* After the last byte of a list: its envelope, borrowed until the next one begins.
 * KVB_BAD_INPUT  the list is not complete   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status
kvb_pod_splitter_envelope(const struct kvb_pod_splitter *splitter, kvb_span *out_envelope);
