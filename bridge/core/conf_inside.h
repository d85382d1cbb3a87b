#pragma once

#include "core/conf.h"

/* An open configuration file.  Only core/conf*.c include this header. */

struct config_t;

struct kvb_conf {
    char *path;                     /* owned */
    struct config_t *tree;          /* owned */
    struct kvb_conf_errors *errors; /* borrowed */
    /* Borrowed: the file that continues `list` from item `first` on; NULL: none. */
    const struct kvb_conf *more;
    const char *list;
    size_t first;
};

/* Adds the error "path:line: key: text".  Leaves out "key: " when key is "". */
void kvb_conf_add_error(struct kvb_conf *conf, unsigned line, const char *key, const char *text);
