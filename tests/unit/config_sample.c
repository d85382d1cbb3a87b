#include "config_file.h"

#include "kvb_test.h"

#include <libconfig.h>
#include <stdlib.h>
#include <string.h>

/* "  workers[].load.zmq = ..." becomes workers.[0].load.zmq, libconfig's spelling. False for a line
 * that names no key. */
static bool read_key(const char *line, char key[128])
{
    size_t len = 0;

    if (strncmp(line, "  ", 2) != 0 || line[2] == ' ') {
        return false;
    }
    for (const char *at = line + 2; *at != ' '; at++) {
        if (strncmp(at, "[].", 3) == 0) {
            memcpy(key + len, ".[0]", 4);
            len += 4;
            at += 2;
            key[len++] = '.';
        } else {
            key[len++] = *at;
        }
        assert_true(len < 100);
    }
    key[len] = '\0';
    return true;
}

/* Some keys exclude each other: the sample shows one of them in its first group and the other in
 * its second. */
static bool has_key(config_t *sample, char *key)
{
    char *group = strstr(key, ".[0].");

    if (!config_lookup(sample, key) && group) {
        group[2] = '1';
    }
    return config_lookup(sample, key) != NULL;
}

/* A key whose absence means what no value of it means stands in a comment: "# key = ".  Moves *rest
 * behind it, because such keys of several groups are in the order of the help. */
static bool has_comment(const char **rest, const char *key)
{
    char comment[128];
    const char *name = strrchr(key, '.');

    (void)snprintf(comment, sizeof comment, "# %s = ", name ? name + 1 : key);
    const char *found = strstr(*rest, comment);
    *rest = found ? found + strlen(comment) : *rest;
    return found != NULL;
}

static size_t check_keys(config_t *sample, const char *text, const char *path, char *help)
{
    size_t count = 0;
    char key[128];

    for (char *line = help; *line != '\0'; line += strcspn(line, "\n") + 1) {
        if (read_key(line, key)) {
            count++;
            if (!has_key(sample, key) && !has_comment(&text, key)) {
                fail_msg("%s does not mention %s", path, key);
            }
        }
    }
    return count;
}

void assert_sample_has_every_key(const char *name, const struct kvb_conf_table *keys)
{
    config_t sample;
    char path[512];
    static char text[1 << 16];
    char *help = NULL;
    size_t help_len = 0;
    FILE *out = open_memstream(&help, &help_len);

    kvb_conf_help(keys, out);
    (void)fclose(out);
    (void)snprintf(path, sizeof path, "%s/%s", KVB_DATA "/../../etc", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    config_init(&sample);
    assert_int_equal(config_read_file(&sample, path), CONFIG_TRUE);
    assert_true(check_keys(&sample, text, path, help) > 15);
    config_destroy(&sample);
    free(help);
}
