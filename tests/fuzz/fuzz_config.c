#include "kvaggregator/config.h"
#include "kvbridge/config.h"
#include "target.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* libconfig's scanner loses its buffer when a file ends within a string.
 * NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libconfig";
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* Configuration files from bytes.  The first byte chooses what the others are: a file of kvbridge,
 * a file of kvaggregator, or a string in which $(NAME) must be replaced as a simple implementation
 * of the rule does it. */

enum { max_text = 4096 };

static const char value_of_a[] = "first value";

static const char *path_of(const void *text, size_t size)
{
    static int fd = -1;
    static char path[64];

    if (fd < 0) {
        fd = memfd_create("fuzz.cfg", 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        /* Other variables, such as the shell's $(_), differ between machines.
         * One thread.  NOLINTBEGIN(concurrency-mt-unsafe) */
        check(clearenv() == 0);
        check(setenv("KVB_A", value_of_a, 1) == 0 && setenv("KVB_EMPTY", "", 1) == 0);
        /* NOLINTEND(concurrency-mt-unsafe) */
    }
    check(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, text, size, 0) == (ssize_t)size);
    return path;
}

static void check_no_difference(void *context, const char *path)
{
    (void)context;
    (void)path;
    abort();
}

static kvb_status read_bridge(const char *path, struct kvb_bridge_config *out_config)
{
    struct kvb_conf_errors *errors = calloc(1, sizeof *errors);

    check(errors != NULL);
    const kvb_status status = kvb_bridge_config_read(path, out_config, errors);
    check(status == KVB_OK ? errors->count == 0 : errors->count > 0);
    free(errors);
    return status;
}

/* A file that is read twice gives the same configuration. */
static void try_bridge(const uint8_t *data, size_t size)
{
    struct kvb_bridge_config one = { 0 };
    struct kvb_bridge_config two = { 0 };
    const char *path = path_of(data, size);

    if (read_bridge(path, &one) == KVB_OK) {
        check(read_bridge(path, &two) == KVB_OK && one.workers.count == two.workers.count);
        kvb_conf_differences(kvb_bridge_config_keys(), &one, &two, check_no_difference, NULL);
        kvb_bridge_config_done(&two);
        kvb_bridge_config_done(&one);
    }
}

static void try_aggregator(const uint8_t *data, size_t size)
{
    struct kvb_conf_errors *errors = calloc(1, sizeof *errors);
    struct kvb_aggregator_config config = { 0 };

    check(errors != NULL);
    const kvb_status status = kvb_aggregator_config_read(path_of(data, size), &config, errors);
    check(status == KVB_OK ? errors->count == 0 : errors->count > 0);
    if (status == KVB_OK) {
        kvb_aggregator_config_done(&config);
    }
    free(errors);
}

/* ---- $(NAME) ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* The simple implementation, one character at a time.  False: the rule refuses the text. */
static bool expand(const char *text, char *out)
{
    while (*text) {
        if (starts_with(text, "$$(")) {
            out = stpcpy(out, "$(");
            text += 3;
        } else if (starts_with(text, "$(KVB_A)")) {
            out = stpcpy(out, value_of_a);
            text += strlen("$(KVB_A)");
        } else if (starts_with(text, "$(KVB_EMPTY)")) {
            text += strlen("$(KVB_EMPTY)");
        } else if (starts_with(text, "$(")) {
            return false;
        } else {
            *out++ = *text++;
        }
    }
    *out = '\0';
    return true;
}

static void try_string(const uint8_t *data, size_t size)
{
    char value[kvb_model_bytes + 1] = "";
    char expected[max_text] = "";
    char text[max_text];
    struct kvb_bridge_config config = { 0 };
    size_t len = 0;

    for (size_t i = 0; i < size && len < kvb_model_bytes; i++) {
        if (data[i] > ' ' && data[i] < 0x7f && data[i] != '"' && data[i] != '\\') {
            value[len++] = (char)data[i];
        }
    }
    const int written = snprintf(
        text, sizeof text,
        "publish = { namespace = \"n\"; component = \"c\"; };\n"
        "workers = ( { id = 1; model = \"%s\"; block_size = 4; events = \"tcp://127.0.0.1:5557\"; "
        "replay = \"tcp://127.0.0.1:6557\"; } );\n",
        value);
    const bool is_allowed = expand(value, expected) && strlen(expected) <= kvb_model_bytes;
    const kvb_status status = read_bridge(path_of(text, (size_t)written), &config);
    check((status == KVB_OK) == (is_allowed && expected[0] != '\0') || expected[0] == '\0');
    if (status == KVB_OK) {
        check(strcmp(config.workers.items[0].spec->model, expected) == 0);
        kvb_bridge_config_done(&config);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const ways[])(const uint8_t *data, size_t size) = { try_bridge, try_aggregator,
                                                                      try_string };

    if (size > 0 && size <= max_text) {
        ways[data[0] % 3](data + 1, size - 1);
    }
    return 0;
}
