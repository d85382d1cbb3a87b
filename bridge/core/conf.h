#pragma once

#include "core/detail.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A libconfig file into a plain struct, by a table with one row per key:
 *
 *     file text --kvb_conf_open--> tree --kvb_conf_read(table)--> struct
 *                    |                       |                      |
 *                    +------- errors <-------+--- kvb_conf_error <--+ cross checks
 *
 * All mistakes are collected, each with its file and line, so that the operator
 * mends them in one go.  A key that is wrong keeps its default in the struct; one
 * without a default is empty, or has all bits set when it is a number, so that
 * cross checks can pass over it.
 *
 * Threads: only the thread that made it.
 * Memory:  a file of kvb_max_config_bytes at most. */

enum kvb_conf_type {
    KVB_CONF_STRING, /* char array of the struct; min: fewest bytes */
    KVB_CONF_U64,    /* also as a decimal string: libconfig wants 5000000000L */
    KVB_CONF_U32,
    KVB_CONF_BOOL,
    KVB_CONF_DOUBLE, /* min and max are whole numbers here too */
    KVB_CONF_ENUM,   /* by name; max: the last value */
    KVB_CONF_LIST,   /* ( { ... }, { ... } ); min and max: how many groups */
    KVB_CONF_U64S,   /* ( 1, 2 ), into an array that says how many fit; may be left out */
    KVB_CONF_TYPE_COUNT
};

struct kvb_conf_table;

struct kvb_conf_key {
    const char *path; /* "nats.url"; in the table of a list from its group on: "load.zmq" */
    enum kvb_conf_type type;
    const char *fallback; /* the value as text when the key is not there; NULL: it must be */
    uint64_t min;
    uint64_t max; /* not of strings: their array says it */
    size_t offset;
    size_t bytes;                           /* of the field; not of a list */
    const char *(*name_of)(unsigned value); /* of an enum's values 0 .. max */
    const struct kvb_conf_table *items;     /* of a list; the field is a pointer to the first */
    size_t count_offset;                    /* of a list or an array: a size_t */
    const char *instead;                    /* a key that may stand in its place; NULL: none */
    const char *otherwise; /* left out, it is empty or all bits: what that means; or NULL */
    const char *help;      /* one or more lines of at most 72 bytes */
};

struct kvb_conf_table {
    const struct kvb_conf_key *keys;
    size_t count;
    size_t bytes; /* of the struct that the offsets mean */
};

/* Where a row's value goes, and its size. */
#define KVB_CONF_FIELD(type, field)                                                                \
    .offset = offsetof(type, field), .bytes = sizeof(((type *)NULL)->field)

enum { kvb_conf_max_errors = 32 };

enum { kvb_conf_max_warnings = 8 };

/* {0} to begin with. */
struct kvb_conf_errors {
    size_t count; /* found; the ones above kvb_conf_max_errors have no text */
    struct kvb_detail texts[kvb_conf_max_errors];
    size_t warning_count; /* no mistakes; those above kvb_conf_max_warnings are left out */
    struct kvb_detail warnings[kvb_conf_max_warnings];
};

/* One a line: "etc/kvbridge.cfg:12: nats.url: expected a string in quotes"; warnings
 * say "warning: " before the key. */
void kvb_conf_errors_print(const struct kvb_conf_errors *errors, FILE *out);

struct kvb_conf;

/* Reads and parses the file; errors is borrowed until kvb_conf_close().
 * KVB_BAD_CONFIG  it cannot be read, or its syntax is wrong; errors says where
 * KVB_NO_MEMORY */
kvb_status
kvb_conf_open(const char *path, struct kvb_conf_errors *errors, struct kvb_conf **out_conf);

/* NULL is fine. */
void kvb_conf_close(struct kvb_conf *conf);

/* Fills out, which must be {0}, from the file and the defaults; mistakes go to
 * errors.  On KVB_OK, with mistakes or without, the caller undoes it with
 * kvb_conf_done(): lists are on the heap.  KVB_NO_MEMORY: nothing to undo. */
kvb_status kvb_conf_read(struct kvb_conf *conf, const struct kvb_conf_table *table, void *out);
void kvb_conf_done(const struct kvb_conf_table *table, void *out);

/* Tells the paths of the keys whose values differ; both structs were read by the table.
 * Lists are passed over. */
typedef void kvb_conf_tell_path(void *context, const char *path);
void kvb_conf_differences(
    const struct kvb_conf_table *table, const void *one, const void *other,
    kvb_conf_tell_path *tell, void *context);

/* Adds a mistake that no single row shows, with the line of a key such as
 * "workers[2].load.zmq"; of the group around it when the key is not there. */
void kvb_conf_error(struct kvb_conf *conf, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds what the operator should know although it is allowed. */
void kvb_conf_warning(struct kvb_conf *conf, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The line that kvb_conf_error() would name; 1 when there is none. */
unsigned kvb_conf_line(const struct kvb_conf *conf, const char *key);

/* One key as people read it; borrowed for the call. */
struct kvb_conf_words {
    const char *path;  /* "workers[].load.zmq" */
    const char *value; /* " = 100", " = ...   (required)" */
    const char *help;  /* one or more lines */
    const char *range; /* "10 .. 60000", "\"json\" | \"protobuf\""; "" for none */
};
typedef void kvb_conf_tell(void *context, const struct kvb_conf_words *words);

/* Tells of all keys, in their order. */
void kvb_conf_describe(const struct kvb_conf_table *table, kvb_conf_tell *tell, void *context);

/* The same as text, for --help. */
void kvb_conf_help(const struct kvb_conf_table *table, FILE *out);
