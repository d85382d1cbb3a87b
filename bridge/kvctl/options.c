#include "core/decimal.h"
#include "core/own.h"
#include "kvctl/kvctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

/* The options of all commands are rows of one table.  Reading them, the text of each help and the
 * completion of bash are made from it, and from the table of commands in kvctl.c.
 *
 * Wrong usage ends the program here; no thread runs yet.
 * NOLINTBEGIN(concurrency-mt-unsafe) */

enum {
    max_timeout_ms = 3600000,
    min_interval_ms = 200,
    max_interval_ms = 60000,
    default_timeout_ms = 2000,
    default_wait_ms = 10000,
    default_interval_ms = 1000
};

/* ---- The tables ----------------------------------------------------------------------- */

/* Which commands an option belongs to. */
enum group {
    group_nats,
    group_names,
    group_json,
    group_prompt,
    group_match,
    group_watch,
    group_top,
    group_verify,
    group_decode,
    group_permissions,
    group_login,
    group_count
};

#define CONNECTING "match route load state streams audit dump workers top watch verify"

struct group_row {
    const char *title;    /* of the list of all options; NULL: none */
    const char *commands; /* between blanks */
    bool is_common;       /* the other commands take it too, without effect */
};

static const struct group_row groups[group_count] = {
    [group_nats] = { NULL, CONNECTING, true },
    [group_names] = { NULL, CONNECTING " permissions", true },
    [group_json] = { NULL,
                     "match route load state streams audit dump workers watch verify check "
                     "permissions",
                     false },
    [group_prompt] = { "match and route:", "match route", false },
    [group_match] = { "match:", "match", false },
    [group_watch] = { "watch:", "watch", false },
    [group_top] = { "top:", "top", false },
    [group_verify] = { "verify:", "verify", false },
    [group_decode] = { "decode:", "decode", false },
    [group_permissions] = { "permissions:", "permissions", false },
    [group_login] = { "Login to NATS; in the environment KVB_NATS_URL, KVB_NATS_USER ...:",
                      CONNECTING, true },
};

enum option_type {
    option_flag,
    option_text,
    option_u32,
    option_u64,
    option_worker, /* the last four are stored by code of their own */
    option_rank,
    option_kind,
    option_format
};

struct option_row {
    const char *name;
    const char *value;   /* how help calls it; NULL: a flag.  FILE and PATH: bash completes files */
    const char *choices; /* the values that there are, for bash; NULL: any */
    enum group group;
    enum option_type type;
    size_t offset;    /* in struct kvctl_options */
    uint64_t max;     /* of numbers */
    const char *help; /* lines of at most 49 bytes, none of which begins with a dash */
};

