#include "core/own.h"
#include "kvctl/kvctl.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* argp ends the program on wrong usage; no thread runs yet.
 * NOLINTBEGIN(concurrency-mt-unsafe) */

enum {
    max_timeout_ms = 3600000,
    min_interval_ms = 200,
    max_interval_ms = 60000,
    default_timeout_ms = 2000,
    default_wait_ms = 10000,
    default_interval_ms = 1000
};

/* Options without a letter. */
enum option_key {
    key_nats = 0x100,
    key_namespace,
    key_component,
    key_json,
    key_timeout,
    key_tokens,
    key_tokens_file,
    key_model,
    key_lora,
    key_salt,
    key_worker,
    key_rank,
    key_kind,
    key_count,
    key_all,
    key_once,
    key_interval,
    key_sort,
    key_filter,
    key_truth,
    key_wait,
    key_sample,
    key_hex,
};

static const struct argp_option option_rows[] = {
    { "nats", key_nats, "URL", 0, "URL of nats-server (nats://127.0.0.1:4222)", 1 },
    { "namespace", key_namespace, "N", 0,
      "Namespace of the router (dynamo); of the workers for watch (all)", 1 },
    { "component", key_component, "C", 0,
      "Component of the router (Router); of the workers for watch (all)", 1 },
    { "json", key_json, NULL, 0, "Print answers unchanged, and events as JSON lines", 1 },
    { "timeout", key_timeout, "MS", 0, "How long to wait for NATS, and for each answer (2000)", 1 },
    { NULL, 0, NULL, 0, "match and route:", 2 },
    { "tokens", key_tokens, "1,2,3", 0, "Token ids of the prompt", 2 },
    { "tokens-file", key_tokens_file, "FILE", 0,
      "The same from a file: numbers between blanks or commas, or a JSON array; - is stdin", 2 },
    { "model", key_model, "M", 0, "Model name; optional if there is only one model", 2 },
    { "lora", key_lora, "L", 0, "LoRA name", 2 },
    { "salt", key_salt, "S", 0, "Cache salt", 2 },
    { NULL, 0, NULL, 0, "watch:", 3 },
    { "worker", key_worker, "ID", 0, "Only this worker's events; may be repeated", 3 },
    { "rank", key_rank, "N", 0, "Only this data-parallel rank's events", 3 },
    { "kind", key_kind, "K", 0, "Only stored, removed or cleared; may be repeated", 3 },
    { "count", key_count, "N", 0, "Stop after N events; with --all, after N lines", 3 },
    { "all", key_all, NULL, 0,
      "Every subject of the namespace as a JSON line with its \"subject\": events, heartbeats, "
      "load, status, hit rates, requests",
      3 },
    { NULL, 0, NULL, 0, "top:", 4 },
    { "once", key_once, NULL, 0,
      "Print the screen once and exit: for scripts, and required without a terminal", 4 },
    { "interval", key_interval, "MS", 0, "Time between screens, 200 to 60000 (1000)", 4 },
    { "sort", key_sort, "COLUMN", 0, "Sort by the column with this title (worker)", 4 },
    { "filter", key_filter, "TEXT", 0,
      "Only streams with these words in worker, rank, state, reason or names", 4 },
    { NULL, 0, NULL, 0, "verify:", 5 },
    { "truth", key_truth, "PATH", 0, "Truth socket of kvfleet", 5 },
    { "wait", key_wait, "MS", 0, "How long the index may take to become equal (10000)", 5 },
    { "sample", key_sample, "FILE", 0, "Write the longest prompt that an engine holds", 5 },
    { NULL, 0, NULL, 0, "decode:", 6 },
    { "hex", key_hex, NULL, 0,
      "FILE has one message per line, as hexadecimal digits or as name|length|digits", 6 },
    { 0 },
};

static const char doc[] =
    "Queries a kvaggregator, and watches what bridges publish.\n\n"
    "  match        which workers hold how much of a prompt\n"
    "  route        which worker to send a prompt to, and why\n"
    "  load         how busy the workers are\n"
    "  state        counters of the aggregator, then every stream\n"
    "  streams      every stream and how far it may be trusted\n"
    "  dump         every held block: worker rank tier hash\n"
    "  top          a live screen of all streams; h shows its keys\n"
    "  watch        events as they are published, one a line; --all: every message\n"
    "  verify       compares the index with what a kvfleet's engines hold (pauses them)\n"
    "  check FILE   reports errors in a configuration of kvbridge or kvaggregator\n"
    "  decode FILE  prints the events in an engine's messages, one a line; -: stdin\n"
    "\vExit status: 0 done, 1 no or a bad answer, or a message that cannot be read, 64 wrong "
    "usage, 78 wrong configuration.";

static uint64_t
read_option_number(const char *text, const char *what, uint64_t max, const struct argp_state *state)
{
    char *end = NULL;

    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > max) {
        argp_error(state, "%s: expected a number from 0 to %lu, got \"%s\"", what, max, text);
    }
    return value;
}

static unsigned read_event_kind(const char *text, const struct argp_state *state)
{
    static const struct {
        const char *name;
        enum kvctl_kind kind;
    } kinds[] = {
        { "stored", kvctl_stored },
        { "removed", kvctl_removed },
        { "cleared", kvctl_cleared },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        if (strcmp(text, kinds[i].name) == 0) {
            return kinds[i].kind;
        }
    }
    argp_error(state, "--kind: expected stored, removed or cleared, got \"%s\"", text);
    return 0;
}

