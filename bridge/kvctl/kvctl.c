#include "kvctl/kvctl.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <inttypes.h>
#include <string.h>

/* kvctl: queries a kvaggregator and watches bridges.  The table of commands is at the end. */

/* Prints an answer for people. */
typedef void (*printer)(struct json_object *root);

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
    printf("%s complete blocks of %s tokens; DEVICE, HOST, DISK in tokens\n", blocks, block_size);
    kvctl_print_table(stdout, kvb_json_member(root, "workers"), columns, KVB_COUNT_OF(columns));
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

    for (size_t i = 0; i < KVB_COUNT_OF(chosen); i++) {
        kvctl_text_at(root, chosen[i].path, text, sizeof text);
        printf("%s %s%s", chosen[i].title, text, i + 1 < KVB_COUNT_OF(chosen) ? ", " : "\n");
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
    printf("load_avg %s, load_std %s\n", average, deviation);
    kvctl_print_table(stdout, kvb_json_member(root, "endpoints"), columns, KVB_COUNT_OF(columns));
    struct json_object *stale = kvb_json_member(root, "stale");
    if (stale && json_object_array_length(stale) > 0) {
        printf("silent for too long: %s\n", json_object_to_json_string(stale));
    }
}

static void print_streams(struct json_object *root)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "STATE", "state", false },
        { "REASON", "reason", false },
        { "DEVICE", "blocks.device", true },
        { "HOST", "blocks.host", true },
        { "DISK", "blocks.disk", true },
        { "DOUBTFUL", "doubtful", true },
        { "MISSING<=", "missing_at_most", true },
        { "LAST EVENT", "last_event_id", true },
        { "SIZE", "block_size", true },
        { "MODEL", "model", false },
        { "NAMESPACE", "namespace", false },
        { "COMPONENT", "component", false },
    };

    kvctl_print_table(stdout, kvb_json_member(root, "streams"), columns, KVB_COUNT_OF(columns));
}

static void print_state(struct json_object *root)
{
    kvctl_print_tree(stdout, root);
}

static void print_rows(struct json_object *root)
{
    const char *rows = json_object_get_string(kvb_json_member(root, "rows"));

    fputs(rows ? rows : "", stdout);
}

/* ---- Queries and their answers ------------------------------------------------------ */

static void print_as_it_came(const struct kvb_buf *answer)
{
    fwrite(answer->data, 1, answer->len, stdout);
    if (answer->len == 0 || answer->data[answer->len - 1] != '\n') {
        fputs("\n", stdout);
    }
}

/* Sends one query and parses the answer into *out_root. */
static enum kvctl_exit request_and_show(
    const struct kvctl_line *line, const char *tail, kvb_span query, printer print,
    struct json_object **out_root)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };

    kvb_buf_init(&answer, kvb_max_answer_bytes);
    const enum kvctl_exit outcome = kvctl_request_answer(line, tail, query, &answer);
    if (outcome != kvctl_ok) {
        return outcome;
    }
    if (line->options->is_json) {
        print_as_it_came(&answer);
    }
    const enum kvctl_exit read = kvctl_read_answer(&answer, out_root);
    if (read == kvctl_ok && !line->options->is_json) {
        print(*out_root);
    }
    return read;
}

static enum kvctl_exit
request_once(const struct kvctl_options *options, const char *tail, kvb_span query, printer print)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    return connected == kvctl_ok ? request_and_show(&line, tail, query, print, &root) : connected;
}

static enum kvctl_exit
query_tokens(const struct kvctl_options *options, const char *tail, printer print)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    struct kvb_detail detail = { 0 };

    kvb_buf_init(&query, kvb_max_query_body_bytes);
    const kvb_status status = kvctl_write_query(options, &query, &detail);
    if (status != KVB_OK) {
        kvctl_say("%s", detail.text[0] ? detail.text : kvb_status_name(status));
        return kvctl_usage;
    }
    return request_once(options, tail, kvb_buf_span(&query), print);
}