static const struct option_row rows[] = {
#define FIELD(field) offsetof(struct kvctl_options, field)
    /* clang-format off */
    { "nats", "URL", NULL, group_nats, option_text, FIELD(url), 0,
      "URL of nats-server (nats://127.0.0.1:4222)" },
    { "timeout", "MS", NULL, group_nats, option_u32, FIELD(timeout_ms), max_timeout_ms,
      "Timeout for NATS and for each answer (2000)" },
    { "namespace", "N", NULL, group_names, option_text, FIELD(name_space), 0,
      "Namespace of the router (dynamo); for watch and\nworkers: of the workers (all)" },
    { "component", "C", NULL, group_names, option_text, FIELD(component), 0,
      "Component of the router (Router); for watch and\nworkers: of the workers (all)" },
    { "json", NULL, NULL, group_json, option_flag, FIELD(is_json), 0,
      "Print JSON: answers unchanged, a line an event" },

    { "tokens", "1,2,3", NULL, group_prompt, option_text, FIELD(tokens), 0,
      "Token ids of the prompt" },
    { "tokens-file", "FILE", NULL, group_prompt, option_text, FIELD(tokens_file), 0,
      "Token ids from a file: between blanks or commas,\nor a JSON array; -: stdin" },
    { "text", "TEXT", NULL, group_prompt, option_text, FIELD(text), 0,
      "The prompt as text; -: stdin" },
    { "messages", "JSON", NULL, group_prompt, option_text, FIELD(messages), 0,
      "A chat: a JSON array of messages; -: stdin" },
    { "model", "M", NULL, group_prompt, option_text, FIELD(model), 0,
      "Model name; optional if there is only one model" },
    { "lora", "L", NULL, group_prompt, option_text, FIELD(lora), 0, "LoRA name" },
    { "salt", "S", NULL, group_prompt, option_text, FIELD(salt), 0, "Cache salt" },
    { "blocks", NULL, NULL, group_match, option_flag, FIELD(is_by_block), 0,
      "Also which blocks of the prompt each worker holds" },

    { "worker", "ID", NULL, group_watch, option_worker, 0, 0,
      "Only this worker's events; may be repeated" },
    { "rank", "N", NULL, group_watch, option_rank, 0, 0,
      "Only this data-parallel rank's events" },
    { "kind", "K", "stored removed cleared", group_watch, option_kind, 0, 0,
      "Only stored, removed or cleared; may be repeated" },
    { "count", "N", NULL, group_watch, option_u64, FIELD(count), UINT64_MAX,
      "Stop after N events, or after N lines of all\nmessages" },
    { "all", NULL, NULL, group_watch, option_flag, FIELD(is_all), 0,
      "All messages of the namespace, as JSON lines with\n"
      "their \"subject\": events, heartbeats, load,\nstatus, hit rates, requests" },

    { "interval", "MS", NULL, group_top, option_u32, FIELD(interval_ms), max_interval_ms,
      "Time between screens, 200 to 60000 (1000)" },
    { "sort", "COLUMN", NULL, group_top, option_text, FIELD(sort), 0,
      "Sort by the column with this title (worker)" },
    { "filter", "TEXT", NULL, group_top, option_text, FIELD(filter), 0,
      "Only streams with these words in worker, rank,\nstate, reason or names" },

    { "truth", "PATH", NULL, group_verify, option_text, FIELD(truth), 0,
      "Truth socket of kvfleet" },
    { "wait", "MS", NULL, group_verify, option_u32, FIELD(wait_ms), max_timeout_ms,
      "Time limit for the index to become equal (10000)" },
    { "sample", "FILE", NULL, group_verify, option_text, FIELD(sample), 0,
      "Write the longest prompt that an engine holds to\nthis file" },

    { "hex", NULL, NULL, group_decode, option_flag, FIELD(is_hex), 0,
      "The file has one message per line, as hexadecimal\ndigits or as name|length|digits" },

    { "config", "FILE", NULL, group_permissions, option_text, FIELD(config), 0,
      "Configuration file: of the bridge for bridge and\n"
      "reader, of the aggregator for aggregator, router\n"
      "and operator.  Router and reader can do without,\nby namespace and component" },
    { "format", "F", "server jwt", group_permissions, option_format, 0, 0,
      "server: for nats-server's configuration file\n(default); jwt: JSON for a user JWT" },

    { "context", "NAME", NULL, group_login, option_text, FIELD(context), 0,
      "URL and login from this context of the nats\ncommand; ignores the environment" },
    /* in the order of kvctl/login.c */
    { "user", "NAME", NULL, group_login, option_text, FIELD(login[0]), 0,
      "User; needs a password file" },
    { "password-file", "FILE", NULL, group_login, option_text, FIELD(login[1]), 0,
      "File whose first line is the password" },
    { "token-file", "FILE", NULL, group_login, option_text, FIELD(login[2]), 0,
      "File whose first line is a token" },
    { "credentials", "FILE", NULL, group_login, option_text, FIELD(login[3]), 0, "A .creds file" },
    { "nkey-seed-file", "FILE", NULL, group_login, option_text, FIELD(login[4]), 0,
      "File whose first line is the seed of an NKey" },
    { "ca-file", "FILE", NULL, group_login, option_text, FIELD(login[5]), 0,
      "PEM file of the trusted authorities" },
    { "server-name", "NAME", NULL, group_login, option_text, FIELD(login[6]), 0,
      "Name in the server's certificate" },
    { "cert-file", "FILE", NULL, group_login, option_text, FIELD(login[7]), 0,
      "PEM file of our certificate; needs a key file" },
    { "key-file", "FILE", NULL, group_login, option_text, FIELD(login[8]), 0,
      "PEM file of the certificate's private key" },
    { "inbox-prefix", "SUBJECT", NULL, group_login, option_text, FIELD(login[9]), 0,
      "Prefix of subjects for answers (_INBOX)" },
/* clang-format on */
#undef FIELD
};

