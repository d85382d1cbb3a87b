#include "kvctl/kvctl.h"
#include "bus/bus.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"

#include <inttypes.h>
#include <string.h>

/* kvctl: queries a kvaggregator and watches bridges.  The table of commands is at the end. */

/* Where nobody that was asked for is up, the table is empty. */
static void print_down(struct json_object *rows)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },     { "RANK", "dp_rank", true },
        { "STATE", "state", false },         { "REASON", "reason", false },
        { "NAMESPACE", "namespace", false }, { "COMPONENT", "component", false },
    };

    if (kvb_json_list_len(rows) > 0) {
        kvctl_print(stdout, "no worker is up; of those that are asked for there are:\n");
        kvctl_print_table(stdout, rows, columns, KVB_COUNT_OF(columns));
    }
}

/* Of a text of which not all tokens are known: how many are, and why. */
static void print_unknown(struct json_object *root)
{
    char known[16];
    char reason[256];

    if (kvb_json_member(root, "tokens_reason")) {
        kvctl_text_at(root, "tokens", known, sizeof known);
        kvctl_text_at(root, "tokens_reason", reason, sizeof reason);
        kvctl_print(stdout, " (%s: %s)", known, reason);
    }
}

static void print_match(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },     { "RANK", "dp_rank", true },
        { "BLOCKS", "blocks", true },        { "PERCENT", "percent", true },
        { "DEVICE", "tokens.device", true }, { "HOST", "tokens.host", true },
        { "DISK", "tokens.disk", true },     { "STATE", "state", false },
        { "REASON", "reason", false },       { "NAMESPACE", "namespace", false },
        { "COMPONENT", "component", false },
    };
    char blocks[32];
    char block_size[32];

    kvctl_text_at(root, "blocks", blocks, sizeof blocks);
    kvctl_text_at(root, "block_size", block_size, sizeof block_size);
    kvctl_print(stdout, "%s complete blocks of %s tokens", blocks, block_size);
    if (kvb_json_member(root, "prompt_tokens")) { /* the prompt was text */
        kvctl_print(stdout, " in a prompt of %" PRIu64, kvb_json_member_u64(root, "prompt_tokens"));
        print_unknown(root);
    }
    kvctl_print(stdout, "; DEVICE, HOST, DISK in tokens\n");
    kvctl_print_table(stdout, kvb_json_member(root, "workers"), columns, KVB_COUNT_OF(columns));
    print_down(kvb_json_member(root, "down"));
}

/* Appends "7/0 8/1" for the first `count` rows. */
static void name_holders(struct json_object *rows, size_t count, struct json_object *out_row)
{
    char names[4096] = "nobody";
    size_t used = 0;

    /* Two numbers and blanks need 34 bytes; a list that is longer is cut between two ranks. */
    for (size_t i = 0; i < count && used + 48 < sizeof names; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        used += (size_t)snprintf(
            names + used, sizeof names - used, "%s%" PRIu64 "/%" PRIu64, i > 0 ? " " : "",
            kvb_json_member_u64(row, "worker_id"), kvb_json_member_u64(row, "dp_rank"));
    }
    json_object_object_add(out_row, "holders", json_object_new_string(names));
}

static void add_range(struct json_object *out_rows, uint64_t from, uint64_t end, uint64_t size)
{
    struct json_object *row = json_object_new_object();
    char text[64];

    (void)snprintf(text, sizeof text, "%" PRIu64 "-%" PRIu64, from, end - 1);
    json_object_object_add(row, "blocks", json_object_new_string(text));
    (void)snprintf(text, sizeof text, "%" PRIu64 "-%" PRIu64, from * size, end * size - 1);
    json_object_object_add(row, "tokens", json_object_new_string(text));
    json_object_array_add(out_rows, row);
}

/* Who holds which blocks of the prompt, from its beginning on: the workers come best first, so each
 * run of blocks is held by the first few of them. */
static void print_match_blocks(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "BLOCKS", "blocks", false },
        { "TOKENS", "tokens", false },
        { "HELD BY WORKER/RANK", "holders", false },
    };
    KVB_OWN(kvb_json_drop) struct json_object *ranges = json_object_new_array();
    struct json_object *workers = kvb_json_member(root, "workers");
    const uint64_t blocks = kvb_json_member_u64(root, "blocks");
    const uint64_t size = kvb_json_member_u64(root, "block_size");
    uint64_t from = 0;

    print_match(root);
    for (size_t count = kvb_json_list_len(workers); from < blocks; count--) {
        struct json_object *last = count > 0 ? json_object_array_get_idx(workers, count - 1) : NULL;
        const uint64_t own_size =
            last ? kvb_json_member_u64(last, "block_size") : 0; /* where it differs */
        const uint64_t held = last ? kvb_json_member_u64(last, "blocks") : blocks;
        const uint64_t end = own_size > 0 && size > 0 ? held * own_size / size : held;
        if (end > from) {
            add_range(ranges, from, end, size);
            name_holders(
                workers, count, json_object_array_get_idx(ranges, kvb_json_list_len(ranges) - 1));
            from = end;
        }
    }
    printf("\n");
    kvctl_print_table(stdout, ranges, columns, KVB_COUNT_OF(columns));
}

