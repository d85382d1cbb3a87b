#include "config_file.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void config_file_write(struct config_file *file, const char *text, size_t len)
{
    (void)snprintf(file->path, sizeof file->path, "/tmp/kvb-conf-XXXXXX");
    const int fd = mkstemp(file->path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    assert_int_equal(close(fd), 0);
}

void config_file_remove(const struct config_file *file)
{
    assert_int_equal(unlink(file->path), 0);
}

void assert_errors(
    const struct config_file *file, const struct kvb_conf_errors *errors,
    const char *const expected[])
{
    size_t at = 0;

    for (; expected[at]; at++) {
        char text[300];
        (void)snprintf(text, sizeof text, "%s:%s", file->path, expected[at]);
        if (at >= errors->count) {
            fail_msg("not found: %s", expected[at]);
        }
        if (strncmp(errors->texts[at].text, text, strlen(text)) != 0) {
            fail_msg("expected %s\n   found %s", text, errors->texts[at].text);
        }
    }
    if (errors->count > at) {
        fail_msg("also found: %s", errors->texts[at].text);
    }
}
