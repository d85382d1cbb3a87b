#include "wire/load/engine_page.h"

#include "core/limits.h"
#include "target.h"

#include <stdlib.h>

/* The values of one page. */
struct given {
    kvb_status status;
    size_t count;
    struct kvb_load_sample samples[kvb_max_ranks];
};

static void check_sample(const struct kvb_load_sample *sample)
{
    const struct kvb_load *load = &sample->load;

    check(
        sample->stats != 0 && sample->stats >> KVB_FIGURE_COUNT == 0 &&
        kvb_load_can_be(true, (double)load->gpu_cache_usage_perc) &&
        kvb_load_can_be(true, (double)load->gpu_prefix_cache_hit_rate) &&
        load->kv_active_blocks <= load->kv_total_blocks);
}

static void check_same(const struct kvb_load_sample *a, const struct kvb_load_sample *b)
{
    check(
        kvb_load_equal(&a->load, &b->load) && a->stats == b->stats && a->has_rank == b->has_rank &&
        a->dp_rank == b->dp_rank);
}

/* Passes the page on in pieces of this size. */
static void
read_page(struct kvb_engine_page *page, kvb_span text, size_t piece, struct given *out_given)
{
    const struct kvb_load_sample *samples = NULL;
    kvb_status status = KVB_OK;

    out_given->count = 0;
    kvb_engine_page_begin(page);
    for (size_t at = 0; at < text.len && status == KVB_OK; at += piece) {
        const size_t len = text.len - at < piece ? text.len - at : piece;
        status = kvb_engine_page_feed(page, (kvb_span){ .data = text.data + at, .len = len });
    }
    if (status == KVB_OK) {
        status = kvb_engine_page_end(page, &samples, &out_given->count);
    }
    out_given->status = status;
    for (size_t i = 0; i < out_given->count; i++) {
        check_sample(&samples[i]);
        out_given->samples[i] = samples[i];
    }
}

/* A page gives the same values however it is cut, and only possible ones. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct given whole;
    static struct given cut;
    const size_t piece = size > 0 ? 1 + (size_t)data[0] % 32 : 1;
    struct kvb_engine_page *one = NULL;
    struct kvb_engine_page *other = NULL;

    if (kvb_engine_page_new(16, "m", &one) == KVB_OK &&
        kvb_engine_page_new(16, "m", &other) == KVB_OK) {
        read_page(one, (kvb_span){ data, size }, size ? size : 1, &whole);
        read_page(other, (kvb_span){ data, size }, piece, &cut);
        check(
            whole.status == cut.status && whole.count == cut.count &&
            kvb_engine_page_count(one).refused == kvb_engine_page_count(other).refused);
        for (size_t i = 0; i < whole.count; i++) {
            check_same(&whole.samples[i], &cut.samples[i]);
        }
        read_page(one, (kvb_span){ data, size }, piece, &whole); /* the next page */
    }
    kvb_engine_page_free(one);
    kvb_engine_page_free(other);
    return 0;
}
