#include "kvfleet/options.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvfleet/malformed.h"

#include <argp.h>
#include <errno.h>
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
    key_step_tokens,
    key_replay_buffer,
    key_report,
    key_bypass,
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
    key_advertise,
    key_base_port,
    key_http,
    key_truth,
    key_log_changes,
    key_config_out,
    key_config_split,
};

/* clang-format off */
static const struct argp_option option_rows[] = {
    { NULL, 0, NULL, 0, "The engines:", 1 },
    { "workers", key_workers, "N", 0, "How many (8)", 1 },
    { "ranks", key_ranks, "N", 0, "Data-parallel ranks of each (2)", 1 },
    { "first-id", key_first_id, "ID", 0, "Worker ids count up from here (1)", 1 },
    { "model", key_model, "NAME", 0, "Served model (fleet)", 1 },
    { "dialect", key_dialect, "NAME", 0, "A list, dealt to the workers in turn: vllm-0.9, vllm-0.11, vllm-0.22, vllm-0.31 (or without vllm-), sglang-2025, sglang-mid, sglang-map, trtllm, mooncake-a, mooncake-b, mooncake-c; mixed: vllm-0.11,0.22,0.31; all: each of them (mixed)", 1 },
    { "block-size", key_block_size, "TOKENS", 0, "Tokens of a block (16)", 1 },
    { "blocks", key_blocks, "N", 0, "Blocks of a rank's cache (4096)", 1 },
    { "slots", key_slots, "N", 0, "Requests that run at once on a rank (64)", 1 },
    { "step-tokens", key_step_tokens, "N", 0, "Tokens that one step computes at most (8192)", 1 },
    { "replay-buffer", key_replay_buffer, "BATCHES", 0, "Kept for replays (10000)", 1 },
    { "report-probability", key_report, "P", 0, "Requests that announce the prefix that they reuse again (0.02)", 1 },
    { "bypass-probability", key_bypass, "P", 0, "Requests that compute cached blocks again from the root, as prompt_logprobs does (0)", 1 },
    { "malformed", key_malformed, "KIND", 0, "Send payloads that are no batch among the good ones: a kind, or all in turn; list: names them and ends", 1 },
    { "malformed-every", key_malformed_every, "BATCHES", 0, "One such payload after so many batches of a rank (100)", 1 },
    { NULL, 0, NULL, 0, "The load:", 2 },
    { "trace", key_trace, "FILE", 0, "Chat trace, one JSON object a line: timestamp, input_length, output_length, hash_ids.  Required", 2 },
    { "scale", key_scale, "N", 0, "Divide all lengths by this (4)", 2 },
    { "rate", key_rate, "N", 0, "Requests a second for the whole fleet (32)", 2 },
    { "requests", key_requests, "N", 0, "Make no more after so many, but keep serving", 2 },
    { "seed", key_seed, "N", 0, "Of hashes and dice (1)", 2 },
    { "step-ms", key_step_ms, "MS", 0, "Each engine steps so often (20)", 2 },
    { "seconds", key_seconds, "N", 0, "End after so many (never)", 2 },
    { NULL, 0, NULL, 0, "Where it is reached:", 3 },
    { "bind", key_bind, "ADDRESS", 0, "Address of all sockets (127.0.0.1)", 3 },
    { "advertise", key_advertise, "NAME", 0, "What --config-out says instead of that address", 3 },
    { "base-port", key_base_port, "N", 0, "Worker w (from 0) has its event ports from N + w * (2 * ranks + 1), then its replay ports, then its load port; 0: drawn (0)", 3 },
    { "http", key_http, "ADDRESS:PORT", 0, "Serve GET /workers/ID/metrics; port 0: any free one", 3 },
    { "truth", key_truth, "PATH", 0, "Unix socket that says what the engines hold; one command a line: truth, changes, stats, pause, resume, drain, reset, restart, drop, malform, stop", 3 },
    { "log-changes", key_log_changes, "N", 0, "Of each rank, remember the newest N times that a block came or went, for changes on the truth socket (0)", 3 },
    { "config-out", key_config_out, "FILE", 0, "Write the workers section of a kvbridge configuration", 3 },
    { "config-split", key_config_split, "K", 0, "Write FILE.0 .. FILE.K-1, the workers divided among K bridges", 3 },
    { 0 },
};
/* clang-format on */

static const char doc[] =
    "Simulates inference engines: their caches, events, replays and load figures, as vLLM, "
    "SGLang, TensorRT-LLM and Mooncake send them.\vIt runs until SIGTERM, SIGINT, or stop on "
    "the truth socket, and then exits with 0.  Exit status 64: wrong usage; 78: a file or port "
    "that cannot be had.";