struct gone_row {
    const char *name;
    const char *instead;
};

/* Of earlier versions. */
static const struct gone_row gone[] = {
    { "explain", "match --blocks, and the state and reason that `streams` shows" },
    { "--dp-rank", "--rank" },
    { "--once", "the command `streams`" },
};

/* Whether the word is one of `words`, which stand between blanks. */
static bool has_word(const char *words, const char *word)
{
    const size_t len = strlen(word);

    for (const char *at = strstr(words, word); at; at = strstr(at + 1, word)) {
        /* A whole word, not the part of a longer one. */
        if ((at == words || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static bool is_of(const struct option_row *row, const char *command)
{
    return has_word(groups[row->group].commands, command);
}

static const struct kvctl_command *find_command(const char *name)
{
    for (const struct kvctl_command *command = kvctl_commands(); command->name; command++) {
        if (strcmp(command->name, name) == 0) {
            return command;
        }
    }
    return NULL;
}

/* ---- Wrong usage ---- */

[[gnu::noreturn, gnu::format(printf, 2, 3)]] static void
refuse(const char *command, const char *format, ...)
{
    va_list arguments;

    fputs("kvctl: ", stderr);
    va_start(arguments, format);
    kvctl_print_list(stderr, format, arguments);
    va_end(arguments);
    kvctl_print(
        stderr, "\n`kvctl help%s%s` says more\n", command ? " " : "", command ? command : "");
    exit(kvctl_usage);
}

/* A command or an option that there is not. */
[[gnu::noreturn]] static void refuse_unknown(const char *what, const char *name)
{
    for (size_t i = 0; i < KVB_COUNT_OF(gone); i++) {
        if (strcmp(gone[i].name, name) == 0) {
            refuse(NULL, "%s is gone: use %s", name, gone[i].instead);
        }
    }
    refuse(NULL, "no such %s: \"%s\"", what, name);
}

/* ---- Help ------------------------------------------------------------------------------ */

/* Prints "      --nats=URL               URL of nats-server ...". */
static void print_option(const char *letter, const char *name, const char *value, const char *help)
{
    enum { help_column = 31 };
    char term[64];

    (void)snprintf(
        term, sizeof term, "  %s--%s%s%s", letter, name, value ? "=" : "", value ? value : "");
    printf("%-*s", help_column, term);
    /* Further lines of the help stand below the first, in its column. */
    for (size_t len = strcspn(help, "\n"); *help; len = strcspn(help, "\n")) {
        printf("%.*s\n", (int)len, help);
        help += len + (help[len] == '\n');
        if (*help) {
            printf("%*s", help_column, "");
        }
    }
}

static void print_row(const struct option_row *row)
{
    print_option("    ", row->name, row->value, row->help);
}

/* Everything there is; the manual page is generated from it (etc/manual/page.awk). */
static void print_overview(void)
{
    const char *title = NULL;

    printf("Usage: kvctl [OPTION...] COMMAND\n"
           "Queries a kvaggregator, and watches what bridges publish.  `kvctl help COMMAND`\n"
           "has the options of one command.\n\n");
    for (const struct kvctl_command *command = kvctl_commands(); command->name; command++) {
        char term[64];
        (void)snprintf(
            term, sizeof term, "%s%s%s", command->name, command->argument ? " " : "",
            command->argument ? command->argument : "");
        printf("  %-16s  %s\n", term, command->summary);
    }
    printf("\n");
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        /* Rows of a group follow each other; groups may share a title. */
        if (groups[rows[i].group].title != title) {
            title = groups[rows[i].group].title;
            printf("\n %s\n", title);
        }
        print_row(&rows[i]);
    }
    printf("\n");
    print_option("-h, ", "help", NULL, "Print this help, or that of a command");
    print_option("-V, ", "version", NULL, "Print the version");
    printf("\nExit status: 0 success, 1 no answer, an error answer or an undecodable\n"
           "message, 64 wrong usage, 78 wrong configuration.\n");
}

/* Prints a blank line and the command's options, those that all commands take or the others. */
static void print_rows_of(const struct kvctl_command *command, bool is_common)
{
    bool is_first = true;

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const enum group group = rows[i].group;
        if (is_of(&rows[i], command->name) && group != group_login &&
            groups[group].is_common == is_common) {
            printf("%s", is_first ? "\n" : "");
            print_row(&rows[i]);
            is_first = false;
        }
    }
}

/* One screen. */
static void print_help_of(const struct kvctl_command *command)
{
    bool has_options = false;

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        has_options = has_options || is_of(&rows[i], command->name);
    }
    printf(
        "Usage: kvctl %s%s%s%s\n%s\n%s", command->name, has_options ? " [OPTION...]" : "",
        command->argument ? " " : "", command->argument ? command->argument : "", command->summary,
        command->more ? command->more : "");
    print_rows_of(command, false);
    print_rows_of(command, true);
    if (has_word(CONNECTING, command->name)) {
        printf("\nOptions of the login to NATS, such as --user and --credentials: kvctl --help\n");
    }
}

enum kvctl_exit kvctl_help(const struct kvctl_options *options)
{
    const struct kvctl_command *command = options->file ? find_command(options->file) : NULL;

    if (options->file && !command) {
        refuse_unknown("command", options->file);
    }
    if (command) {
        print_help_of(command);
    } else {
        print_overview();
    }
    return kvctl_ok;
}

enum kvctl_exit kvctl_version(const struct kvctl_options *options)
{
    (void)options;
    printf("kvctl " KVB_VERSION "\n");
    return kvctl_ok;
}

/* ---- Completion ---- */

static bool is_file(const char *value)
{
    return strcmp(value, "FILE") == 0 || strcmp(value, "PATH") == 0;
}

/* Prints "--a|--b" or "--a --b", of the options that take a file, or another value that nobody
 * can complete. */
static void print_valued(const char *between, bool of_files)
{
    const char *before = "";

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].value && !rows[i].choices && is_file(rows[i].value) == of_files) {
            printf("%s--%s", before, rows[i].name);
            before = between;
        }
    }
}

