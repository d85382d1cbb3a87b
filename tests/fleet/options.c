#include "fleet/options.h"

#include "core/decimal.h"
#include "core/limits.h"
#include "core/own.h"
#include "fleet/malformed.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* argp ends the program on wrong usage; no thread runs yet.
 * NOLINTBEGIN(concurrency-mt-unsafe) */

/* Options without a letter. */
enum option_key {
    key_workers = 0x100,
    key_ranks,
    key_first_id,
    key_model,
    key_dialect,
    key_block_size,
    key_blocks,
    key_slots,
    key_replay_buffer,
    key_malformed,
    key_malformed_every,
    key_trace,
    key_scale,
    key_rate,
    key_requests,
    key_seed,
    key_step_ms,
    key_seconds,
    key_bind,
    key_base_port,
    key_http,
    key_serve,
    key_truth,
    key_log_changes,
    key_config_out,
    key_config_split,
};

/* clang-format off */
static const struct argp_option option_rows[] = {
    { NULL, 0, NULL, 0, "The engines:", 1 },
    { "workers", key_workers, "N", 0, "Number of workers (8)", 1 },
    { "ranks", key_ranks, "N", 0, "Data-parallel ranks of each worker (2)", 1 },
    { "first-id", key_first_id, "ID", 0, "First worker id; the others count up from it (1)", 1 },
    { "model", key_model, "NAME", 0, "Served model (fleet)", 1 },
    { "dialect", key_dialect, "NAME", 0, "A list of dialects, assigned to the workers in turn: vllm-0.9, vllm-0.11, vllm-0.22, vllm-0.31 (or without vllm-), sglang-2025, sglang-mid, sglang-map, trtllm, mooncake-a, mooncake-b, mooncake-c; mixed = vllm-0.11,0.22,0.31; all = every dialect (mixed)", 1 },
    { "block-size", key_block_size, "TOKENS", 0, "Tokens in a block (16)", 1 },
    { "blocks", key_blocks, "N", 0, "Blocks in the cache of a rank (4096)", 1 },
    { "slots", key_slots, "N", 0, "Requests that run at once on a rank (64)", 1 },
    { "replay-buffer", key_replay_buffer, "BATCHES", 0, "Batches kept for replays (10000)", 1 },
    { "malformed", key_malformed, "KIND", 0, "Also send malformed payloads: of one kind, or all kinds in turn; list = print the kinds and exit", 1 },
    { "malformed-every", key_malformed_every, "BATCHES", 0, "Batches of a rank between two malformed payloads (100)", 1 },
    { NULL, 0, NULL, 0, "The load:", 2 },
    { "trace", key_trace, "FILE", 0, "Chat trace, one JSON object a line: timestamp, input_length, output_length, hash_ids.  Required without --serve", 2 },
    { "scale", key_scale, "N", 0, "Divide all lengths by this (4)", 2 },
    { "rate", key_rate, "N", 0, "Requests a second for the whole fleet (32)", 2 },
    { "requests", key_requests, "N", 0, "Stop the load after this many requests, but keep serving", 2 },
    { "seed", key_seed, "N", 0, "Seed of hashes and random numbers (1)", 2 },
    { "step-ms", key_step_ms, "MS", 0, "Time between two steps of an engine (20)", 2 },
    { "seconds", key_seconds, "N", 0, "Exit after this many seconds (never)", 2 },
    { NULL, 0, NULL, 0, "Addresses:", 3 },
    { "bind", key_bind, "ADDRESS", 0, "Address of all sockets (127.0.0.1)", 3 },
    { "base-port", key_base_port, "N", 0, "Worker w (from 0) has its event ports from N + w * (2 * ranks + 1) on, then its replay ports, then its load port; 0 = free ports (0)", 3 },
    { "http", key_http, "ADDRESS:PORT", 0, "Serve GET /workers/ID/metrics; port 0 = any free port", 3 },
    { "serve", key_serve, "PORT", 0, "Each worker answers POST /v1/completions, /v1/chat/completions and /tokenize, and GET /metrics: worker w (from 0) at PORT + w, 0 = free ports.  --config-out then writes the addresses, and --trace may be left out: only these requests come", 3 },
    { "truth", key_truth, "PATH", 0, "Unix socket that answers what the engines hold; one command a line: truth, changes, stats, pause, resume, drain, reset, sleep, wake, lose, restart, drop, malform, stop", 3 },
    { "log-changes", key_log_changes, "N", 0, "Changes of blocks that are kept for each rank, for the command changes of the truth socket (0)", 3 },
    { "config-out", key_config_out, "FILE", 0, "Write the list `workers` for a configuration of kvbridge", 3 },
    { "config-split", key_config_split, "K", 0, "Divide the workers among K bridges: FILE.0 .. FILE.K-1", 3 },
    { 0 },
};
/* clang-format on */

