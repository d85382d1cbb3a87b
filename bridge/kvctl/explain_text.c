#include "kvctl/explain_text.h"

#include "core/own.h"
#include "wire/json/tree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { event_text_bytes = 96, near_workers = 5, ms_in_s = 1000 };

static bool is_text(const char *text, const char *other)
{
    return strcmp(text, other) == 0;
}

/* ---- Events ---- */

void kvctl_explain_event(uint64_t event_id, uint64_t time_ms, char *text, size_t size)
{
    const time_t second = (time_t)(time_ms / ms_in_s);
    struct tm utc = { 0 };
    char date[32] = "";

    (void)snprintf(text, size, "event %" PRIu64, event_id);
    if (time_ms > 0 && gmtime_r(&second, &utc)) {
        (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
        (void)snprintf(
            text, size, "event %" PRIu64 ", %s.%03uZ", event_id, date,
            (unsigned)(time_ms % ms_in_s));
    }
}

static void write_traced_event(struct json_object *trace, char text[event_text_bytes])
{
    kvctl_explain_event(
        kvb_json_member_u64(trace, "event_id"), kvb_json_member_u64(trace, "time_ms"), text,
        event_text_bytes);
}

/* ---- Reasons ---- */

/* What the trace of the device's list says; every row has that list. */
static struct json_object *device_trace(struct json_object *row)
{
    struct json_object *device = kvb_json_member(kvb_json_member(row, "lists"), "device");

    return kvb_json_member(device, "trace");
}

static void say_held(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *trace = device_trace(row);
    const bool is_before = is_text(kvb_json_member_text(trace, "what"), "held_before");
    char event[event_text_bytes];

    (void)bridge;
    write_traced_event(trace, event);
    if (!trace) {
        (void)snprintf(out, kvctl_sentence_bytes, "held since before the trace");
        return;
    }
    (void)snprintf(
        out, kvctl_sentence_bytes, is_before ? "held; %s stored it again" : "held since %s, %s",
        event, kvb_json_member_text(trace, "origin"));
}

static void say_removed(struct json_object *bridge, struct json_object *row, char *out)
{
    char event[event_text_bytes];

    (void)bridge;
    write_traced_event(device_trace(row), event);
    (void)snprintf(out, kvctl_sentence_bytes, "removed by %s", event);
}

static void say_cleared(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *trace = device_trace(row);
    const bool is_restart = is_text(kvb_json_member_text(trace, "origin"), "restarted");
    char event[event_text_bytes];

    (void)bridge;
    write_traced_event(trace, event);
    (void)snprintf(
        out, kvctl_sentence_bytes,
        is_restart ? "gone: the list was begun anew by %s" : "cleared by %s", event);
}

static void say_never(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *trace = device_trace(row);
    char event[event_text_bytes];

    (void)bridge;
    write_traced_event(trace, event);
    (void)snprintf(
        out, kvctl_sentence_bytes,
        trace ? "never stored since all was cleared by %s" : "never stored since the bridge began",
        event);
}

static void say_older(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *trace = kvb_json_member(bridge, "trace");
    char event[event_text_bytes];

    (void)row;
    kvctl_explain_event(
        kvb_json_member_u64(trace, "first_event_id"), kvb_json_member_u64(trace, "first_time_ms"),
        event, sizeof event);
    (void)snprintf(
        out, kvctl_sentence_bytes,
        kvb_json_member_u64(trace, "events") > 0
            ? "not held; the trace begins later, with %s"
            : "not held; there is no trace (limits.sync_blocks)",
        event);
}

static void say_stream_state(struct json_object *bridge, const char *before, char *out)
{
    const char *reason = kvb_json_member_text(bridge, "reason");

    (void)snprintf(
        out, kvctl_sentence_bytes, "%s: %s%s%s%s", before, kvb_json_member_text(bridge, "state"),
        reason[0] ? "(" : "", reason, reason[0] ? ")" : "");
}

static void say_withdrawn(struct json_object *bridge, struct json_object *row, char *out)
{
    (void)row;
    say_stream_state(bridge, "the stream is published as empty", out);
}

static void say_incomplete(struct json_object *bridge, struct json_object *row, char *out)
{
    (void)row;
    say_stream_state(bridge, "not listed, but the list may lack blocks", out);
}

static void say_doubtful(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *device = kvb_json_member(kvb_json_member(row, "lists"), "device");

    (void)bridge;
    (void)snprintf(
        out, kvctl_sentence_bytes, "doubtful: 0 to %" PRIu64 " copies",
        kvb_json_member_u64(device, "max_copies"));
}

static void say_other_tier(struct json_object *bridge, struct json_object *row, char *out)
{
    struct json_object *trace = device_trace(row);
    char event[event_text_bytes];

    (void)bridge;
    write_traced_event(trace, event);
    (void)snprintf(
        out, kvctl_sentence_bytes,
        is_text(kvb_json_member_text(trace, "what"), "removed")
            ? "in another tier alone; %s removed it here"
            : "in another tier alone",
        event);
}

typedef void say_reason(struct json_object *bridge, struct json_object *row, char *out);

/* A reason that has a text needs nothing else; one that is not here came from a newer bridge. */
static const struct reason_row {
    const char *reason;
    say_reason *say;
    const char *text;
} reason_rows[] = {
    { "held", say_held, NULL },
    { "withdrawn", say_withdrawn, NULL },
    { "doubtful", say_doubtful, NULL },
    { "other_group", NULL, "held by some cache groups, but not by all of full attention" },
    { "other_tier", say_other_tier, NULL },
    { "parent_unknown", NULL, "stored behind a parent that is not known" },
    { "removed", say_removed, NULL },
    { "cleared", say_cleared, NULL },
    { "other_lora_or_salt", NULL, "held with another LoRA name or salt: give --lora, --salt" },
    { "unmatchable", NULL, "the engine holds a block here that no query can name (extra keys)" },
    { "never_stored", say_never, NULL },
    { "incomplete", say_incomplete, NULL },
    { "older_than_trace", say_older, NULL },
};

static void say_block_why(struct json_object *bridge, struct json_object *row, char *out)
{
    const char *text = json_object_get_string(kvb_json_member(row, "reason"));
    const char *reason = text ? text : ""; /* of a newer bridge: perhaps no string */

    (void)snprintf(out, kvctl_sentence_bytes, "%s", reason);
    for (size_t i = 0; i < KVB_COUNT_OF(reason_rows); i++) {
        const struct reason_row *known = &reason_rows[i];
        if (is_text(reason, known->reason) && known->say) {
            known->say(bridge, row, out);
        } else if (is_text(reason, known->reason)) {
            (void)snprintf(out, kvctl_sentence_bytes, "%s", known->text);
        }
    }
}

/* ---- The table ---- */

/* "device host?": the lists that have the block; with a question mark, only perhaps. */
static void say_lists(struct json_object *row, char out[kvctl_sentence_bytes])
{
    struct json_object *lists = kvb_json_member(row, "lists");
    size_t len = 0;

    out[0] = '\0';
    if (!json_object_is_type(lists, json_type_object)) {
        return;
    }
    json_object_object_foreach(lists, name, list)
    {
        const bool is_listed = json_object_get_boolean(kvb_json_member(list, "listed"));
        const bool is_there = kvb_json_member_u64(list, "max_copies") > 0;
        const int more =
            is_listed || is_there
                ? snprintf(
                      out + len, kvctl_sentence_bytes - len, "%s%s%s", len > 0 ? " " : "", name,
                      is_listed                                      ? ""
                      : kvb_json_member_u64(list, "min_copies") == 0 ? "?"
                                                                     : "*")
                : 0;
        len += (size_t)more < kvctl_sentence_bytes - len ? (size_t)more : 0;
    }
}

struct table_run {
    uint64_t first, last;
    uint64_t hash;
    bool has_hash;
    char lists[kvctl_sentence_bytes];
    char why[kvctl_sentence_bytes];
    const char *router;
};

static const char *router_word(uint64_t block, int64_t router_blocks)
{
    if (router_blocks < 0) {
        return "?";
    }
    return block < (uint64_t)router_blocks    ? "listed"
           : block == (uint64_t)router_blocks ? "not listed"
                                              : "behind the end";
}

static struct table_run table_run_of(
    struct json_object *bridge, struct json_object *row, uint64_t block, int64_t router_blocks)
{
    struct table_run run = { .first = block,
                             .last = block,
                             .hash = kvb_json_member_u64(row, "hash"),
                             .has_hash = kvb_json_member(row, "hash") != NULL,
                             .router = router_word(block, router_blocks) };

    say_lists(row, run.lists);
    say_block_why(bridge, row, run.why);
    return run;
}

static bool is_same_run(const struct table_run *run, const struct table_run *next)
{
    return next->first == run->last + 1 && is_text(run->lists, next->lists) &&
           is_text(run->why, next->why) && is_text(run->router, next->router);
}

static void add_span(struct json_object *out, const char *name, uint64_t first, uint64_t last)
{
    char text[64];

    (void)snprintf(
        text, sizeof text, first == last ? "%" PRIu64 : "%" PRIu64 "-%" PRIu64, first, last);
    json_object_object_add(out, name, json_object_new_string(text));
}

static void
append_run(struct json_object *table, struct json_object *bridge, const struct table_run *run)
{
    struct json_object *out = json_object_new_object();
    const uint64_t size = kvb_json_member_u64(bridge, "block_size");

    add_span(out, "blocks", run->first, run->last);
    add_span(out, "tokens", run->first * size, (run->last + 1) * size - (size > 0));
    if (run->has_hash) {
        json_object_object_add(out, "hash", json_object_new_uint64(run->hash));
    }
    json_object_object_add(out, "bridge", json_object_new_string(run->lists));
    json_object_object_add(out, "router", json_object_new_string(run->router));
    json_object_object_add(out, "why", json_object_new_string(run->why));
    json_object_array_add(table, out);
}

struct json_object *kvctl_explain_table(struct json_object *bridge, int64_t router_blocks)
{
    struct json_object *rows = kvb_json_member(bridge, "rows");
    struct json_object *table = json_object_new_array();
    const size_t count = kvb_json_list_len(rows);
    struct table_run run = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        const struct table_run next =
            table_run_of(bridge, row, kvb_json_member_u64(row, "block"), router_blocks);
        if (i > 0 && is_same_run(&run, &next)) {
            run.last = next.last;
            continue;
        }
        if (i > 0) {
            append_run(table, bridge, &run);
        }
        run = next;
    }
    if (count > 0) {
        append_run(table, bridge, &run);
    }
    return table;
}

