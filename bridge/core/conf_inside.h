#pragma once

#include "core/conf.h"

/* An open configuration file; for conf*.c only. */

struct config_t;
struct config_setting_t;

struct kvb_conf {
    char *path;                     /* owned */
    struct config_t *tree;          /* owned */
    struct kvb_conf_errors *errors; /* borrowed */
};

/* Adds "path:line: key: text"; without "key: " when key is "". */
void kvb_conf_add_error(struct kvb_conf *conf, unsigned line, const char *key, const char *text);

/* Finds mistakes that libconfig 1.5 accepts silently.
 *
 * libconfig truncates an integer that does not fit 32 bits (64 with the suffix L): 4294967297
 * becomes 1.  Each such integer is overwritten with a fraction of the same width, which the
 * reader of whole numbers then refuses: 99. where the suffix L would help, .99 where it is there
 * already.
 *
 * A comment that is never closed hides the rest of the file, and a file named by @include would
 * not be checked.  Returns the position of the first such mistake in text, with *out_why; NULL
 * when there is none. */
const char *kvb_conf_guard(char *text, const char **out_why);