static void print_names_of_commands(void)
{
    const char *before = "";

    for (const struct kvctl_command *command = kvctl_commands(); command->name; command++) {
        printf("%s%s", before, command->name);
        before = " ";
    }
}

/* What may stand after each command: its options, and its argument where that is one of a few. */
static void print_completions_of_commands(void)
{
    for (const struct kvctl_command *command = kvctl_commands(); command->name; command++) {
        printf("        %s) choices=\"", command->name);
        if (command->run == kvctl_help) {
            printf("$commands ");
        } else if (command->choices) {
            printf("%s ", command->choices);
        }
        for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
            if (is_of(&rows[i], command->name)) {
                printf("--%s ", rows[i].name);
            }
        }
        printf("--help\"");
        /* bash completes names of files itself. */
        if (command->argument && strstr(command->argument, "FILE")) {
            printf(" takes_file=yes");
        }
        printf(" ;;\n");
    }
}

enum kvctl_exit kvctl_completion(const struct kvctl_options *options)
{
    if (strcmp(options->file, "bash") != 0) {
        refuse("completion", "completion: expected bash, got \"%s\"", options->file);
    }
    printf("# Completion of bash for kvctl, written by `kvctl completion bash`.\n"
           "_kvctl()\n"
           "{\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local command=\"\" choices=\"\" takes_file=\"\" i commands=\"");
    print_names_of_commands();
    printf("\"\n\n"
           "    # bash makes three words of --kind=stored\n"
           "    if [[ $word == \"=\" ]]; then\n"
           "        word=\"\"\n"
           "    elif [[ $before == \"=\" ]]; then\n"
           "        before=${COMP_WORDS[COMP_CWORD-2]}\n"
           "    fi\n"
           "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
           "        case ${COMP_WORDS[i-1]} in\n"
           "        ");
    print_valued("|", true);
    printf("|");
    print_valued("|", false);
    printf(") continue ;;\n"
           "        esac\n"
           "        [[ \" $commands \" == *\" ${COMP_WORDS[i]} \"* ]] && command=${COMP_WORDS[i]} "
           "&& break\n"
           "    done\n"
           "    case $before in\n"
           "    ");
    print_valued("|", true);
    printf(") return ;; # bash's own names of files\n    ");
    print_valued("|", false);
    printf(") ;;\n");
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].choices) {
            printf("    --%s) choices=\"%s\" ;;\n", rows[i].name, rows[i].choices);
        }
    }
    printf("    *)\n"
           "        case $command in\n"
           "        \"\") choices=\"$commands ");
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (groups[rows[i].group].is_common) {
            printf("--%s ", rows[i].name);
        }
    }
    printf("--help --version\" ;;\n");
    print_completions_of_commands();
    printf("        esac\n"
           "        ;;\n"
           "    esac\n"
           "    [[ $takes_file && $word != -* ]] && return\n"
           "    compopt +o default 2>/dev/null\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\")\n"
           "}\n"
           "complete -o default -F _kvctl kvctl\n");
    return kvctl_ok;
}

