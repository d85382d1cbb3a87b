#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Reads a libconfig file into a plain struct.  A table has one row per key:
 *
 *     file text --kvb_conf_open--> tree --kvb_conf_read(table)--> struct
 *                    |                       |                      |
 *                    +------- errors <-------+--- kvb_conf_error <--+ cross checks
 *
 * All errors are collected, each with its file and line, so that the operator can correct them
 * together.  A key with a wrong value gets its default.  Without a default the field is empty, or a
 * number with all bits set, so that cross checks can skip it.
 *
 * In any string, "$(NAME)" is the environment variable NAME, and "$$(" is "$(".
 *
 * Threads: only the thread that made it.
 * Memory:  a file of kvb_max_config_bytes at most. */

enum kvb_conf_type {
    KVB_CONF_STRING, /* char array in the struct; min: least number of bytes */
    KVB_CONF_TEXT,   /* const char *, borrowed until kvb_conf_close(); max: most bytes */
    KVB_CONF_U64,    /* number or decimal string; libconfig requires an L: 5000000000L */
    KVB_CONF_U32,
    KVB_CONF_BOOL,
    KVB_CONF_DOUBLE,   /* min and max are whole numbers here too */
    KVB_CONF_ENUM,     /* by name; max: the last value */
    KVB_CONF_LIST,     /* ( { ... }, { ... } ); min and max: how many groups */
    KVB_CONF_DEFAULTS, /* { ... }: what the groups of lists with the same `items` do not say */
    KVB_CONF_U64S,     /* ( 1, 2 ), into an array of a fixed size; optional */
    KVB_CONF_PAIRS,    /* { name = "value"; }; take_pair() adds each pair; optional */
    KVB_CONF_TEXTS,    /* ( "a", "b" ); take_text() adds each text; optional */
    KVB_CONF_TYPE_COUNT
};

/* Where a key of a list's groups may stand, if there is a row KVB_CONF_DEFAULTS. */
enum kvb_conf_scope { KVB_CONF_ANYWHERE, KVB_CONF_OF_A_GROUP, KVB_CONF_OF_DEFAULTS };

struct kvb_conf_table;

/* The order of rows. */
struct kvb_conf_key {
    const char *path; /* "nats.url"; in a list's table relative to the group: "load.zmq" */
    enum kvb_conf_type type;
    const char *fallback; /* the default, as text; NULL: none */
    uint64_t min;
    uint64_t max; /* not for KVB_CONF_STRING: the size of the array is the limit */
    size_t offset;
    size_t bytes; /* size of the field; unused for a list */
    /* Names of an enum's values 0 .. max.  A function of the enum itself fits: gcc and clang give
     * an enum without negative values the type unsigned. */
    const char *(*name_of)(unsigned value);
    /* What serves in place of an enum's value of an earlier version; NULL: it never was one. */
    const char *(*instead_of)(const char *name);
    /* Of a list, whose field points to the first group; of defaults, whose field is one group. */
    const struct kvb_conf_table *items;
    size_t count_offset; /* of a list or an array: its count, a size_t */
    /* For KVB_CONF_PAIRS: adds a pair to the field.  On failure detail says why. */
    kvb_status (*take_pair)(
        void *field, const char *name, const char *value, struct kvb_detail *detail);
    /* The same for KVB_CONF_TEXTS. */
    kvb_status (*take_text)(void *field, const char *text, struct kvb_detail *detail);
    const char *instead;   /* a key that may replace this one; NULL: none */
    const char *otherwise; /* what an absent key means, for help; not NULL: the key is optional */
    const char *help;      /* one or more lines of at most 72 bytes */
    enum kvb_conf_scope scope;
};

/* A key or a whole group of an earlier version.  A file that has it gets an error with `instead`.
 */
struct kvb_conf_removed {
    const char *path;
    const char *instead; /* what serves in its place: a whole sentence, without a stop */
};

struct kvb_conf_table {
    const struct kvb_conf_key *keys;
    size_t count;
    size_t bytes; /* size of the struct that the offsets refer to */
    const struct kvb_conf_removed *removed;
    size_t removed_count;
};