static uint64_t read_fleet_number(
    const char *text, const char *what, uint64_t min, uint64_t max, const struct argp_state *state)
{
    char *end = NULL;

    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
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

/* First to last, all that lie between them too. */
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
            argp_error(state, "dialect: no such one: \"%s\"; --help names them", word);
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
        argp_error(state, "malformed: no such kind: \"%s\"; --malformed list names them", text);
    }
}

/* It goes into files and label values as it is. */
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

/* Whole numbers and where they go. */
struct number_row {
    const char *name;
    uint64_t min;
    uint64_t max;
    size_t offset;
    int key;
    bool is_wide; /* uint64_t, else uint32_t */
};

#define AT(member) offsetof(struct kvb_kvfleet_options, member)

/* clang-format off */
static const struct number_row number_rows[] = {
    { "workers", 1, kvb_max_workers, AT(fleet.workers), key_workers, false },
    { "ranks", 1, kvb_max_ranks, AT(fleet.ranks), key_ranks, false },
    { "first-id", 0, INT64_MAX - kvb_max_workers, AT(fleet.first_worker), key_first_id, true },
    { "block-size", 1, kvb_max_block_tokens, AT(fleet.engine.block_size), key_block_size, false },
    { "blocks", 2, kvb_max_stream_blocks, AT(fleet.engine.blocks), key_blocks, false },
    { "slots", 1, 1 << 16, AT(fleet.engine.max_running), key_slots, false },
    { "step-tokens", 1, kvb_max_batch_tokens, AT(fleet.engine.step_tokens), key_step_tokens, false },
    { "replay-buffer", 1, 1 << 20, AT(fleet.replay_batches), key_replay_buffer, false },
    { "log-changes", 0, 1 << 22, AT(fleet.engine.log_changes), key_log_changes, false },
    { "malformed-every", 1, UINT32_MAX, AT(malformed_every), key_malformed_every, false },
    { "scale", 1, 512, AT(scale), key_scale, false },
    { "requests", 1, UINT64_MAX, AT(fleet.max_requests), key_requests, true },
    { "seed", 0, UINT64_MAX, AT(fleet.seed), key_seed, true },
    { "step-ms", 1, 10000, AT(step_ms), key_step_ms, false },
    { "seconds", 1, 1 << 30, AT(seconds), key_seconds, true },
    { "config-split", 1, kvb_max_workers, AT(config_split), key_config_split, false },
};
/* clang-format on */

static bool
take_number(struct kvb_kvfleet_options *options, int key, char *text, struct argp_state *state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(number_rows); i++) {
        const struct number_row *row = &number_rows[i];
        if (row->key == key) {
            const uint64_t value = read_fleet_number(text, row->name, row->min, row->max, state);
            const uint32_t narrow = (uint32_t)value;
            memcpy(
                (char *)options + row->offset, row->is_wide ? (const void *)&value : &narrow,
                row->is_wide ? sizeof value : sizeof narrow);
            return true;
        }
    }
    return false;
}

/* One option of another type. */
static error_t
take_other(struct kvb_kvfleet_options *options, int key, char *text, struct argp_state *state)
{
    switch (key) {
    case key_model:
        options->model = read_name_option(text, "model", state);
        return 0;
    case key_dialect:
        read_dialects(text, &options->fleet, state);
        return 0;
    case key_malformed:
        read_malformed(text, options, state);
        return 0;
    case key_report:
        options->fleet.engine.report_probability = read_real(text, "report-probability", 1, state);
        return 0;
    case key_bypass:
        options->fleet.engine.bypass_probability = read_real(text, "bypass-probability", 1, state);
        return 0;
    case key_trace:
        options->trace_path = text;
        return 0;
    case key_rate:
        options->fleet.requests_per_s = read_real(text, "rate", 1e6, state);
        return 0;
    case key_bind:
        options->fleet.address = read_name_option(text, "bind", state);
        return 0;
    case key_advertise:
        options->advertised = read_name_option(text, "advertise", state);
        return 0;
    case key_base_port:
        options->fleet.base_port =
            (uint16_t)read_fleet_number(text, "base-port", 0, UINT16_MAX, state);
        return 0;
    case key_http:
        read_http(text, options, state);
        return 0;
    case key_truth:
        options->truth_path = text;
        return 0;
    case key_config_out:
        options->config_path = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void check_together(struct kvb_kvfleet_options *options, const struct argp_state *state)
{
    if (!options->trace_path) {
        argp_error(state, "--trace FILE is needed: a chat trace, such as conversation_trace.jsonl");
    }
    if (options->config_split > options->fleet.workers) {
        argp_error(state, "config-split: more bridges than workers");
    }
    if (options->fleet.malformed_count > 0) {
        options->fleet.malformed_every = options->malformed_every;
    }
    if (!options->advertised) {
        options->advertised = options->fleet.address;
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
    return take_number(options, key, text, state) ? 0 : take_other(options, key, text, state);
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