/* ---- Reading --------------------------------------------------------------------------- */

static uint64_t read_number(const struct option_row *row, const char *text, uint64_t max)
{
    uint64_t value = 0;

    /* A sign, blanks or 1e3 are no decimal number. */
    if (!kvb_decimal_read(text, &value) || value > max) {
        refuse(
            NULL, "--%s: expected a number from 0 to %lu, got \"%s\"", row->name,
            (unsigned long)max, text);
    }
    return value;
}

static void store(const struct option_row *row, const char *text, struct kvctl_options *options)
{
    void *at = (char *)options + row->offset;

    switch (row->type) {
    case option_flag:
        *(bool *)at = true;
        break;
    case option_text:
        *(const char **)at = text;
        break;
    case option_u32:
        *(uint32_t *)at = (uint32_t)read_number(row, text, row->max);
        break;
    case option_u64:
        *(uint64_t *)at = read_number(row, text, row->max);
        break;
    case option_worker:
        if (options->worker_count == kvctl_max_workers) {
            refuse(NULL, "--worker: at most %d of them", kvctl_max_workers);
        }
        options->workers[options->worker_count++] = read_number(row, text, INT64_MAX);
        break;
    case option_rank:
        /* Rank 0 is a rank, so it takes a flag to say that none was given. */
        options->has_rank = true;
        options->dp_rank = (uint32_t)read_number(row, text, UINT32_MAX);
        break;
    case option_kind:
        if (strcmp(text, "stored") == 0) {
            options->kinds |= kvctl_stored;
        } else if (strcmp(text, "removed") == 0) {
            options->kinds |= kvctl_removed;
        } else if (strcmp(text, "cleared") == 0) {
            options->kinds |= kvctl_cleared;
        } else {
            refuse(NULL, "--kind: expected stored, removed or cleared, got \"%s\"", text);
        }
        break;
    case option_format:
        options->is_jwt = strcmp(text, "jwt") == 0;
        if (!options->is_jwt && strcmp(text, "server") != 0) {
            refuse(NULL, "--format: expected server or jwt, got \"%s\"", text);
        }
        break;
    }
}