static bool is_held_at_least(struct json_object *bridge)
{
    return json_object_get_boolean(kvb_json_member(bridge, "held_at_least")) != 0;
}

void kvctl_explain_break(struct json_object *bridge, char text[kvctl_sentence_bytes])
{
    struct json_object *rows = kvb_json_member(bridge, "rows");
    const uint64_t held = kvb_json_member_u64(bridge, "held_blocks");
    const uint64_t usable = kvb_json_member_u64(bridge, "usable_blocks");
    char why[kvctl_sentence_bytes] = "";

    if (held < kvb_json_list_len(rows)) {
        say_block_why(bridge, json_object_array_get_idx(rows, held), why);
        (void)snprintf(
            text, kvctl_sentence_bytes, "The prefix ends before block %" PRIu64 "%s: %.160s", held,
            is_held_at_least(bridge) ? ", or later" : "", why);
    } else {
        (void)snprintf(text, kvctl_sentence_bytes, "All blocks are listed");
    }
    if (usable < held) {
        const size_t len = strlen(text);
        (void)snprintf(
            text + len, kvctl_sentence_bytes - len,
            "; sliding windows leave %" PRIu64 " of %" PRIu64 " to a request", usable, held);
    }
}

/* ---- Bridge and aggregator ---- */

int64_t kvctl_explain_router_blocks(struct json_object *bridge, struct json_object *router)
{
    struct json_object *tokens = kvb_json_member(router, "tokens");
    const uint64_t size = kvb_json_member_u64(bridge, "block_size");

    return size > 0 ? (int64_t)(kvb_json_member_u64(tokens, "device") / size) : 0;
}

