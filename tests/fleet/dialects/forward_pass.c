#include "fleet/dialects/forward_pass.h"

#include "wire/engine/pack.h"

#include <stdbool.h>
#include <string.h>

static void
pack_figure(msgpack_packer *packer, const struct kvb_load_field *field, const struct kvb_load *load)
{
    const uint8_t *at = (const uint8_t *)load + field->offset;
    uint64_t count = 0;
    float ratio = 0;

    kvb_pack_text(packer, field->name);
    if (field->is_ratio) {
        memcpy(&ratio, at, sizeof ratio);
        (void)msgpack_pack_float(packer, ratio);
    } else {
        memcpy(&count, at, sizeof count);
        (void)msgpack_pack_uint64(packer, count);
    }
}

/* The values of a group, or with NULL all of them. */
static void pack_stats(
    msgpack_packer *packer, const char *group, const struct kvb_load_sample *sample, bool with_rank)
{
    bool is_in[KVB_FIGURE_COUNT];
    size_t count = with_rank;

    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        is_in[i] = !group || strcmp(kvb_load_fields[i].group, group) == 0;
        count += is_in[i];
    }
    (void)msgpack_pack_map(packer, count);
    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        if (is_in[i]) {
            pack_figure(packer, &kvb_load_fields[i], &sample->load);
        }
    }
    if (with_rank) {
        kvb_pack_text(packer, "data_parallel_rank");
        (void)msgpack_pack_uint32(packer, sample->dp_rank);
    }
}

kvb_status kvb_forward_pass_encode(const struct kvb_load_sample *sample, struct kvb_buf *out)
{
    struct kvb_pack_sink sink = { .out = out };
    const size_t len_before = out->len;
    msgpack_packer packer;

    kvb_pack_begin(&packer, &sink);
    if (sample->has_rank) {
        (void)msgpack_pack_map(&packer, 2);
        kvb_pack_text(&packer, "worker_stats");
        pack_stats(&packer, "worker_stats", sample, true);
        kvb_pack_text(&packer, "kv_stats");
        pack_stats(&packer, "kv_stats", sample, false);
    } else {
        pack_stats(&packer, NULL, sample, false);
    }
    if (sink.status != KVB_OK) {
        out->len = len_before;
    }
    return sink.status;
}
