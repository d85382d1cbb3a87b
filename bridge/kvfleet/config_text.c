#include "kvfleet/config_text.h"

#include <string.h>

/* libconfig 1.5 rounds whole numbers above 2^31 that lack the L. */
static kvb_status append_id(uint64_t id, struct kvb_buf *out)
{
    return kvb_buf_append_format(
        out, "id = %llu%s;", (unsigned long long)id, id > INT32_MAX ? "L" : "");
}

/* What only some dialects need said. */
static kvb_status append_dialect(const struct kvb_dialect_row *dialect, struct kvb_buf *out)
{
    const char *topic = (const char *)dialect->topic.data;

    if (strlen(topic) < dialect->topic.len) { /* a NUL: what stands before it is the name */
        KVB_TRY(kvb_buf_append_format(out, "    topic = \"%s\";\n", topic));
    }
    return dialect->fields & KVB_FIELD_TOKENS
               ? KVB_OK
               : kvb_buf_append_text(out, "    hashes = \"engine\";\n");
}

static kvb_status append_worker(
    const struct kvb_config_options *options, const struct kvb_dialect_row *dialect,
    const struct kvb_fleet_ports *ports, struct kvb_buf *out)
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
        KVB_TRY(append_worker(options, kvb_fleet_dialect(fleet, worker), &ports, out));
        KVB_TRY(kvb_buf_append_text(out, worker + 1 < to ? ",\n" : "\n"));
    }
    return kvb_buf_append_text(out, ");\n");
}