static void
add_sentence(struct json_object *out, const char *what, const char *bridge, const char *router)
{
    char text[kvctl_sentence_bytes];

    (void)snprintf(
        text, sizeof text, "%s: %.80s by the bridge, %.80s by the aggregator", what, bridge,
        router);
    json_object_array_add(out, json_object_new_string(text));
}

static void compare_texts(
    struct json_object *out, const char *what, struct json_object *bridge,
    struct json_object *router)
{
    const char *one = kvb_json_member_text(bridge, what);
    const char *other = kvb_json_member_text(router, what);

    if (!is_text(one, other)) {
        add_sentence(out, what, one[0] ? one : "none", other[0] ? other : "none");
    }
}

struct json_object *
kvctl_explain_differences(struct json_object *bridge, struct json_object *router)
{
    struct json_object *out = json_object_new_array();
    const uint64_t held = kvb_json_member_u64(bridge, "held_blocks");
    const int64_t router_blocks = kvctl_explain_router_blocks(bridge, router);
    char one[32];
    char other[32];

    if (!router) {
        json_object_array_add(
            out, json_object_new_string("the aggregator lists nothing of this prompt there"));
        return out;
    }
    compare_texts(out, "state", bridge, router);
    compare_texts(out, "reason", bridge, router);
    const bool may_hold_more = is_held_at_least(bridge) && router_blocks > (int64_t)held;
    if ((int64_t)held != router_blocks && !may_hold_more) {
        (void)snprintf(one, sizeof one, "%" PRIu64, held);
        (void)snprintf(other, sizeof other, "%" PRId64, router_blocks);
        add_sentence(out, "blocks from the beginning", one, other);
    }
    return out;
}