/* Sets offset and size of the field for a row's value. */
#define KVB_CONF_FIELD(type, field)                                                                \
    .offset = offsetof(type, field), .bytes = sizeof(((type *)NULL)->field)

enum { kvb_conf_max_errors = 32 };

enum { kvb_conf_max_warnings = 8 };

/* {0} is an empty list. */
struct kvb_conf_errors {
    size_t count; /* errors found; only the first kvb_conf_max_errors have a text */
    struct kvb_detail texts[kvb_conf_max_errors];
    size_t warning_count; /* warnings beyond kvb_conf_max_warnings are left out */
    struct kvb_detail warnings[kvb_conf_max_warnings];
    bool leaves_logins; /* set by the caller: do not check the files of a login */
};

/* Prints one error per line: "etc/kvbridge.cfg:12: nats.url: expected a string in quotes".  A
 * warning has "warning: " before the key. */
void kvb_conf_errors_print(const struct kvb_conf_errors *errors, FILE *out);

struct kvb_conf;

/* Reads and parses the file; errors is borrowed until kvb_conf_close().
 * KVB_BAD_CONFIG  it cannot be read, or its syntax is wrong; errors says where
 * KVB_NO_MEMORY */
kvb_status
kvb_conf_open(const char *path, struct kvb_conf_errors *errors, struct kvb_conf **out_conf);

/* NULL is fine. */
void kvb_conf_close(struct kvb_conf *conf);

/* Fills *out, which must be {0}, from the file and the defaults, and adds mistakes to errors.
 * `defaults`, in kvb_conf_read_more(), is the group of defaults of an earlier file, for the lists
 * of this one. On KVB_OK, with mistakes or without, the caller frees its lists with
 * kvb_conf_done(). KVB_NO_MEMORY: there is nothing to free. */
kvb_status kvb_conf_read(struct kvb_conf *conf, const struct kvb_conf_table *table, void *out);
kvb_status kvb_conf_read_more(
    struct kvb_conf *conf, const struct kvb_conf_table *table, const void *defaults, void *out);
void kvb_conf_done(const struct kvb_conf_table *table, void *out);

/* Calls `tell` with the path of each key whose value differs.  Both structs must have been read by
 * this table.  Lists, defaults and borrowed texts are not compared. */
typedef void kvb_conf_report_path(void *context, const char *path);
void kvb_conf_differences(
    const struct kvb_conf_table *table, const void *one, const void *other,
    kvb_conf_report_path *tell, void *context);

/* Adds an error of a cross check.  It has the line of the key, such as "workers[2].load.zmq".  When
 * the key is absent, it has the line of the enclosing group. */
void kvb_conf_error(struct kvb_conf *conf, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether the file has this key, or a group of this name. */
bool kvb_conf_has(const struct kvb_conf *conf, const char *key);

/* Adds a warning.  The value is allowed, but the operator should know its effect. */
void kvb_conf_warning(struct kvb_conf *conf, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Continues `list`, a key such as "workers", in another file.  Item 0 of the list in that file is
 * item `first` of the whole list.  Errors and places of these items name that file.  `list` and
 * `more` are borrowed until kvb_conf_close(conf).  Only one list of a file can be continued. */
void kvb_conf_continue(
    struct kvb_conf *conf, const char *list, size_t first, const struct kvb_conf *more);

enum { kvb_conf_key_bytes = 128 };

struct kvb_conf_place {
    const char *path;             /* borrowed from the conf */
    char key[kvb_conf_key_bytes]; /* path of the key in that file */
    unsigned line;                /* 1 when there is none */
};

/* Whether the files of a login are to be checked. */
bool kvb_conf_checks_logins(const struct kvb_conf *conf);

/* Returns the place that kvb_conf_error() names for the key. */
struct kvb_conf_place kvb_conf_place_of(const struct kvb_conf *conf, const char *key);

/* Prints all keys in table order, for --help.  Each begins with "  path = default".  Help and range
 * ("10 .. 60000", "\"json\" | \"protobuf\"") are below it, indented by six blanks.  The manual
 * pages are generated from this text. */
void kvb_conf_help(const struct kvb_conf_table *table, FILE *out);