static const char doc[] =
    "Simulates inference engines: their caches, events, replays and load figures, as vLLM, "
    "SGLang, TensorRT-LLM and Mooncake send them.\vIt runs until SIGTERM, SIGINT, or stop on "
    "the truth socket, and then exits with 0.  Exit status: 64 wrong usage, 78 a file or port that "
    "cannot be used.";

static uint64_t read_fleet_number(
    const char *text, const char *what, uint64_t min, uint64_t max, const struct argp_state *state)
{
    uint64_t value = 0;

    if (!kvb_decimal_read(text, &value) || value < min || value > max) {
        argp_error(
            state, "%s: expected a number from %lu to %lu, got \"%s\"", what, min, max, text);
    }
    return value;
}

static double
read_real(const char *text, const char *what, double max, const struct argp_state *state)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0 && value <= max)) {
        argp_error(state, "%s: expected a number from 0 to %g, got \"%s\"", what, max, text);
    }
    return value;
}

/* Adds the dialects from first to last. */
static void add_dialects(
    struct kvb_fleet_options *fleet, enum kvb_dialect first, enum kvb_dialect last,
    const struct argp_state *state)
{
    for (int dialect = first; dialect <= (int)last; dialect++) {
        if (fleet->dialect_count == kvb_fleet_dialects) {
            argp_error(state, "dialect: at most %d in the list", kvb_fleet_dialects);
        }
        fleet->dialects[fleet->dialect_count++] = (enum kvb_dialect)dialect;
    }
}

/* A list, which replaces an earlier one. */
static void
read_dialects(char *text, struct kvb_fleet_options *fleet, const struct argp_state *state)
{
    char *rest = NULL;

    fleet->dialect_count = 0;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        enum kvb_dialect one = KVB_DIALECT_COUNT;
        if (strcmp(word, "mixed") == 0) {
            add_dialects(fleet, KVB_DIALECT_VLLM_0_11, KVB_DIALECT_VLLM_0_31, state);
        } else if (strcmp(word, "all") == 0) {
            add_dialects(fleet, 0, KVB_DIALECT_COUNT - 1, state);
        } else if (kvb_dialect_find(word, &one) == KVB_OK) {
            add_dialects(fleet, one, one, state);
        } else {
            argp_error(state, "dialect: unknown dialect \"%s\"; --help lists them", word);
        }
    }
    if (fleet->dialect_count == 0) {
        argp_error(state, "dialect: expected at least one");
    }
}

static void read_malformed(
    const char *text, struct kvb_kvfleet_options *options, const struct argp_state *state)
{
    struct kvb_fleet_options *fleet = &options->fleet;

    fleet->malformed_first = 0;
    fleet->malformed_count = 1;
    if (strcmp(text, "list") == 0) {
        for (size_t kind = 0; kind < kvb_malformed_kinds; kind++) {
            printf("%s\n", kvb_malformed_name(kind));
        }
        exit(EXIT_SUCCESS);
    }
    if (strcmp(text, "all") == 0) {
        fleet->malformed_count = kvb_malformed_kinds;
    } else if (kvb_malformed_find(text, &fleet->malformed_first) != KVB_OK) {
        argp_error(state, "malformed: unknown kind \"%s\"; --malformed=list prints them", text);
    }
}

