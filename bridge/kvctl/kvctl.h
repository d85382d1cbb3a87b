#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/buf.h"
#include "core/status.h"

#include <json-c/json.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Shared by the files of kvctl.  kvctl uses only the NATS contract of proto/README.md
 * and no internals of the daemons.
 * Threads: main, and one of nats.c that prints for `watch`. */

enum kvctl_exit {
    kvctl_ok = 0,
    kvctl_failed = 1,
    kvctl_usage = 64, /* EX_USAGE */
    kvctl_config = 78 /* EX_CONFIG */
};

/* Which kinds of events `watch` shows; none chosen: all. */
enum kvctl_kind { kvctl_stored = 1, kvctl_removed = 2, kvctl_cleared = 4 };

enum { kvctl_max_workers = 256 }; /* that --worker may name */

#define KVCTL_DEFAULT_URL "nats://127.0.0.1:4222"

/* Options of the login, in the order of their rows in kvctl/options.c and kvctl/login.c. */
enum { kvctl_login_fields = 10, kvctl_url_bytes = 1024 };

/* Everything borrowed from argv. */
struct kvctl_options {
    const char *url;                       /* NULL: not given, like the next two */
    const char *login[kvctl_login_fields]; /* --user ... --inbox-prefix */
    const char *context;
    const char *name_space; /* NULL: dynamo; for `watch`, `workers`: all */
    const char *component;  /* NULL: Router; for `watch`, `workers`: all */
    bool is_json;
    bool is_by_block;    /* of `match` */
    uint32_t timeout_ms; /* for connecting, and again for each answer */
    const char *tokens;  /* the prompt, of `match` and `route`: one of these four */
    const char *tokens_file;
    const char *text;     /* "-": stdin, like the next one */
    const char *messages; /* JSON */
    const char *model;
    const char *lora;
    const char *salt;
    uint64_t workers[kvctl_max_workers]; /* of `watch`, like the next six */
    size_t worker_count;                 /* 0: all */
    bool has_rank;
    uint32_t dp_rank;
    unsigned kinds;       /* of enum kvctl_kind */
    uint64_t count;       /* events to show, lines with is_all; 0: unlimited */
    bool is_all;          /* every subject, as JSON lines */
    uint32_t interval_ms; /* of `top`, like the next two: between pictures */
    const char *sort;     /* title of a column; NULL: the first */
    const char *filter;   /* NULL: none */
    const char *truth;    /* of `verify`: kvfleet's truth socket */
    const char *sample;   /* of `verify`: file to write a prompt to; NULL: none */
    uint32_t wait_ms;     /* of `verify`: for the index to become equal */
    bool is_hex;          /* of `decode` */
    const char *file;     /* the word after the command; NULL: none */
    const char *config;   /* of `permissions`, like the next one; NULL: none */
    bool is_jwt;
};

struct kvctl_command {
    const char *name;
    const char *argument; /* name of the word after it, in brackets when optional; NULL: none */
    const char *choices;  /* the words that this may be; NULL: others */
    const char *summary;  /* one line of help */
    const char *more;     /* further lines, each with its end; NULL: none */
    bool needs_prompt;
    const char *tail; /* of a query to an aggregator whose answer is printed; NULL: run does it */
    void (*print)(struct json_object *answer); /* for people */
    enum kvctl_exit (*run)(const struct kvctl_options *options);
};

/* The table of commands, closed by a row without a name. */
const struct kvctl_command *kvctl_commands(void);

/* ---- kvctl/options.c ---- */

/* Reads argv, and returns the command.  For --help, --version and wrong usage it prints and exits
 * the program. */
const struct kvctl_command *
kvctl_options_read(int argc, char **argv, struct kvctl_options *out_options);

/* `help [COMMAND]`, `version`, `completion bash`: from the tables of commands and options. */
enum kvctl_exit kvctl_help(const struct kvctl_options *options);
enum kvctl_exit kvctl_version(const struct kvctl_options *options);
enum kvctl_exit kvctl_completion(const struct kvctl_options *options);

/* ---- Commands ---- */

/* `check FILE`: reports all mistakes of a configuration file. */
enum kvctl_exit kvctl_check(const struct kvctl_options *options);

/* `permissions ROLE`: what nats-server must permit a program. */
enum kvctl_exit kvctl_permissions(const struct kvctl_options *options);

/* `decode [FILE|-]`: an engine's messages as JSON lines. */
enum kvctl_exit kvctl_decode(const struct kvctl_options *options);

/* `verify`: compares the index with what the engines of a kvfleet hold. */
enum kvctl_exit kvctl_verify(const struct kvctl_options *options);

/* `top`: the table of `streams` on a terminal, drawn again and again. */
enum kvctl_exit kvctl_top(const struct kvctl_options *options);

/* `workers`: where bridges know their workers from, and which pods are none. */
enum kvctl_exit kvctl_workers(const struct kvctl_options *options);

/* `watch`: one line for each event, with --all also for each other message, until --count or a
 * signal. */
enum kvctl_exit kvctl_watch(const struct kvctl_options *options);

/* ---- kvctl/login.c ---- */

struct kvctl_login {
    char url[kvctl_url_bytes]; /* may contain a password: zero it after use */
    struct kvb_bus_login login;
};

/* From options, the context that they name, and the environment.  On failure detail says why. */
kvb_status kvctl_login_make(
    const struct kvctl_options *options, struct kvctl_login *out, struct kvb_detail *detail);

