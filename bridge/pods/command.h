#pragma once

#include "core/buf.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

struct json_object;

/* What the containers of a pod run, as words:
 *
 *     command: [/bin/sh, -c]       -->  cd /models
 *     args: ["cd /models &&             exec vllm serve Qwen/Q --block-size 16
 *            exec vllm serve Qwen/Q --block-size $SIZE"]
 *     env: SIZE=16
 *
 * `command` and `args` are one list.  What a shell is given to run is split as POSIX says: quotes,
 * backslashes, continued lines, comments, redirections, here-documents, variables of the container
 * and of the line, "$@"; each simple command is one.  A word that depends on what only the
 * container knows (another variable, the output of a command) is not known: see kvb_command_word.
 *
 * Pure.  Threads: the caller locks.
 * Memory: a pod's words, at most 256 KiB; what is beyond is not read. */
struct kvb_command_word {
    const char *text; /* borrowed from the commands; "" where the word is not known */
    size_t at;        /* of the text, while it still grows */
    bool is_known;
    bool is_first;  /* of a simple command */
    bool is_bare;   /* its container has no command: an image's own entry point gets the words */
    bool is_engine; /* its container publishes events, or its image or program is an engine */
};

struct kvb_commands {
    struct kvb_buf text; /* owned, like words */
    struct kvb_command_word *words;
    size_t count;
    size_t capacity;
};

/* Reads the list of containers, in the pod's order.
 * kvb_commands_done() frees the memory, also after an error and of {0}.
 * KVB_NO_MEMORY */
kvb_status kvb_commands_read(struct json_object *containers, struct kvb_commands *out_commands);
void kvb_commands_done(struct kvb_commands *commands);

/* The value of the option "--name" or "-name" as an engine reads it: "--name value" or
 * "--name=value", underscores are dashes, the last one of a command counts, and containers of
 * engines come first.  NULL: it is not there, or its value is not known. */
const char *kvb_commands_option(const struct kvb_commands *commands, const char *name);

/* The model that the engine serves, by the first of these rules that names one; NULL: none does.
 * *out_rule says which it is:
 *
 *     argument --served-model-name, argument --model, argument --model-path
 *     argument of serve   `vllm serve MODEL`: the first word that is no option and not its value
 *     first argument      the same where the image's entry point is `vllm serve`
 *
 * Options of programs beside the engine count where none of the engine's own words is its model,
 * not even one that is not known. */
const char *kvb_commands_model(const struct kvb_commands *commands, const char **out_rule);