/* Long answers come in pages; each page names the start of the next one. */
struct paging {
    const char *tail;
    printer print;
    struct {
        const char *said;   /* member of the answer; NULL: not used */
        const char *member; /* of the next page's query */
    } places[2];
};

/* Writes the query for the next page, {"stream":3,"row":100}; false after the last page. */
static bool
next_page_query(struct json_object *root, const struct paging *paging, struct kvb_buf *query)
{
    struct kvb_json_writer json = kvb_json_writer_of(query);
    bool has_next = false;

    kvb_buf_reset(query);
    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < KVB_COUNT_OF(paging->places); i++) {
        const char *said = paging->places[i].said;
        struct json_object *place = said ? kvb_json_member(root, said) : NULL;
        if (place) {
            kvb_json_write_pair_u64(&json, paging->places[i].member, json_object_get_uint64(place));
            has_next = true;
        }
    }
    kvb_json_write_end(&json, '}');
    return has_next && json.status == KVB_OK;
}

static enum kvctl_exit
request_pages(const struct kvctl_options *options, const struct paging *paging)
{
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    enum kvctl_exit result = kvctl_connect(options, NULL, &line);
    bool has_next = result == kvctl_ok;

    kvb_buf_init(&query, 256);
    while (has_next) {
        KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
        result = request_and_show(&line, paging->tail, kvb_buf_span(&query), paging->print, &root);
        has_next = result == kvctl_ok && next_page_query(root, paging, &query);
        if (has_next) {
            kvctl_stay_with(&line, root);
        }
    }
    return result;
}

/* ---- Commands -------------------------------------------------------------------------- */

static enum kvctl_exit run_match(const struct kvctl_options *options)
{
    return query_tokens(options, "kv_match", print_match);
}

static enum kvctl_exit run_route(const struct kvctl_options *options)
{
    return query_tokens(options, "kv_route", print_route);
}

static const kvb_span nothing = { NULL, 0 };

static enum kvctl_exit run_load(const struct kvctl_options *options)
{
    return request_once(options, "kv_get.load", nothing, print_load);
}

static enum kvctl_exit run_streams(const struct kvctl_options *options)
{
    const struct paging paging = { "kv_get.streams", print_streams, { { "next", "from" } } };

    return request_pages(options, &paging);
}

/* For people the streams follow below; with --json it is one answer. */
static enum kvctl_exit run_state(const struct kvctl_options *options)
{
    const enum kvctl_exit result = request_once(options, "kv_get.state", nothing, print_state);

    if (result != kvctl_ok || options->is_json) {
        return result;
    }
    printf("\n");
    return run_streams(options);
}

static enum kvctl_exit run_dump(const struct kvctl_options *options)
{
    const struct paging paging = { "kv_get.dump",
                                   print_rows,
                                   { { "stream", "stream" }, { "row", "row" } } };

    return request_pages(options, &paging);
}

const struct kvctl_command *kvctl_commands(void)
{
    static const struct kvctl_command commands[] = {
        { "match", NULL, true, run_match },
        { "route", NULL, true, run_route },
        { "load", NULL, false, run_load },
        { "state", NULL, false, run_state },
        { "streams", NULL, false, run_streams },
        { "dump", NULL, false, run_dump },
        { "top", NULL, false, kvctl_top },
        { "watch", NULL, false, kvctl_watch },
        { "verify", NULL, false, kvctl_verify },
        { "check", "FILE", false, kvctl_check },
        { "decode", "[FILE|-]", false, kvctl_decode },
        { 0 },
    };

    return commands;
}

int main(int argc, char **argv)
{
    struct kvctl_options options;

    kvctl_options_read(argc, argv, &options);
    for (const struct kvctl_command *command = kvctl_commands(); command->name; command++) {
        if (strcmp(command->name, options.command) == 0) {
            const enum kvctl_exit result = command->run(&options);
            return fflush(stdout) == 0 ? (int)result : (int)kvctl_failed;
        }
    }
    return kvctl_usage;
}