/* Checks a name, because it is written unchanged into files and label values. */
static const char *
read_name_option(const char *text, const char *what, const struct argp_state *state)
{
    if (text[0] == '\0' || strlen(text) > 128 || strpbrk(text, "\"\\\n\r\t")) {
        argp_error(state, "%s: expected 1 to 128 characters without quotes or backslashes", what);
    }
    return text;
}

static void
read_http(const char *text, struct kvb_kvfleet_options *options, const struct argp_state *state)
{
    const char *colon = strrchr(text, ':');

    if (!colon || colon == text || (size_t)(colon - text) >= sizeof options->http_address) {
        argp_error(state, "http: expected ADDRESS:PORT, such as 127.0.0.1:0, got \"%s\"", text);
        return;
    }
    (void)snprintf(
        options->http_address, sizeof options->http_address, "%.*s", (int)(colon - text), text);
    options->http_port =
        (uint16_t)read_fleet_number(colon + 1, "port of http", 0, UINT16_MAX, state);
    options->has_http = true;
}

static void
read_serve(const char *text, struct kvb_kvfleet_options *options, const struct argp_state *state)
{
    options->serve_port = (uint16_t)read_fleet_number(text, "serve", 0, UINT16_MAX, state);
    options->has_serve = true;
}

/* ---- Options that are stored as they are given ---- */

enum option_type { option_u16, option_u32, option_u64, option_real, option_name, option_path };

struct option_field {
    int key;
    enum option_type type;
    size_t offset; /* in struct kvb_kvfleet_options */
    uint64_t min;  /* of numbers, like max; real ones begin at 0 */
    uint64_t max;
};

#define AT(member) offsetof(struct kvb_kvfleet_options, member)

/* clang-format off */
static const struct option_field option_fields[] = {
    { key_workers,         option_u32,  AT(fleet.workers), 1, kvb_max_workers },
    { key_ranks,           option_u32,  AT(fleet.ranks), 1, kvb_max_ranks },
    { key_first_id,        option_u64,  AT(fleet.first_worker), 0, INT64_MAX - kvb_max_workers },
    { key_block_size,      option_u32,  AT(fleet.engine.block_size), 1, kvb_max_block_tokens },
    { key_blocks,          option_u32,  AT(fleet.engine.blocks), 2, kvb_max_stream_blocks },
    { key_slots,           option_u32,  AT(fleet.engine.max_running), 1, 1 << 16 },
    { key_replay_buffer,   option_u32,  AT(fleet.replay_batches), 1, 1 << 20 },
    { key_log_changes,     option_u32,  AT(fleet.engine.log_changes), 0, 1 << 22 },
    { key_malformed_every, option_u32,  AT(malformed_every), 1, UINT32_MAX },
    { key_scale,           option_u32,  AT(scale), 1, 512 },
    { key_requests,        option_u64,  AT(fleet.max_requests), 1, UINT64_MAX },
    { key_seed,            option_u64,  AT(fleet.seed), 0, UINT64_MAX },
    { key_step_ms,         option_u32,  AT(step_ms), 1, 10000 },
    { key_seconds,         option_u64,  AT(seconds), 1, 1 << 30 },
    { key_config_split,    option_u32,  AT(config_split), 1, kvb_max_workers },
    { key_base_port,       option_u16,  AT(fleet.base_port), 0, UINT16_MAX },
    { key_rate,            option_real, AT(fleet.requests_per_s), 0, 1000000 },
    { key_model,           option_name, AT(model), 0, 0 },
    { key_bind,            option_name, AT(fleet.address), 0, 0 },
    { key_trace,           option_path, AT(trace_path), 0, 0 },
    { key_truth,           option_path, AT(truth_path), 0, 0 },
    { key_config_out,      option_path, AT(config_path), 0, 0 },
};
/* clang-format on */

static const char *fleet_option_name(int key)
{
    const struct argp_option *row = option_rows;

    while (row->key != key) {
        row++;
    }
    return row->name;
}