static void print_route(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "COST", "cost", true },
        { "OVERLAP", "overlap_blocks", true },
        { "DECODE", "decode_blocks", true },
        { "WAITING", "waiting", true },
    };
    static const struct kvctl_column chosen[] = {
        { "worker", "worker_id", false }, { "rank", "dp_rank", false },
        { "policy", "policy", false },    { "overlap blocks", "overlap_blocks", false },
        { "reason", "reason", false },
    };
    char text[256];

    if (kvb_json_member(root, "prompt_tokens")) { /* the prompt was text */
        kvctl_print(stdout, "prompt tokens %" PRIu64, kvb_json_member_u64(root, "prompt_tokens"));
        print_unknown(root);
        kvctl_print(stdout, ", ");
    }
    for (size_t i = 0; i < KVB_COUNT_OF(chosen); i++) {
        kvctl_text_at(root, chosen[i].path, text, sizeof text);
        kvctl_print(
            stdout, "%s %s%s", chosen[i].title, text, i + 1 < KVB_COUNT_OF(chosen) ? ", " : "\n");
    }
    kvctl_print_table(stdout, kvb_json_member(root, "scores"), columns, KVB_COUNT_OF(columns));
}

static void print_load(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "ACTIVE", "data.request_active_slots", true },
        { "SLOTS", "data.request_total_slots", true },
        { "WAITING", "data.num_requests_waiting", true },
        { "BLOCKS", "data.kv_active_blocks", true },
        { "OF", "data.kv_total_blocks", true },
        { "CACHE", "data.gpu_cache_usage_perc", true },
        { "HIT RATE", "data.gpu_prefix_cache_hit_rate", true },
        { "NAME", "name", false },
    };
    char average[32];
    char deviation[32];

    kvctl_text_at(root, "load_avg", average, sizeof average);
    kvctl_text_at(root, "load_std", deviation, sizeof deviation);
    kvctl_print(stdout, "load_avg %s, load_std %s\n", average, deviation);
    kvctl_print_table(stdout, kvb_json_member(root, "endpoints"), columns, KVB_COUNT_OF(columns));
    struct json_object *stale = kvb_json_member(root, "stale");
    if (stale && json_object_array_length(stale) > 0) {
        kvctl_print(stdout, "silent for too long: %s\n", json_object_to_json_string(stale));
    }
}

static void print_streams(struct json_object *root)
{
    size_t count = 0;
    const struct kvctl_column *columns = kvctl_stream_columns(&count);

    kvctl_print_table(stdout, kvb_json_member(root, "streams"), columns, count);
}

/* The rows of audited streams, each with "kept": what was delivered, in percent of the promise. */
static struct json_object *audited_rows(struct json_object *streams)
{
    struct json_object *rows = json_object_new_array();
    const size_t count = kvb_json_list_len(streams);

    for (size_t i = 0; i < count; i++) {
        struct json_object *row = json_object_array_get_idx(streams, i);
        struct json_object *audit = kvb_json_member(row, "audit");
        const double promised = json_object_get_double(kvb_json_member(audit, "promised_tokens"));
        const double delivered = json_object_get_double(kvb_json_member(audit, "delivered_tokens"));
        /* A share of nothing is no number. */
        if (audit && promised > 0) {
            json_object_object_add(
                audit, "kept", json_object_new_double(100 * delivered / promised));
            json_object_array_add(rows, json_object_get(row));
        }
    }
    return rows;
}

static void print_audit(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "STATE", "state", false },
        { "REASON", "reason", false },
        { "VERDICT", "audit.verdict", false },
        { "EVIDENCE", "audit.evidence", true },
        { "KEPT %", "audit.kept", true },
        { "PROMISED", "audit.promised_tokens", true },
        { "DELIVERED", "audit.delivered_tokens", true },
        { "EXTRA", "audit.extra_tokens", true },
        { "REQUESTS", "audit.requests", true },
        { "SHORT", "audit.short_requests", true },
        { "NAMESPACE", "namespace", false },
        { "COMPONENT", "component", false },
    };
    KVB_OWN(kvb_json_drop)
    struct json_object *rows = audited_rows(kvb_json_member(root, "streams"));

    kvctl_print_table(stdout, rows, columns, KVB_COUNT_OF(columns));
}

static void print_state(struct json_object *root)
{
    kvctl_print_tree(stdout, root);
}

static void print_rows(struct json_object *root)
{
    const char *rows = json_object_get_string(kvb_json_member(root, "rows"));

    kvctl_print(stdout, "%s", rows ? rows : "");
}

/* ---- Queries and their answers ------------------------------------------------------ */

static void print_as_it_came(const struct kvb_buf *answer)
{
    kvctl_put(stdout, answer->data, answer->len);
    if (answer->len == 0 || answer->data[answer->len - 1] != '\n') {
        fputs("\n", stdout);
    }
}

struct showing {
    const struct kvctl_command *command;
    bool is_json;
};

