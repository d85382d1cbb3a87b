#include "fleet/config.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- The text ---- */

/* libconfig 1.5 rounds whole numbers above 2^31 that lack the L. */
static kvb_status append_id(uint64_t id, struct kvb_buf *out)
{
    return kvb_buf_append_format(
        out, "id = %llu%s;", (unsigned long long)id, id > INT32_MAX ? "L" : "");
}

/* Appends the keys that only some dialects need. */
static kvb_status append_dialect(const struct kvb_dialect_row *dialect, struct kvb_buf *out)
{
    const char *topic = (const char *)dialect->topic.data;

    if (strlen(topic) < dialect->topic.len) { /* the name ends at a NUL */
        KVB_TRY(kvb_buf_append_format(out, "    topic = \"%s\";\n", topic));
    }
    /* A simulated store publishes all that it evicts, unlike a real one. */
    if (dialect->events == KVB_EVENTS_REPLICAS || dialect->events == KVB_EVENTS_OBJECTS) {
        KVB_TRY(kvb_buf_append_text(out, "    offload_removals = \"complete\";\n"));
    }
    if (dialect->events == KVB_EVENTS_ARRAYS && !(dialect->fields & KVB_FIELD_EXTRA_KEYS)) {
        /* simulated prompts have only what the dialect names */
        KVB_TRY(kvb_buf_append_text(out, "    salts = false;\n"));
    }
    return dialect->fields & KVB_FIELD_TOKENS
               ? KVB_OK
               : kvb_buf_append_text(out, "    hashes = \"engine\";\n");
}

static kvb_status append_worker(
    const struct kvb_config_options *options, const struct kvb_dialect_row *dialect,
    const struct kvb_fleet_ports *ports, uint16_t http_port, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "  { "));
    KVB_TRY(append_id(ports->worker_id, out));
    KVB_TRY(kvb_buf_append_format(
        out, " model = \"%s\"; block_size = %u;\n", options->model, options->block_size));
    KVB_TRY(kvb_buf_append_format(
        out, "    events = \"tcp://%s:%u\";", options->address, ports->events));
    if (dialect->replay != KVB_REPLAY_NEVER) {
        KVB_TRY(kvb_buf_append_format(
            out, " replay = \"tcp://%s:%u\";", options->address, ports->replay));
    }
    KVB_TRY(kvb_buf_append(out, "\n", 1));
    KVB_TRY(append_dialect(dialect, out));
    if (http_port > 0) {
        KVB_TRY(kvb_buf_append_format(
            out, "    address = \"http://%s:%u\";\n    tokenize = \"http://%s:%u\";\n",
            options->address, http_port, options->address, http_port));
    }
    KVB_TRY(kvb_buf_append_format(out, "    first_rank = 0; ranks = %u;\n", options->ranks));
    KVB_TRY(kvb_buf_append_format(
        out, "    load = { zmq = \"tcp://%s:%u\"; };\n", options->address, ports->load));
    return kvb_buf_append_text(out, "  }");
}

kvb_status kvb_config_text(
    const struct kvb_fleet *fleet, const struct kvb_config_options *options, uint32_t from,
    uint32_t to, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "# Written by kvfleet.\nworkers = (\n"));
    for (uint32_t worker = from; worker < to; worker++) {
        const struct kvb_fleet_ports ports = kvb_fleet_ports(fleet, worker);
        const uint16_t http_port = options->serve ? kvb_serve_port(options->serve, worker) : 0;
        KVB_TRY(append_worker(options, kvb_fleet_dialect(fleet, worker), &ports, http_port, out));
        KVB_TRY(kvb_buf_append_text(out, worker + 1 < to ? ",\n" : "\n"));
    }
    return kvb_buf_append_text(out, ");\n");
}

/* ---- The files ---- */

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
    const struct kvb_config_options *options, const struct kvb_fleet *fleet, const char *path,
    uint32_t from, uint32_t to, struct kvb_detail *detail)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, max_file_bytes);
    KVB_TRY(kvb_config_text(fleet, options, from, to, &text));
    return write_file(path, &text, detail);
}

kvb_status kvb_config_write(
    const struct kvb_fleet *fleet, const struct kvb_config_options *options, const char *path,
    uint32_t parts, struct kvb_detail *detail)
{
    const uint32_t workers = (uint32_t)(kvb_fleet_rank_count(fleet) / options->ranks);

    if (strlen(path) >= max_path_bytes - 16) {
        errno = ENAMETOOLONG;
        return say_config_error(detail, path);
    }
    if (parts == 0) {
        return write_config_part(options, fleet, path, 0, workers, detail);
    }
    for (uint32_t i = 0; i < parts; i++) {
        char part[max_path_bytes];
        (void)snprintf(part, sizeof part, "%s.%u", path, i);
        KVB_TRY(write_config_part(
            options, fleet, part, i * workers / parts, (i + 1) * workers / parts, detail));
    }
    return KVB_OK;
}