static void store_fleet_option(
    const struct option_field *field, char *text, struct kvb_kvfleet_options *options,
    const struct argp_state *state)
{
    const char *name = fleet_option_name(field->key);
    void *at = (char *)options + field->offset;

    switch (field->type) {
    case option_u16:
        *(uint16_t *)at = (uint16_t)read_fleet_number(text, name, field->min, field->max, state);
        break;
    case option_u32:
        *(uint32_t *)at = (uint32_t)read_fleet_number(text, name, field->min, field->max, state);
        break;
    case option_u64:
        *(uint64_t *)at = read_fleet_number(text, name, field->min, field->max, state);
        break;
    case option_real:
        *(double *)at = read_real(text, name, (double)field->max, state);
        break;
    case option_name:
        *(const char **)at = read_name_option(text, name, state);
        break;
    case option_path:
        *(const char **)at = text;
        break;
    }
}

/* Handles one option: a row of the table, or a special one. */
static error_t
take_fleet_row(struct kvb_kvfleet_options *options, int key, char *text, struct argp_state *state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(option_fields); i++) {
        if (option_fields[i].key == key) {
            store_fleet_option(&option_fields[i], text, options, state);
            return 0;
        }
    }
    switch (key) {
    case key_dialect:
        read_dialects(text, &options->fleet, state);
        return 0;
    case key_malformed:
        read_malformed(text, options, state);
        return 0;
    case key_http:
        read_http(text, options, state);
        return 0;
    case key_serve:
        read_serve(text, options, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void check_together(struct kvb_kvfleet_options *options, const struct argp_state *state)
{
    if (!options->trace_path && !options->has_serve) {
        argp_error(state, "--trace FILE is needed: a chat trace, such as conversation_trace.jsonl");
    }
    if (!options->trace_path) {
        options->fleet.requests_per_s = 0;
    }
    if (options->serve_port > 0 && options->serve_port + options->fleet.workers > UINT16_MAX + 1) {
        argp_error(state, "serve: the workers' ports would go beyond 65535");
    }
    const struct kvb_fleet_options *fleet = &options->fleet;
    const uint64_t ports = (uint64_t)fleet->workers * (2 * fleet->ranks + 1);
    if (fleet->base_port > 0 && fleet->base_port + ports > UINT16_MAX + 1) {
        argp_error(state, "base-port: the fleet's ports would go beyond 65535");
    }
    if (options->config_split > fleet->workers) {
        argp_error(state, "config-split: more bridges than workers");
    }
    if (options->fleet.malformed_count > 0) {
        options->fleet.malformed_every = options->malformed_every;
    }
}

static error_t take_fleet_option(int key, char *text, struct argp_state *state)
{
    struct kvb_kvfleet_options *options = state->input;

    if (key == ARGP_KEY_ARG) {
        argp_error(state, "unexpected word \"%s\"", text);
    }
    if (key == ARGP_KEY_END) {
        check_together(options, state);
        return 0;
    }
    return take_fleet_row(options, key, text, state);
}

void kvb_kvfleet_options_parse(int argc, char **argv, struct kvb_kvfleet_options *out_options)
{
    const struct argp parser = { .options = option_rows, .parser = take_fleet_option, .doc = doc };

    *out_options = (struct kvb_kvfleet_options){
        .fleet = {
            .first_worker = 1,
            .workers = 8,
            .ranks = 2,
            .dialects = { KVB_DIALECT_VLLM_0_11, KVB_DIALECT_VLLM_0_22, KVB_DIALECT_VLLM_0_31 },
            .dialect_count = 3,
            .address = "127.0.0.1",
            .engine = {
                .blocks = 4096,
                .block_size = 16,
                .max_running = 64,
                .max_waiting = 1024,
                .step_tokens = 8192,
                .report_probability = 0.02,
            },
            .replay_batches = 10000,
            .requests_per_s = 32,
            .seed = 1,
        },
        .malformed_every = 100,
        .scale = 4,
        .model = "fleet",
        .step_ms = 20,
    };
    argp_program_version = "kvfleet " KVB_VERSION;
    argp_err_exit_status = 64;                                   /* EX_USAGE */
    (void)argp_parse(&parser, argc, argv, 0, NULL, out_options); /* ends the program itself */
}
/* NOLINTEND(concurrency-mt-unsafe) */