/* ---- kvctl/request.c: queries -------------------------------------------------------- */

struct kvctl_gate; /* kvctl/request.c */

/* A connection for one command.  {0} is closed. */
struct kvctl_line {
    const struct kvctl_options *options; /* borrowed */
    struct kvb_bus *bus;                 /* owned */
    struct kvctl_gate *gate;             /* borrowed; shows changes of the connection */
    char aggregator[64];                 /* id of the one that is asked; "": any of the group */
};

/* Connects within the timeout; on failure prints on stderr what to do.  tell, unless NULL,
 * is called on a thread of the bus for each later loss (false) and its end (true). */
enum kvctl_exit kvctl_connect(
    const struct kvctl_options *options, void (*tell)(bool is_connected),
    struct kvctl_line *out_line);
void kvctl_hang_up(struct kvctl_line *line);

/* Writes R.{tail}.  KVB_BAD_INPUT: --namespace or --component is not a valid name. */
kvb_status kvctl_router_subject(
    const struct kvctl_options *options, const char *tail, char out[kvb_subject_bytes]);

/* Writes R.{tail}, with the id of the line's aggregator where it has one.  Errors as above. */
kvb_status
kvctl_line_subject(const struct kvctl_line *line, const char *tail, char out[kvb_subject_bytes]);

/* From now on the line asks the aggregator that gave this answer: places in its lists mean nothing
 * to another one.  An answer without an id changes nothing. */
void kvctl_stay_with(struct kvctl_line *line, struct json_object *answer);

/* Sends a request and returns the answer unchanged; prints nothing.  A request that nobody answers
 * is sent once more after a fifth of a second: the only aggregator may be leaving or joining the
 * queue group.  Any other failure is final, because that request may have been answered.
 * Errors as kvb_bus_request(); KVB_NO_MEMORY: the answer does not fit. */
kvb_status kvctl_request(
    const struct kvctl_line *line, const char *subject, kvb_span query, struct kvb_buf *answer,
    struct kvb_detail *detail);

/* Sends a query to R.{tail} and returns the answer unchanged.  Prints errors on stderr. */
enum kvctl_exit kvctl_request_answer(
    const struct kvctl_line *line, const char *tail, kvb_span query, struct kvb_buf *answer);

/* Parses an answer, which must be an object.  The caller frees *out_root with kvb_json_drop().
 * KVB_BAD_INPUT, KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvctl_parse(kvb_span text, struct json_object **out_root);

/* Parses an answer; one with "error" is a failure, which is printed on stderr.  The caller
 * frees *out_root with kvb_json_drop(). */
enum kvctl_exit kvctl_read_answer(const struct kvb_buf *answer, struct json_object **out_root);

/* Sends a query, and again for each further page where the answer is one page of several; all
 * come from one aggregator.  take() reads each answer with kvctl_read_answer() into *out_page, or
 * ends the whole.  Prints errors on stderr. */
typedef enum kvctl_exit
kvctl_page_taker(void *context, const struct kvb_buf *answer, struct json_object **out_page);
enum kvctl_exit kvctl_request_pages(
    const struct kvctl_line *line, const char *tail, kvb_span query, kvctl_page_taker *take,
    void *context);

/* What kvctl prints may be a peer's text, which must not control the terminal.  So all of it goes
 * through these: control characters (C0 but line ends and tabs, DEL, C1), those that change the
 * direction of text, and bytes that are not UTF-8 become \u009b.  JSON stays JSON, because there
 * they stand in texts only. */
void kvctl_put(FILE *out, const void *text, size_t len);
[[gnu::format(printf, 2, 3)]] void kvctl_print(FILE *out, const char *format, ...);
[[gnu::format(printf, 2, 0)]] void
kvctl_print_list(FILE *out, const char *format, va_list arguments);
/* The length of the control character at text, or of what is not UTF-8; 0: it is neither. */
size_t kvctl_control_at(const char *text, size_t left, unsigned *out_point);

/* Prints one line on stderr, after "kvctl: ". */
void kvctl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Appends the whole file; "-" is stdin.  detail begins with `what`.
 * KVB_BAD_INPUT: it cannot be read; KVB_TOO_LARGE, KVB_NO_MEMORY of out. */
kvb_status
kvctl_read_file(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail);

/* Writes {"token_ids":[...],...} from the options, or "text" or "messages" in place of these.
 * KVB_BAD_INPUT: detail names the option, token or file; KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvctl_write_query(
    const struct kvctl_options *options, struct kvb_buf *out, struct kvb_detail *detail);

/* ---- kvctl/table.c ----------------------------------------------------------------- */

struct kvctl_column {
    const char *title;
    const char *path; /* "tokens.device": members from the row down */
    bool is_right;    /* numbers */
};

/* The columns of `streams`, which `top` shows too. */
const struct kvctl_column *kvctl_stream_columns(size_t *out_count);

/* Prints an array of objects as an aligned table; "(none)" for an empty one.  A missing value
 * is printed as "-", a control character as "?". */
void kvctl_print_table(
    FILE *out, struct json_object *rows, const struct kvctl_column *columns, size_t column_count);

/* Writes the member at path into text. */
void kvctl_text_at(struct json_object *object, const char *path, char *text, size_t size);

/* Prints every number and text of a tree, one a line: "index.blocks  123". */
void kvctl_print_tree(FILE *out, struct json_object *root);
