#include "core/decimal.h"
#include "core/own.h"
#include "kvctl/kvctl.h"

#include <argp.h>
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
    key_blocks,
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
    key_config,
    key_format,
    key_context,
    key_login = 0x200, /* and the numbers after it: one for each field of the login */
};

static const struct argp_option option_rows[] = {
    { "nats", key_nats, "URL", 0, "URL of nats-server (nats://127.0.0.1:4222)", 1 },
    { "namespace", key_namespace, "N", 0,
      "Namespace of the router (dynamo); for watch and workers: of the workers (all)", 1 },
    { "component", key_component, "C", 0,
      "Component of the router (Router); for watch and workers: of the workers (all)", 1 },
    { "json", key_json, NULL, 0, "Print answers unchanged, and events as JSON lines", 1 },
    { "timeout", key_timeout, "MS", 0, "Timeout for NATS and for each answer (2000)", 1 },
    { NULL, 0, NULL, 0, "match and route:", 2 },
    { "tokens", key_tokens, "1,2,3", 0, "Token ids of the prompt", 2 },
    { "tokens-file", key_tokens_file, "FILE", 0,
      "Token ids from a file: separated by blanks or commas, or a JSON array; -: stdin", 2 },
    { "model", key_model, "M", 0, "Model name; optional if there is only one model", 2 },
    { "lora", key_lora, "L", 0, "LoRA name", 2 },
    { "salt", key_salt, "S", 0, "Cache salt", 2 },
    { "blocks", key_blocks, NULL, 0, "match: also which blocks of the prompt each worker holds",
      2 },
    { NULL, 0, NULL, 0, "watch:", 3 },
    { "worker", key_worker, "ID", 0, "Only this worker's events; may be repeated", 3 },
    { "rank", key_rank, "N", 0, "Only this data-parallel rank's events", 3 },
    { "dp-rank", key_rank, NULL, OPTION_ALIAS, NULL, 3 },
    { "kind", key_kind, "K", 0, "Only stored, removed or cleared; may be repeated", 3 },
    { "count", key_count, "N", 0, "Stop after N events; with --all, after N lines", 3 },
    { "all", key_all, NULL, 0,
      "All messages of the namespace as JSON lines with their \"subject\": events, heartbeats, "
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
    { "wait", key_wait, "MS", 0, "Time limit for the index to become equal (10000)", 5 },
    { "sample", key_sample, "FILE", 0, "Write the longest prompt that an engine holds to FILE", 5 },
    { NULL, 0, NULL, 0, "decode:", 6 },
    { "hex", key_hex, NULL, 0,
      "FILE has one message per line, as hexadecimal digits or as name|length|digits", 6 },
    { NULL, 0, NULL, 0, "permissions:", 7 },
    { "config", key_config, "FILE", 0,
      "Configuration file: of the bridge for bridge and reader, of the aggregator for aggregator, "
      "router and operator. Without: --namespace N, --component C, for router and reader",
      7 },
    { "format", key_format, "F", 0,
      "server: for nats-server's configuration file (default); jwt: JSON for a user JWT", 7 },
    { NULL, 0, NULL, 0,
      "Login to NATS; environment variables are KVB_NATS_URL, KVB_NATS_USER ...:", 8 },
    { "context", key_context, "NAME", 0,
      "URL and login from this context of the nats command; ignores the environment", 8 },
    { "user", key_login, "NAME", 0, "User; needs --password-file", 8 },
    { "password-file", key_login + 1, "FILE", 0, "File whose first line is the password", 8 },
    { "token-file", key_login + 2, "FILE", 0, "File whose first line is a token", 8 },
    { "credentials", key_login + 3, "FILE", 0, "A .creds file", 8 },
    { "nkey-seed-file", key_login + 4, "FILE", 0, "File whose first line is the seed of an NKey",
      8 },
    { "ca-file", key_login + 5, "FILE", 0, "PEM file of the trusted authorities", 8 },
    { "server-name", key_login + 6, "NAME", 0, "Name in the server's certificate", 8 },
    { "cert-file", key_login + 7, "FILE", 0, "PEM file of our certificate; needs --key-file", 8 },
    { "key-file", key_login + 8, "FILE", 0, "PEM file of the certificate's private key", 8 },
    { "inbox-prefix", key_login + 9, "SUBJECT", 0, "Prefix of subjects for answers (_INBOX)", 8 },
    { 0 },
};

static const char doc[] =
    "Queries a kvaggregator, and watches what bridges publish.\n\n"
    "  match        how much of a prompt each worker holds\n"
    "  route        the worker to which a prompt is routed, and why\n"
    "  load         load of the workers\n"
    "  state        counters of the aggregator, then all streams\n"
    "  streams      all streams with their states\n"
    "  audit        cached tokens promised and delivered, of streams with reports\n"
    "  dump         all held blocks: worker rank tier hash\n"
    "  workers      where each worker comes from; pods that are not workers\n"
    "  top          live table of all streams; the key h shows help\n"
    "  watch        published events, one a line; --all: all messages\n"
    "  verify       compares the index with the engines of a kvfleet (pauses them)\n"
    "  check FILE   reports mistakes in a configuration file of either daemon\n"
    "  permissions ROLE  NATS permissions of a bridge, aggregator, router, reader or\n"
    "               operator\n"
    "  decode FILE  prints the events in recorded engine messages; -: stdin\n"
    "\vExit status: 0 success, 1 no answer, an error answer or an undecodable message, 64 wrong "
    "usage, 78 wrong configuration.";

static uint64_t
read_option_number(const char *text, const char *name, uint64_t max, const struct argp_state *state)
{
    uint64_t value = 0;

    if (!kvb_decimal_read(text, &value) || value > max) {
        argp_error(state, "--%s: expected a number from 0 to %lu, got \"%s\"", name, max, text);
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

static bool is_jwt_format(const char *argument, const struct argp_state *state)
{
    const bool is_jwt = strcmp(argument, "jwt") == 0;

    if (!is_jwt && strcmp(argument, "server") != 0) {
        argp_error(state, "--format: expected server or jwt, got \"%s\"", argument);
    }
    return is_jwt;
}

/* ---- Options that are stored as they are given ---- */

enum option_type { option_flag, option_text, option_u32, option_u64 };

struct option_field {
    int key;
    enum option_type type;
    size_t offset; /* in struct kvctl_options */
    uint64_t max;  /* of numbers */
};

#define FIELD(field) offsetof(struct kvctl_options, field)

/* clang-format off */
static const struct option_field option_fields[] = {
    { key_all,         option_flag, FIELD(is_all),      0 },
    { key_blocks,      option_flag, FIELD(is_by_block), 0 },
    { key_config,      option_text, FIELD(config),      0 },
    { key_component,   option_text, FIELD(component),   0 },
    { key_context,     option_text, FIELD(context),     0 },
    { key_count,       option_u64,  FIELD(count),       UINT64_MAX },
    { key_filter,      option_text, FIELD(filter),      0 },
    { key_hex,         option_flag, FIELD(is_hex),      0 },
    { key_interval,    option_u32,  FIELD(interval_ms), max_interval_ms },
    { key_json,        option_flag, FIELD(is_json),     0 },
    { key_lora,        option_text, FIELD(lora),        0 },
    { key_model,       option_text, FIELD(model),       0 },
    { key_namespace,   option_text, FIELD(name_space),  0 },
    { key_nats,        option_text, FIELD(url),         0 },
    { key_once,        option_flag, FIELD(is_once),     0 },
    { key_rank,        option_u32,  FIELD(dp_rank),     UINT32_MAX },
    { key_salt,        option_text, FIELD(salt),        0 },
    { key_sample,      option_text, FIELD(sample),      0 },
    { key_sort,        option_text, FIELD(sort),        0 },
    { key_timeout,     option_u32,  FIELD(timeout_ms),  max_timeout_ms },
    { key_tokens,      option_text, FIELD(tokens),      0 },
    { key_tokens_file, option_text, FIELD(tokens_file), 0 },
    { key_truth,       option_text, FIELD(truth),       0 },
    { key_wait,        option_u32,  FIELD(wait_ms),     max_timeout_ms },
};
/* clang-format on */
#undef FIELD

static const char *option_name(int key)
{
    const struct argp_option *row = option_rows;

    while (row->key != key) {
        row++;
    }
    return row->name;
}

static void store_option(
    const struct option_field *field, const char *argument, struct kvctl_options *options,
    const struct argp_state *state)
{
    void *at = (char *)options + field->offset;
    uint64_t number = 0;

    if (field->max > 0) {
        number = read_option_number(argument, option_name(field->key), field->max, state);
    }
    switch (field->type) {
    case option_flag:
        *(bool *)at = true;
        break;
    case option_text:
        *(const char **)at = argument;
        break;
    case option_u32:
        *(uint32_t *)at = (uint32_t)number;
        break;
    case option_u64:
        *(uint64_t *)at = number;
        break;
    }
}

static bool store_plain_option(
    int key, const char *argument, struct kvctl_options *options, const struct argp_state *state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(option_fields); i++) {
        if (option_fields[i].key == key) {
            store_option(&option_fields[i], argument, options, state);
            return true;
        }
    }
    return false;
}

/* ---- The others ---- */

static void
add_worker(const char *argument, struct kvctl_options *options, const struct argp_state *state)
{
    if (options->worker_count == kvctl_max_workers) {
        argp_error(state, "--worker: at most %d of them", kvctl_max_workers);
        return;
    }
    options->workers[options->worker_count++] =
        read_option_number(argument, "worker", INT64_MAX, state);
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

static void check_choices(
    const struct kvctl_options *options, const struct kvctl_command *command,
    const struct argp_state *state)
{
    if (command->needs_tokens && !options->tokens == !options->tokens_file) {
        argp_error(state, "%s: give either --tokens or --tokens-file", command->name);
    }
    if (options->is_all && (options->kinds || options->worker_count > 0 || options->has_rank)) {
        argp_error(state, "--all shows every message: leave out --kind, --worker and --rank");
    }
    if (command->run == kvctl_verify && !options->truth) {
        argp_error(state, "verify: give --truth PATH, as kvfleet has it");
    }
    if (options->interval_ms < min_interval_ms) {
        argp_error(state, "--interval: expected at least %d", min_interval_ms);
    }
}

static void say_unknown_command(const char *name, const struct argp_state *state)
{
    /* Commands of earlier versions. */
    static const struct {
        const char *name;
        const char *instead;
    } gone[] = {
        { "explain", "match --blocks, and the state and reason that `streams` shows" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(gone); i++) {
        if (strcmp(gone[i].name, name) == 0) {
            argp_error(state, "%s is gone: use %s", name, gone[i].instead);
            return;
        }
    }
    argp_error(state, "no such command: \"%s\"", name);
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
        say_unknown_command(options->command, state);
        return;
    }
    if (command->argument && command->argument[0] != '[' && !options->file) {
        argp_error(state, "%s: expected %s", command->name, command->argument);
    }
    if (!command->argument && options->file) {
        argp_error(state, "%s: one word too many: \"%s\"", command->name, options->file);
    }
    check_choices(options, command, state);
}

static error_t parse_kvctl_option(int key, char *argument, struct argp_state *state)
{
    struct kvctl_options *options = state->input;
    const bool is_plain = store_plain_option(key, argument, options, state);

    if (key >= key_login && key < key_login + kvctl_login_fields) {
        options->login[key - key_login] = argument;
        return 0;
    }
    switch (key) {
    case key_worker:
        add_worker(argument, options, state);
        return 0;
    case key_rank:
        options->has_rank = true;
        return 0;
    case key_format:
        options->is_jwt = is_jwt_format(argument, state);
        return 0;
    case key_kind:
        options->kinds |= read_event_kind(argument, state);
        return 0;
    case ARGP_KEY_ARG:
        return read_word(argument, options, state);
    case ARGP_KEY_END:
        check_words(options, state);
        return 0;
    default:
        return is_plain ? 0 : ARGP_ERR_UNKNOWN;
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
        .timeout_ms = default_timeout_ms,
        .wait_ms = default_wait_ms,
        .interval_ms = default_interval_ms,
    };
    argp_program_version_hook = print_kvctl_version;
    (void)argp_parse(&argp, argc, argv, 0, NULL, out_options); /* exits by itself on an error */
}

/* NOLINTEND(concurrency-mt-unsafe) */
