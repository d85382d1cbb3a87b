#pragma once

#include "core/conf.h"

/* An open configuration file; for conf*.c only. */

struct config_t;
struct config_setting_t;

struct kvb_conf {
    char *path;                     /* owned */
    struct config_t *tree;          /* owned */
    struct kvb_conf_errors *errors; /* borrowed */
    /* Borrowed: the file in which `list` goes on from item `first`; NULL: it does not. */
    const struct kvb_conf *more;
    const char *list;
    size_t first;
};

/* Adds "path:line: key: text"; without "key: " when key is "". */
void kvb_conf_add_error(struct kvb_conf *conf, unsigned line, const char *key, const char *text);

/* Replaces each $(NAME) in the strings at and below the setting by the environment variable; adds
 * an error for each that cannot be.  KVB_NO_MEMORY */
kvb_status kvb_conf_expand(struct kvb_conf *conf, struct config_setting_t *setting);