/* The options whose text is stored unchanged. */
static const char **text_of(int key, struct kvctl_options *options)
{
    switch (key) {
    case key_nats:
        return &options->url;
    case key_namespace:
        return &options->name_space;
    case key_component:
        return &options->component;
    case key_tokens:
        return &options->tokens;
    case key_tokens_file:
        return &options->tokens_file;
    case key_model:
        return &options->model;
    case key_lora:
        return &options->lora;
    case key_salt:
        return &options->salt;
    case key_truth:
        return &options->truth;
    case key_sample:
        return &options->sample;
    case key_sort:
        return &options->sort;
    case key_filter:
        return &options->filter;
    default:
        return NULL;
    }
}

static error_t
read_word(const char *word, struct kvctl_options *options, const struct argp_state *state)
{
    if (!options->command) {
        options->command = word;
    } else if (!options->file) {
        options->file = word;
    } else {
        argp_error(state, "one word too many: \"%s\"", word);
    }
    return 0;
}

static const struct kvctl_command *find_kvctl_command(const char *name)
{
    const struct kvctl_command *command = kvctl_commands();

    while (command->name && strcmp(command->name, name) != 0) {
        command++;
    }
    return command->name ? command : NULL;
}

static void check_words(const struct kvctl_options *options, const struct argp_state *state)
{
    const struct kvctl_command *command =
        options->command ? find_kvctl_command(options->command) : NULL;

    if (!options->command) {
        argp_error(state, "which command?");
        return;
    }
    if (!command) {
        argp_error(state, "no such command: \"%s\"", options->command);
        return;
    }
    if (command->argument && command->argument[0] != '[' && !options->file) {
        argp_error(state, "%s: expected %s", command->name, command->argument);
    }
    if (!command->argument && options->file) {
        argp_error(state, "%s: one word too many: \"%s\"", command->name, options->file);
    }
    if (command->needs_tokens && !options->tokens == !options->tokens_file) {
        argp_error(state, "%s: give either --tokens or --tokens-file", command->name);
    }
    if (options->is_all && (options->kinds || options->worker_count > 0 || options->has_rank)) {
        argp_error(state, "--all shows every message: leave out --kind, --worker and --rank");
    }
    if (command->run == kvctl_verify && !options->truth) {
        argp_error(state, "verify: give --truth PATH, as kvfleet has it");
    }
}

static error_t parse_kvctl_option(int key, char *argument, struct argp_state *state)
{
    struct kvctl_options *options = state->input;
    const char **text = text_of(key, options);

    if (text) {
        *text = argument;
        return 0;
    }
    switch (key) {
    case key_json:
        options->is_json = true;
        return 0;
    case key_timeout:
        options->timeout_ms =
            (uint32_t)read_option_number(argument, "--timeout", max_timeout_ms, state);
        return 0;
    case key_wait:
        options->wait_ms = (uint32_t)read_option_number(argument, "--wait", max_timeout_ms, state);
        return 0;
    case key_worker:
        if (options->worker_count == kvctl_max_workers) {
            argp_error(state, "--worker: at most %d of them", kvctl_max_workers);
            return EINVAL;
        }
        options->workers[options->worker_count++] =
            read_option_number(argument, "--worker", INT64_MAX, state);
        return 0;
    case key_rank:
        options->has_rank = true;
        options->dp_rank = (uint32_t)read_option_number(argument, "--rank", UINT32_MAX, state);
        return 0;
    case key_kind:
        options->kinds |= read_event_kind(argument, state);
        return 0;
    case key_count:
        options->count = read_option_number(argument, "--count", UINT64_MAX, state);
        return 0;
    case key_all:
        options->is_all = true;
        return 0;
    case key_once:
        options->is_once = true;
        return 0;
    case key_hex:
        options->is_hex = true;
        return 0;
    case key_interval:
        options->interval_ms =
            (uint32_t)read_option_number(argument, "--interval", max_interval_ms, state);
        if (options->interval_ms < min_interval_ms) {
            argp_error(state, "--interval: expected at least %d", min_interval_ms);
        }
        return 0;
    case ARGP_KEY_ARG:
        return read_word(argument, options, state);
    case ARGP_KEY_END:
        check_words(options, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_kvctl_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fputs("kvctl " KVB_VERSION "\n", out);
}

void kvctl_options_read(int argc, char **argv, struct kvctl_options *out_options)
{
    static const struct argp argp = {
        .options = option_rows,
        .parser = parse_kvctl_option,
        .args_doc = "COMMAND",
        .doc = doc,
    };

    *out_options = (struct kvctl_options){
        .url = "nats://127.0.0.1:4222",
        .timeout_ms = default_timeout_ms,
        .wait_ms = default_wait_ms,
        .interval_ms = default_interval_ms,
    };
    argp_program_version_hook = print_kvctl_version;
    (void)argp_parse(&argp, argc, argv, 0, NULL, out_options); /* exits by itself on an error */
}

/* NOLINTEND(concurrency-mt-unsafe) */
