#pragma once

#include "core/conf.h"

#include <stdio.h>

/* A configuration file of a test, below /tmp until the test removes it. */
struct config_file {
    char path[32];
};

void config_file_write(struct config_file *file, const char *text, size_t len);
void config_file_remove(const struct config_file *file);

/* Fails the test unless exactly these errors were found, in this order, each as
 * "12: nats.url: expected ..." (a beginning is enough); closed by NULL. */
void assert_errors(
    const struct config_file *file, const struct kvb_conf_errors *errors,
    const char *const expected[]);

/* Fails the test unless every key that --help lists stands in the sample file
 * etc/name; a key of a list, in its first group. */
void assert_sample_has_every_key(const char *name, const struct kvb_conf_table *keys);
