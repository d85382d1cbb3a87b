#include "core/buf.h"
#include "core/own.h"
#include "kvfleet/config_text.h"
#include "kvfleet/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { max_path_bytes = 4096, max_file_bytes = 1 << 22 };

static kvb_status say_config_error(struct kvb_detail *detail, const char *path)
{
    char reason[128] = "";
    const int error = errno;

    kvb_detail_set(detail, "%s: %s", path, strerror_r(error, reason, sizeof reason));
    return KVB_BAD_CONFIG;
}

static bool write_config_file(int fd, const struct kvb_buf *text)
{
    size_t written = 0;

    while (written < text->len) {
        const ssize_t more = write(fd, text->data + written, text->len - written);
        if (more < 0 && errno != EINTR) {
            return false;
        }
        written += more > 0 ? (size_t)more : 0;
    }
    return true;
}

/* Written under another name and renamed, so that a reader never sees a partial file. */
static kvb_status
write_file(const char *path, const struct kvb_buf *text, struct kvb_detail *detail)
{
    char hidden[max_path_bytes + 8];

    (void)snprintf(hidden, sizeof hidden, "%s.new", path);
    const int fd = open(hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        return say_config_error(detail, hidden);
    }
    const bool is_written = write_config_file(fd, text);
    if (close(fd) != 0 || !is_written || rename(hidden, path) != 0) {
        (void)unlink(hidden);
        return say_config_error(detail, path);
    }
    return KVB_OK;
}

static kvb_status write_config_part(
    const struct kvb_config_options *config, const struct kvb_fleet *fleet, const char *path,
    uint32_t from, uint32_t to, struct kvb_detail *detail)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, max_file_bytes);
    KVB_TRY(kvb_config_text(fleet, config, from, to, &text));
    return write_file(path, &text, detail);
}

kvb_status kvb_kvfleet_write_config(
    const struct kvb_kvfleet_options *options, const struct kvb_fleet *fleet,
    struct kvb_detail *detail)
{
    const struct kvb_config_options config = {
        .address = options->advertised,
        .model = options->model,
        .block_size = options->fleet.engine.block_size,
        .ranks = options->fleet.ranks,
    };
    const uint32_t workers = options->fleet.workers;
    const uint32_t parts = options->config_split;

    if (strlen(options->config_path) >= max_path_bytes - 16) {
        errno = ENAMETOOLONG;
        return say_config_error(detail, options->config_path);
    }
    if (parts == 0) {
        return write_config_part(&config, fleet, options->config_path, 0, workers, detail);
    }
    for (uint32_t i = 0; i < parts; i++) {
        char path[max_path_bytes];
        (void)snprintf(path, sizeof path, "%s.%u", options->config_path, i);
        KVB_TRY(write_config_part(
            &config, fleet, path, i * workers / parts, (i + 1) * workers / parts, detail));
    }
    return KVB_OK;
}