static enum kvctl_exit
show_answer(void *context, const struct kvb_buf *answer, struct json_object **out_root)
{
    const struct showing *showing = context;

    if (showing->is_json) {
        /* Before it is read: what cannot be read is worth seeing, too. */
        print_as_it_came(answer);
    }
    const enum kvctl_exit read = kvctl_read_answer(answer, out_root);
    if (read == kvctl_ok && !showing->is_json) {
        showing->command->print(*out_root);
    }
    return read;
}

static enum kvctl_exit
request_and_show(const struct kvctl_options *options, const struct kvctl_command *command)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    struct showing showing = { .command = command, .is_json = options->is_json };
    struct kvb_detail detail = { 0 };

    kvb_buf_init(&query, kvb_max_query_body_bytes);
    const kvb_status status =
        command->needs_prompt ? kvctl_write_query(options, &query, &detail) : KVB_OK;
    if (status != KVB_OK) {
        kvctl_say("%s", detail.text[0] ? detail.text : kvb_status_name(status));
        return kvctl_usage;
    }
    /* A prompt that is wrong is said before a server is dialled. */
    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    return connected == kvctl_ok
               ? kvctl_request_pages(
                     &line, command->tail, kvb_buf_span(&query), show_answer, &showing)
               : connected;
}

/* ---- Commands -------------------------------------------------------------------------- */

/* For people the streams follow below; with --json it is one answer. */
static enum kvctl_exit run_state(const struct kvctl_options *options)
{
    const struct kvctl_command state = { .tail = "kv_get.state", .print = print_state };
    const struct kvctl_command streams = { .tail = "kv_get.streams", .print = print_streams };
    const enum kvctl_exit result = request_and_show(options, &state);

    if (result != kvctl_ok || options->is_json) {
        return result;
    }
    kvctl_print(stdout, "\n");
    return request_and_show(options, &streams);
}

static enum kvctl_exit run_match(const struct kvctl_options *options)
{
    const struct kvctl_command match = { .tail = "kv_match",
                                         .print = options->is_by_block ? print_match_blocks
                                                                       : print_match,
                                         .needs_prompt = true };

    return request_and_show(options, &match);
}

const struct kvctl_command *kvctl_commands(void)
{
    /* clang-format off */
    static const struct kvctl_command commands[] = {
        { .name = "match", .run = run_match, .needs_prompt = true,
          .summary = "how much of a prompt each worker holds",
          .more = "For example: kvctl match --text 'You are a helpful assistant.'\n" },
        { .name = "route", .tail = "kv_route", .print = print_route, .needs_prompt = true,
          .summary = "the worker to which a prompt is routed, and why",
          .more = "Counts as a request until its time is over: see router.request_ttl_ms.\n" },
        { .name = "load", .tail = "kv_get.load", .print = print_load,
          .summary = "load of the workers" },
        { .name = "state", .run = run_state,
          .summary = "counters of the aggregator, then all streams" },
        { .name = "streams", .tail = "kv_get.streams", .print = print_streams,
          .summary = "all streams with their states" },
        { .name = "workers", .run = kvctl_workers,
          .summary = "where each worker comes from; pods that are not workers" },
        { .name = "audit", .tail = "kv_get.streams", .print = print_audit,
          .summary = "cached tokens that streams promised, and engines delivered" },
        { .name = "dump", .tail = "kv_get.dump", .print = print_rows,
          .summary = "all held blocks: worker rank tier hash" },
        { .name = "check", .argument = "FILE", .run = kvctl_check,
          .summary = "reports mistakes in a configuration file of either daemon" },
        { .name = "decode", .argument = "[FILE|-]", .run = kvctl_decode,
          .summary = "the events in recorded engine messages; -: stdin" },
        { .name = "watch", .run = kvctl_watch,
          .summary = "published events, one a line; --all: all messages" },
        { .name = "verify", .run = kvctl_verify,
          .summary = "compares the index with a kvfleet's engines, and pauses them" },
        { .name = "top", .run = kvctl_top,
          .summary = "live table of all streams",
          .more = "q quit, / filter, Esc no filter, < > sort by the column beside, r reverse,\n"
                  "arrows PgUp PgDn Home End scroll, Ctrl-L draw again.\n" },
        { .name = "permissions", .argument = "ROLE", .run = kvctl_permissions,
          .choices = "bridge aggregator router reader operator",
          .summary = "what nats-server must permit a program",
          .more = "ROLE: bridge, aggregator, router, reader or operator.\n" },
        { .name = "completion", .argument = "bash", .choices = "bash", .run = kvctl_completion,
          .summary = "completion of bash, to be sourced" },
        { .name = "help", .argument = "[COMMAND]", .run = kvctl_help,
          .summary = "this help, or that of a command" },
        { .name = "version", .run = kvctl_version, .summary = "the version" },
        { 0 },
    };
    /* clang-format on */

    return commands;
}

int main(int argc, char **argv)
{
    struct kvctl_options options;

    kvb_openssl_keep_at_exit();
    const struct kvctl_command *command = kvctl_options_read(argc, argv, &options);
    const enum kvctl_exit result =
        command->run ? command->run(&options) : request_and_show(&options, command);
    return fflush(stdout) == 0 ? (int)result : (int)kvctl_failed;
}
