#pragma once

#include "kvb_test.h"

#include "config_file.h"
#include "kvbridge/config.h"

#include <string.h>

/* Reads configurations of kvbridge from texts, and checks the reader's messages. */

/* Line 1 of most configurations below; the keys under test begin in line 2. */
#define PUBLISH "publish = { namespace = \"n\"; component = \"c\"; };\n"
#define WORKER(id, more) "{ id = " id "; model = \"m\"; block_size = 16; " more "}"

static inline void read_bad(const char *text, const char *const expected[])
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { .checkpoint_s = 77 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_bridge_config_read(file.path, &config, &errors);
    assert_errors(&file, &errors, expected);
    assert_int_equal(status, KVB_BAD_CONFIG);
    assert_int_equal(config.checkpoint_s, 77); /* stays as it was */
    config_file_remove(&file);
}

#define assert_wrong(text, ...) read_bad(text, (const char *const[]){ __VA_ARGS__, NULL })

/* The caller frees it. */
static inline struct kvb_bridge_config read_good(const char *text)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_bridge_config_read(file.path, &config, &errors);
    assert_errors(&file, &errors, (const char *const[]){ NULL });
    assert_ok(status);
    config_file_remove(&file);
    return config;
}
