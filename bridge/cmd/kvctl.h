#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/buf.h"
#include "core/detail.h"
#include "core/status.h"

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What the files of kvctl share.  kvctl is an honest client: it speaks NATS as
 * proto/README.md says and knows nothing else of the daemons.
 * Threads: main, and one of nats.c that prints for `watch`. */

enum kvctl_exit {
    kvctl_ok = 0,
    kvctl_failed = 1,
    kvctl_usage = 64, /* EX_USAGE */
    kvctl_config = 78 /* EX_CONFIG */
};

/* Which kinds of events `watch` shows; none chosen: all. */
enum kvctl_kind { kvctl_stored = 1, kvctl_removed = 2, kvctl_cleared = 4 };

enum { kvctl_most_workers = 256 }; /* that --worker may name */

/* Everything borrowed from argv. */
struct kvctl_options {
    const char *url;
    const char *name_space; /* NULL: dynamo, and every one for `watch` */
    const char *component;  /* NULL: Router, and every one for `watch` */
    bool is_json;
    uint32_t timeout_ms; /* for connecting, and again for each answer */
    const char *tokens;
    const char *tokens_file;
    const char *model;
    const char *lora;
    const char *salt;
    uint64_t workers[kvctl_most_workers]; /* of `watch`, like the next six */
    size_t worker_count;                  /* 0: all */
    bool has_rank;
    uint32_t dp_rank;
    unsigned kinds;       /* of enum kvctl_kind */
    uint64_t count;       /* events to show, lines with is_all; 0: no end */
    bool is_all;          /* every subject, as JSON lines */
    bool is_once;         /* of `top`, like the next three */
    uint32_t interval_ms; /* between pictures */
    const char *sort;     /* title of a column; NULL: the first */
    const char *filter;   /* NULL: none */
    const char *truth;    /* of `verify`: kvfleet's truth socket */
    const char *sample;   /* of `verify`: file to write a prompt to; NULL: none */
    uint32_t wait_ms;     /* of `verify`: for the index to become equal */
    const char *command;
    bool is_hex;      /* of `decode` */
    const char *file; /* of `check` and `decode` */
};

/* Reads argv; prints and exits itself for --help, --version and wrong usage. */
void kvctl_options_read(int argc, char **argv, struct kvctl_options *out_options);

struct kvctl_command {
    const char *name;
    const char *argument; /* what stands after the name, in brackets when it may be left
                           * out; NULL for nothing */
    bool needs_tokens;
    enum kvctl_exit (*run)(const struct kvctl_options *options);
};

/* The table of commands, closed by a row without a name. */
const struct kvctl_command *kvctl_commands(void);

/* `check FILE`: reports all mistakes of a configuration file. */
enum kvctl_exit kvctl_check(const struct kvctl_options *options);

/* `decode [FILE|-]`: an engine's messages as JSON lines. */
enum kvctl_exit kvctl_decode(const struct kvctl_options *options);

/* `verify`: compares the index with what a kvfleet's engines hold. */
enum kvctl_exit kvctl_verify(const struct kvctl_options *options);

/* `top`: a live screen of the fleet, or one picture of it. */
enum kvctl_exit kvctl_top(const struct kvctl_options *options);

/* `watch`: one line an event, with --all one a message too, until --count or a signal. */
enum kvctl_exit kvctl_watch(const struct kvctl_options *options);

/* ---- kvctl_ask.c: questions ------------------------------------------------------ */

/* A connection for one command.  {0} is closed. */
struct kvctl_line {
    const struct kvctl_options *options; /* borrowed */
    struct kvb_bus *bus;                 /* owned */
};

/* Connects within the time-out; on failure says on stderr what to do.  tell, where it
 * is not NULL, hears of each later loss (false) and its end (true), on a thread of
 * the bus. */
enum kvctl_exit kvctl_connect(
    const struct kvctl_options *options, void (*tell)(bool is_connected),
    struct kvctl_line *out_line);
void kvctl_hang_up(struct kvctl_line *line);

/* Writes R.{tail}.  KVB_BAD_INPUT: --namespace or --component is no name. */
kvb_status kvctl_router_subject(
    const struct kvctl_options *options, const char *tail, char out[kvb_subject_bytes]);

/* Asks and gives the answer as it came; says nothing.  As kvb_bus_request();
 * KVB_NO_MEMORY: the answer does not fit. */
kvb_status kvctl_request(
    const struct kvctl_line *line, const char *subject, kvb_span question, struct kvb_buf *answer,
    struct kvb_detail *detail);

/* Asks R.{tail} and gives the answer as it came.  Says on stderr why not. */
enum kvctl_exit kvctl_ask(
    const struct kvctl_line *line, const char *tail, kvb_span question, struct kvb_buf *answer);

/* Parses an answer; one with "error" is a failure, said on stderr.  The caller
 * ends *out_root with kvb_json_drop(). */
enum kvctl_exit kvctl_read_answer(const struct kvb_buf *answer, struct json_object **out_root);

/* One line on stderr, after "kvctl: ". */
void kvctl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- kvctl_question.c ------------------------------------------------------------- */

/* Appends the whole file; "-" is stdin.  detail begins with `what`.
 * KVB_BAD_INPUT: it cannot be read; KVB_TOO_LARGE, KVB_NO_MEMORY of out. */
kvb_status
kvctl_read_file(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail);

/* The same of a text, and a NUL.  KVB_BAD_INPUT: there is one in it already. */
kvb_status
kvctl_read_text(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail);

/* {"token_ids":[...],...} from the options.  KVB_BAD_INPUT: detail says which token
 * or file; KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status
kvctl_question(const struct kvctl_options *options, struct kvb_buf *out, struct kvb_detail *detail);

/* ---- kvctl_table.c ----------------------------------------------------------------- */

struct kvctl_column {
    const char *title;
    const char *path; /* "tokens.device": members from the row down */
    bool is_right;    /* numbers */
};

/* An aligned table of an array of objects; "(none)" for an empty one.  What is
 * missing is "-"; bytes that a terminal would obey are "?". */
void kvctl_print_table(
    FILE *out, struct json_object *rows, const struct kvctl_column *columns, size_t column_count);

/* The member at path as text, into text. */
void kvctl_text_at(struct json_object *object, const char *path, char *text, size_t size);

/* Every number and text of a tree, one a line: "index.blocks  123". */
void kvctl_print_tree(FILE *out, struct json_object *root);