/* What one option alone does not show. */
static void check_together(const struct kvctl_command *command, const struct kvctl_options *options)
{
    const int prompts = (options->tokens != NULL) + (options->tokens_file != NULL) +
                        (options->text != NULL) + (options->messages != NULL);
    const char *name = command->name;

    if (command->argument && command->argument[0] != '[' && !options->file) {
        refuse(name, "%s: expected %s", name, command->argument);
    }
    if (!command->argument && options->file) {
        refuse(name, "%s: one word too many: \"%s\"", name, options->file);
    }
    if (command->needs_prompt && prompts != 1) {
        refuse(name, "%s: give one of --tokens, --tokens-file, --text and --messages", name);
    }
    if (options->is_all && (options->kinds || options->worker_count > 0 || options->has_rank)) {
        refuse(name, "--all shows every message: leave out --kind, --worker and --rank");
    }
    if (command->run == kvctl_verify && !options->truth) {
        refuse(name, "verify: give --truth PATH, as kvfleet has it");
    }
    if (options->interval_ms < min_interval_ms) {
        refuse(name, "--interval: expected at least %d", min_interval_ms);
    }
}

/* Of getopt_long(), in place of the number of a row. */
enum { first_key = 0x100, max_rows = KVB_COUNT_OF(rows) };

/* getopt_long() has found something wrong in the word before optind. */
[[gnu::noreturn]] static void refuse_option(int key, char **argv)
{
    if (key == ':') {
        refuse(NULL, "%s: expected a value", argv[optind - 1]);
    }
    if (optopt >= first_key) {
        refuse(NULL, "--%s takes no value", rows[optopt - first_key].name);
    }
    if (optopt > 0) {
        refuse(NULL, "no such option: -%c", optopt);
    }
    refuse_unknown("option", argv[optind - 1]);
}

/* Stores all options, and leaves the words for optind.  Returns whether help is wanted. */
static bool
read_options(int argc, char **argv, struct kvctl_options *options, bool is_given[max_rows])
{
    struct option longs[max_rows + 3] = { { "help", no_argument, NULL, 'h' },
                                          { "version", no_argument, NULL, 'V' } };
    bool wants_help = false;
    int key = 0;

    /* The long options of getopt are the rows of the table, so there is one list of them. */
    for (int i = 0; i < max_rows; i++) {
        longs[i + 2] =
            (struct option){ rows[i].name, rows[i].value ? required_argument : no_argument, NULL,
                             first_key + i };
    }
    opterr = 0; /* we say what is wrong */
    while ((key = getopt_long(argc, argv, ":hV", longs, NULL)) != -1) {
        switch (key) {
        case 'h':
            wants_help = true;
            break;
        case 'V':
            (void)kvctl_version(options);
            exit(kvctl_ok);
        case ':':
        case '?':
            refuse_option(key, argv);
        default:
            is_given[key - first_key] = true;
            store(&rows[key - first_key], optarg, options);
            break;
        }
    }
    return wants_help;
}

const struct kvctl_command *
kvctl_options_read(int argc, char **argv, struct kvctl_options *out_options)
{
    bool is_given[max_rows] = { false };

    *out_options = (struct kvctl_options){
        .timeout_ms = default_timeout_ms,
        .wait_ms = default_wait_ms,
        .interval_ms = default_interval_ms,
    };
    const bool wants_help = read_options(argc, argv, out_options, is_given);
    const char *name = argv[optind]; /* getopt has moved the words behind the options */
    if (wants_help) {
        out_options->file = name;
        (void)kvctl_help(out_options);
        exit(kvctl_ok);
    }
    if (!name) {
        refuse(NULL, "which command?");
    }
    const struct kvctl_command *command = find_command(name);
    if (!command) {
        refuse_unknown("command", name);
    }
    out_options->file = argv[optind + 1];
    if (out_options->file && argv[optind + 2]) {
        refuse(name, "one word too many: \"%s\"", argv[optind + 2]);
    }
    /* Options may precede the command, so whether they are its own is known only now. */
    for (size_t i = 0; i < max_rows; i++) {
        if (is_given[i] && !groups[rows[i].group].is_common && !is_of(&rows[i], name)) {
            refuse(
                name, "%s has no option --%s, which is for %s", name, rows[i].name,
                groups[rows[i].group].commands);
        }
    }
    check_together(command, out_options);
    return command;
}

/* NOLINTEND(concurrency-mt-unsafe) */
