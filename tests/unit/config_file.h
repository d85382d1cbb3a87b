#pragma once

#include "core/conf.h"

#include <stdio.h>

/* A configuration file that a test writes below /tmp and removes. */
struct config_file {
    char path[32];
};

void config_file_write(struct config_file *file, const char *text, size_t len);
void config_file_remove(const struct config_file *file);

/* Fails the test unless exactly these errors were found, in this order. Each expected text, such as
 * "12: nats.url: expected ...", needs to match only the beginning of the error. NULL ends the list.
 */
void assert_errors(
    const struct config_file *file, const struct kvb_conf_errors *errors,
    const char *const expected[]);

/* Fails the test unless the sample file etc/name contains every key that --help lists. Keys of
 * lists must be in the first group of the list. */
void assert_sample_has_every_key(const char *name, const struct kvb_conf_table *keys);