/* ---- Workers that are near ---- */

struct near_worker {
    uint64_t worker_id;
    uint64_t distance;
};

static int compare_distances(const void *left, const void *right)
{
    const struct near_worker *a = left;
    const struct near_worker *b = right;

    if (a->distance != b->distance) {
        return a->distance < b->distance ? -1 : 1;
    }
    return (a->worker_id > b->worker_id) - (a->worker_id < b->worker_id);
}

void kvctl_near_workers(
    struct json_object *rows, uint64_t worker_id, char text[kvctl_sentence_bytes])
{
    const size_t count = kvb_json_list_len(rows);
    struct near_worker *near = calloc(count + 1, sizeof *near);
    size_t len = 0;
    size_t said = 0;

    text[0] = '\0';
    for (size_t i = 0; near && i < count; i++) {
        const uint64_t id = kvb_json_member_u64(json_object_array_get_idx(rows, i), "worker_id");
        near[i] = (struct near_worker){ id, id > worker_id ? id - worker_id : worker_id - id };
    }
    if (near) {
        qsort(near, count, sizeof *near, compare_distances);
    }
    for (size_t i = 0; near && i < count && said < near_workers; i++) {
        if (i > 0 && near[i].worker_id == near[i - 1].worker_id) {
            continue; /* another rank of it */
        }
        len += (size_t)snprintf(/* fits: five numbers */
                                text + len, kvctl_sentence_bytes - len, "%s%" PRIu64,
                                said > 0 ? ", " : "", near[i].worker_id);
        said++;
    }
    free(near);
}
