#include "wire/load/engine_page.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/load/prometheus_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The series of a page ---- */

enum series {
    running,
    waiting,
    usage,
    usage_old,
    hits,
    hits_old,
    queries,
    queries_old,
    config,      /* the labels are read; the value is not used */
    sleep_state, /* one line for each state, which a label names */
    drafts,      /* that it is there says that the engine speculates */
    started,     /* of the whole page */
    sgl_running,
    sgl_waiting,
    sgl_usage,
    sgl_tokens,
    sgl_page_size,
    sgl_hit_rate,
    sgl_used_tokens,
    sgl_evictable_tokens,
    sgl_prefilled, /* by its label mode also sgl_cached, or none */
    sgl_cached,
    series_count
};

/* How rows of one series and rank that stand side by side become one value.  See choose_value(). */
enum side_by_side {
    of_parts, /* each row has a part (one priority's requests): the sum.  Rows of several processes
               * are copies of the engine's value, some of them old: the largest */
    of_counted, /* each row, also each process, counted its own: the sum */
    of_levels   /* a share or a size of one cache: the largest */
};

/* clang-format off */
static const struct row_of_series {
    const char *name;
    bool is_ratio; /* else a count */
    enum side_by_side beside;
} names[series_count] = {
    [running]       = { "vllm:num_requests_running",            false, of_parts },
    [waiting]       = { "vllm:num_requests_waiting",            false, of_parts },
    [usage]         = { "vllm:kv_cache_usage_perc",             true, of_levels },
    [usage_old]     = { "vllm:gpu_cache_usage_perc",            true, of_levels },
    [hits]          = { "vllm:prefix_cache_hits_total",         false, of_counted },
    [hits_old]      = { "vllm:gpu_prefix_cache_hits_total",     false, of_counted },
    [queries]       = { "vllm:prefix_cache_queries_total",      false, of_counted },
    [queries_old]   = { "vllm:gpu_prefix_cache_queries_total",  false, of_counted },
    [config]        = { "vllm:cache_config_info",               false, of_levels },
    [sleep_state]   = { "vllm:engine_sleep_state",              false, of_levels },
    [drafts]        = { "vllm:spec_decode_num_drafts_total",    false, of_counted },
    [started]       = { "process_start_time_seconds",           false, of_levels },
    [sgl_running]   = { "sglang:num_running_reqs",              false, of_parts },
    [sgl_waiting]   = { "sglang:num_queue_reqs",                false, of_parts },
    [sgl_usage]     = { "sglang:token_usage",                   true, of_levels },
    [sgl_tokens]    = { "sglang:max_total_num_tokens",          false, of_levels },
    [sgl_page_size] = { "sglang:page_size",                     false, of_levels },
    [sgl_hit_rate]  = { "sglang:cache_hit_rate",                true, of_levels },
    [sgl_used_tokens]      = { "sglang:kv_used_tokens",         false, of_levels },
    [sgl_evictable_tokens] = { "sglang:kv_evictable_tokens",    false, of_levels },
    [sgl_prefilled] = { "sglang:realtime_tokens_total",         false, of_counted },
    [sgl_cached]    = { NULL, false, of_counted }, /* of the line above, with another label */
};
/* clang-format on */

/* SGLang's pools beside that of full attention, whose blocks no event names.  Every page has these
 * series: one above 0 shows that the model has the pool. */
static const char *const hidden_pools[] = {
    "sglang:swa_token_usage",        "sglang:swa_available_tokens", "sglang:swa_evictable_tokens",
    "sglang:swa_used_tokens",        "sglang:mamba_usage",          "sglang:mamba_available_tokens",
    "sglang:mamba_evictable_tokens", "sglang:mamba_used_tokens",
};

/* vLLM's requests that empty the prefix cache, or may (a pause clears it unless told not to). */
static const char *const reset_handlers[] = { "/reset_prefix_cache", "/pause", "/sleep",
                                              "/collective_rpc" };

/* The labels of cache_config_info; 0 for "None" or a missing label. */
struct cache_config {
    uint64_t gpu_blocks;
    uint64_t block_size;
    uint64_t size_tokens;
    bool is_prefix_caching_off;
    bool is_disputed; /* two lines for the rank have different numbers */
};

/* Which of several rows of one series and rank says more; all 0: none yet. */
struct standing {
    bool is_of_model;   /* model_name is the worker's model */
    uint64_t rank_sum;  /* of tp_rank, pp_rank and all other labels *_rank */
    uint32_t labels;    /* all others that have a value */
    bool is_of_process; /* one of them is pid */
};

/* The states of vllm:engine_sleep_state that are 1, as bits. */
enum sleep_bit { bit_awake = 1, bit_weights_offloaded = 2, bit_discard_all = 4 };

/* One rank, with its values on the current page. */
struct row {
    bool has_rank;
    bool is_known; /* a finished page had this rank */
    uint32_t rank;
    bool is_of_model; /* a line on this page names the worker's model */
    bool is_of_other; /* a line on this page names another model */
    unsigned present; /* bit 1 << series for each value present */
    double values[series_count];
    struct standing standings[series_count]; /* of the values present */
    struct cache_config config;
    unsigned sleep;     /* bits of enum sleep_bit */
    double hits_before; /* on the last finished page */
    double queries_before;
};

struct kvb_engine_page {
    struct kvb_text_lines lines;
    uint32_t block_size;
    struct row *rows; /* owned */
    size_t row_count;
    size_t row_capacity;
    struct kvb_load_sample *samples; /* owned: room for row_capacity */
    size_t sample_capacity;
    double started_s; /* on this page; 0: none */
    bool has_model;   /* a line on this page names the worker's model */
    char model[kvb_model_bytes + 1];
    bool has_hidden_pools;
    double reset_requests;
    uint64_t refused;
    uint64_t resets;
};

/* ---- Lines ---- */

static enum series series_of(kvb_span name)
{
    for (enum series i = 0; i < series_count; i++) {
        if (names[i].name && kvb_span_is(name, names[i].name)) {
            return i;
        }
    }
    return series_count;
}

static bool has(const struct row *row, enum series series)
{
    return (row->present & (1U << series)) != 0;
}

/* Reads digits only; false: "None", or another text. */
static bool read_label_number(kvb_span text, uint64_t *out_number)
{
    uint64_t number = 0;

    for (size_t i = 0; i < text.len; i++) {
        const unsigned digit = (unsigned)text.data[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, digit, &number)) {
            return false;
        }
    }
    *out_number = number;
    return text.len > 0;
}

/* KVB_NOT_FOUND: the sample has no such label. */
static kvb_status
read_rank_label(const struct kvb_prometheus_sample *sample, const char *key, uint32_t *out_rank)
{
    kvb_span text = { .len = 0 };
    uint64_t rank = 0;

    if (!kvb_prometheus_label(sample, key, &text)) {
        return KVB_NOT_FOUND;
    }
    if (!read_label_number(text, &rank) || rank > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    *out_rank = (uint32_t)rank;
    return KVB_OK;
}

static kvb_status
find_page_row(struct kvb_engine_page *page, bool has_rank, uint32_t rank, struct row **out_row)
{
    for (size_t i = 0; i < page->row_count; i++) {
        if (page->rows[i].has_rank == has_rank && page->rows[i].rank == rank) {
            *out_row = &page->rows[i];
            return KVB_OK;
        }
    }
    /* New, or gone from a page in between: its counters begin anew. */
    KVB_TRY(kvb_array_reserve(
        &page->rows, &page->row_capacity, page->row_count + 1, sizeof *page->rows, kvb_max_ranks));
    *out_row = &page->rows[page->row_count++];
    **out_row = (struct row){ .has_rank = has_rank, .rank = rank };
    return KVB_OK;
}

static uint64_t number_of_label(const struct kvb_prometheus_sample *sample, const char *key)
{
    kvb_span text = { .len = 0 };
    uint64_t number = 0;

    /* A number that no double holds exactly is as good as none: totals become doubles. */
    if (!kvb_prometheus_label(sample, key, &text) || !read_label_number(text, &number) ||
        !kvb_load_can_be(false, (double)number)) {
        return 0;
    }
    return number;
}

/* True when the label is there and has this value. */
static bool
has_label_value(const struct kvb_prometheus_sample *sample, const char *key, const char *value)
{
    kvb_span text = { .len = 0 };

    return kvb_prometheus_label(sample, key, &text) && kvb_span_is(text, value);
}

/* "None" of one process does not hide the number of another. */
static void keep_number(struct cache_config *cache, uint64_t *field, uint64_t number)
{
    cache->is_disputed |= *field != 0 && number != 0 && *field != number;
    *field = number > *field ? number : *field;
}

static void keep_config(struct row *row, const struct kvb_prometheus_sample *sample)
{
    struct cache_config *cache = &row->config;
    const bool is_off = has_label_value(sample, "enable_prefix_caching", "False");

    /* The first line of this page: what the last page said is over. */
    if (!has(row, config)) {
        *cache = (struct cache_config){ .is_prefix_caching_off = is_off };
    }
    keep_number(cache, &cache->gpu_blocks, number_of_label(sample, "num_gpu_blocks"));
    keep_number(cache, &cache->block_size, number_of_label(sample, "block_size"));
    keep_number(cache, &cache->size_tokens, number_of_label(sample, "kv_cache_size_tokens"));
    /* Off only where no line of the rank says otherwise. */
    cache->is_prefix_caching_off &= is_off;
}

static void keep_sleep_state(struct row *row, const struct kvb_prometheus_sample *sample)
{
    static const struct {
        const char *name;
        enum sleep_bit bit;
    } states[] = { { "awake", bit_awake },
                   { "weights_offloaded", bit_weights_offloaded },
                   { "discard_all", bit_discard_all } };

    for (size_t i = 0; i < KVB_COUNT_OF(states); i++) {
        /* A line for each state is there at all times; its value says whether it holds. */
        if (sample->value == 1 && has_label_value(sample, "sleep_state", states[i].name)) {
            row->sleep |= states[i].bit;
        }
    }
}

static bool ends_with_rank(kvb_span key)
{
    static const char end[] = "_rank";
    const size_t len = sizeof end - 1;

    return key.len > len && memcmp(key.data + key.len - len, end, len) == 0;
}

/* rank_key is the label that names the row itself.  KVB_BAD_INPUT: tp_rank is no number. */
static kvb_status read_standing(
    const struct kvb_engine_page *page, const struct kvb_prometheus_sample *sample,
    const char *rank_key, struct standing *out_standing)
{
    struct standing standing = { 0 };
    kvb_span labels = sample->labels;
    kvb_span key;
    kvb_span value;

    while (kvb_prometheus_next_label(&labels, &key, &value)) {
        if (value.len == 0 || kvb_span_is(key, rank_key)) {
            continue; /* an empty label is no label */
        }
        uint64_t rank = 0;
        /* Another *_rank that is no number is a label like any other. */
        const bool is_rank = ends_with_rank(key);
        if (is_rank && read_label_number(value, &rank) && rank <= UINT32_MAX) {
            standing.rank_sum += rank;
        } else if (is_rank && kvb_span_is(key, "tp_rank")) {
            return KVB_BAD_INPUT;
        } else if (kvb_span_is(key, "model_name") && kvb_span_is(value, page->model)) {
            standing.is_of_model = true;
        } else {
            standing.is_of_process |= kvb_span_is(key, "pid");
            standing.labels++;
        }
    }
    *out_standing = standing;
    return KVB_OK;
}

/* Negative: a row of standing `one` is used and one of `other` is not; 0: they stand side by side.
 *
 *     model     a page may have several engines: the worker's model before another
 *     ranks     the ranks of tensor parallelism have the same values, and of the stages of a
 *               pipeline the first has the queue: the lowest
 *     labels    a row for each priority stands beside one for all: the one with the fewest labels,
 *               which no label, known or not, limits to a part */
static int compare_standing(const struct standing *one, const struct standing *other)
{
    if (one->is_of_model != other->is_of_model) {
        return one->is_of_model ? -1 : 1;
    }
    if (one->rank_sum != other->rank_sum) {
        return one->rank_sum < other->rank_sum ? -1 : 1;
    }
    return (one->labels > other->labels) - (one->labels < other->labels);
}

/* Independent of the order of the rows on the page. */
static kvb_status
choose_value(struct row *row, enum series series, const struct standing *standing, double value)
{
    double *chosen = &row->values[series];
    struct standing *before = &row->standings[series];
    const int order = has(row, series) ? compare_standing(standing, before) : -1;

    /* A row that comes after the chosen one is dropped: its order is above 0. */
    if (order < 0) {
        *chosen = value;
        *before = *standing;
        row->present |= 1U << series;
    } else if (order == 0) {
        const bool is_sum = names[series].beside == of_counted ||
                            (names[series].beside == of_parts && !standing->is_of_process);
        const double sum = *chosen + value;
        /* A sum can leave the range that its parts are in. */
        if (is_sum && !kvb_load_can_be(names[series].is_ratio, sum)) {
            return KVB_BAD_INPUT;
        }
        *chosen = is_sum ? sum : (value > *chosen ? value : *chosen);
    }
    return KVB_OK;
}

/* The tokens of prompts that SGLang computed, and took from its cache; all else, as decoded tokens,
 * is series_count. */
static enum series series_of_mode(const struct kvb_prometheus_sample *sample)
{
    if (has_label_value(sample, "mode", "prefill_compute")) {
        return sgl_prefilled;
    }
    return has_label_value(sample, "mode", "prefill_cache") ? sgl_cached : series_count;
}

static kvb_status keep_sample(
    struct kvb_engine_page *page, enum series series, const struct kvb_prometheus_sample *sample)
{
    const bool is_sglang = series >= sgl_running;
    const char *rank_key = is_sglang ? "dp_rank" : "engine";
    struct standing standing;
    struct row *row = NULL;
    uint32_t rank = 0;

    if (!kvb_load_can_be(names[series].is_ratio, sample->value)) {
        return KVB_BAD_INPUT;
    }
    /* One process for all ranks; where several make a page, the latest start counts. */
    if (series == started) {
        page->started_s = sample->value > page->started_s ? sample->value : page->started_s;
        return KVB_OK;
    }
    const kvb_status found = read_rank_label(sample, rank_key, &rank);
    if (found == KVB_BAD_INPUT) {
        return found;
    }
    /* Read before the row is made, so that a bad line makes no rank. */
    KVB_TRY(read_standing(page, sample, rank_key, &standing));
    KVB_TRY(find_page_row(page, found == KVB_OK, rank, &row));
    /* Without dp_rank, tensor rank 0 speaks for the engine, and no other does. */
    uint32_t tp_rank = 0;
    if (is_sglang && !row->has_rank && read_rank_label(sample, "tp_rank", &tp_rank) == KVB_OK &&
        tp_rank > 0) {
        return KVB_OK;
    }
    /* Before choose_value(): keep_config() asks whether this line is the first. */
    if (series == config) {
        keep_config(row, sample); /* its labels are its values, so that none of them is a part */
    }
    if (series == sleep_state) {
        keep_sleep_state(row, sample);
    }
    kvb_span model = { .len = 0 };
    page->has_model |= standing.is_of_model;
    row->is_of_model |= standing.is_of_model;
    row->is_of_other |= !standing.is_of_model && kvb_prometheus_label(sample, "model_name", &model);
    return choose_value(row, series, &standing, sample->value);
}

static bool is_one_of(kvb_span name, const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (kvb_span_is(name, texts[i])) {
            return true;
        }
    }
    return false;
}

static bool is_reset(const struct kvb_prometheus_sample *sample)
{
    kvb_span handler = { .len = 0 };

    return kvb_prometheus_label(sample, "handler", &handler) &&
           is_one_of(handler, reset_handlers, KVB_COUNT_OF(reset_handlers));
}

/* A line of the whole server, of which only these two facts are used. */
static void take_fact(struct kvb_engine_page *page, kvb_span name, kvb_span line)
{
    const bool is_pool = is_one_of(name, hidden_pools, KVB_COUNT_OF(hidden_pools));
    const bool is_request = kvb_span_is(name, "http_requests_total");
    struct kvb_prometheus_sample sample;

    if ((!is_pool && !is_request) || kvb_prometheus_read(line, &sample) != KVB_OK ||
        !kvb_load_can_be(false, sample.value)) {
        return;
    }
    page->has_hidden_pools |= is_pool && sample.value > 0;
    /* A sum, because methods and statuses of a path have rows of their own. */
    page->reset_requests += is_request && is_reset(&sample) ? sample.value : 0;
}

static kvb_status take_page_line(void *context, kvb_span line)
{
    struct kvb_engine_page *page = context;
    const kvb_span name = kvb_prometheus_name(line);
    enum series series = series_of(name);
    struct kvb_prometheus_sample sample;

    if (series == series_count) {
        take_fact(page, name, line); /* most series of a page are not used */
        return KVB_OK;
    }
    kvb_status status = kvb_prometheus_read(line, &sample);
    /* Two series share this name; a label tells them apart, and leaves out decoded tokens. */
    if (status == KVB_OK && series == sgl_prefilled) {
        series = series_of_mode(&sample);
    }
    if (status == KVB_OK && series < series_count) {
        status = keep_sample(page, series, &sample);
    }
    /* One bad line costs itself; the page goes on. */
    if (status == KVB_BAD_INPUT) {
        page->refused++;
        return KVB_OK;
    }
    return status;
}

/* ---- Figures ---- */

/* Whether the rank has a value besides its cache configuration, its sleep and its drafts. */
static bool is_alive(const struct row *row)
{
    return (row->present & ~(1U << config | 1U << sleep_state | 1U << drafts)) != 0;
}

/* The value under the newer name of a series, else under the old one. */
static bool
take_series_value(const struct row *row, enum series name, enum series old, double *out_value)
{
    if (!has(row, name) && !has(row, old)) {
        return false;
    }
    *out_value = row->values[has(row, name) ? name : old];
    return true;
}

static void add_page_requests(const struct row *row, struct kvb_load_sample *sample)
{
    double value = 0;

    if (take_series_value(row, running, sgl_running, &value)) {
        kvb_load_sample_set(sample, KVB_FIGURE_ACTIVE_SLOTS, value);
    }
    if (take_series_value(row, waiting, sgl_waiting, &value)) {
        kvb_load_sample_set(sample, KVB_FIGURE_WAITING, value);
    }
}

static uint64_t blocks_of_config(const struct cache_config *cache, size_t ranks)
{
    if (cache->size_tokens > 0 && cache->block_size > 0) {
        return cache->size_tokens / cache->block_size;
    }
    /* vLLM's number is the sum over the ranks of the page. */
    return cache->gpu_blocks / ranks;
}

/* The cache configuration of a rank; a cache_config_info without a rank is valid for all ranks. */
static const struct cache_config *
config_of(const struct kvb_engine_page *page, const struct row *row)
{
    for (size_t i = 0; i < page->row_count && !has(row, config); i++) {
        if (!page->rows[i].has_rank && has(&page->rows[i], config)) {
            return &page->rows[i].config;
        }
    }
    return has(row, config) ? &row->config : NULL;
}

static uint64_t
total_page_blocks(const struct kvb_engine_page *page, const struct row *row, size_t ranks)
{
    const struct cache_config *cache = config_of(page, row);
    const double page_size =
        has(row, sgl_page_size) ? row->values[sgl_page_size] : (double)page->block_size;

    /* SGLang reports tokens alone; the labels below are those of vLLM. */
    if (has(row, sgl_tokens) && page_size >= 1) {
        return (uint64_t)(row->values[sgl_tokens] / page_size);
    }
    return cache ? blocks_of_config(cache, ranks) : 0;
}

static void add_blocks(
    const struct kvb_engine_page *page, const struct row *row, size_t ranks,
    struct kvb_load_sample *sample)
{
    const uint64_t total = total_page_blocks(page, row, ranks);
    const uint64_t reserved = has(row, sgl_usage) ? 0 : 1; /* vLLM's null block */
    double share = 0;

    if (total > 0) {
        kvb_load_sample_set(sample, KVB_FIGURE_TOTAL_BLOCKS, (double)total);
    }
    if (!take_series_value(row, usage, usage_old, &share) &&
        !take_series_value(row, sgl_usage, sgl_usage, &share)) {
        return;
    }
    /* The share is known without the total, but not how many blocks it is. */
    kvb_load_sample_set(sample, KVB_FIGURE_USAGE, share);
    if (total > 0) {
        kvb_load_sample_set(
            sample, KVB_FIGURE_ACTIVE_BLOCKS,
            (double)kvb_load_active_blocks(share, total - reserved));
    }
}

/* The hit rate of the queries since the last page. */
static void
add_hit_rate(struct kvb_engine_page *page, struct row *row, struct kvb_load_sample *sample)
{
    double hit = 0;
    double queries_now = 0;

    if (has(row, sgl_hit_rate)) {
        kvb_load_sample_set(sample, KVB_FIGURE_HIT_RATE, row->values[sgl_hit_rate]);
        return;
    }
    if (!take_series_value(row, hits, hits_old, &hit) ||
        !take_series_value(row, queries, queries_old, &queries_now)) {
        return;
    }
    /* Counters only grow, so fewer of either mean a new process: it starts from 0. */
    if (hit < row->hits_before || queries_now < row->queries_before) {
        row->hits_before = 0;
        row->queries_before = 0;
        page->resets++;
        sample->signs.is_counter_reset = true;
    }
    const double more_hits = hit - row->hits_before;
    const double more_queries = queries_now - row->queries_before;
    row->hits_before = hit;
    row->queries_before = queries_now;
    /* Read between two updates of the engine: this interval has no rate.  Queries that belong to
     * these hits are counted with the next one. */
    if (more_hits > more_queries) {
        page->refused++;
        return;
    }
    kvb_load_sample_set(
        sample, KVB_FIGURE_HIT_RATE, more_queries > 0 ? more_hits / more_queries : 0);
}

static enum kvb_engine_sleep sleep_of(const struct row *row)
{
    if (!has(row, sleep_state)) {
        return KVB_SLEEP_UNKNOWN;
    }
    /* Several processes may be in several states: one that discards decides. */
    if (row->sleep & (bit_weights_offloaded | bit_discard_all)) {
        return KVB_SLEEP_DISCARDED;
    }
    return row->sleep & bit_awake ? KVB_SLEEP_AWAKE : KVB_SLEEP_PAUSED;
}

/* False where the total of several ranks was divided, or SGLang's page size was configured. */
static bool is_total_sure(const struct row *row, const struct cache_config *cache, size_t ranks)
{
    if (has(row, sgl_tokens)) {
        return has(row, sgl_page_size);
    }
    return cache && !cache->is_disputed &&
           ((cache->size_tokens > 0 && cache->block_size > 0) || ranks == 1);
}

static void add_prefix(const struct row *row, struct kvb_cache_signs *signs)
{
    double hit = 0;
    double queried = 0;

    if (has(row, sgl_prefilled) || has(row, sgl_cached)) {
        /* SGLang counts computed and cached tokens apart, vLLM queried and hit ones.  A mode has no
         * series before its first token. */
        hit = has(row, sgl_cached) ? row->values[sgl_cached] : 0;
        queried = hit + (has(row, sgl_prefilled) ? row->values[sgl_prefilled] : 0);
    } else if (
        !take_series_value(row, hits, hits_old, &hit) ||
        !take_series_value(row, queries, queries_old, &queried)) {
        return;
    }
    /* More hits than queries were read between two updates: the pair is left out. */
    signs->has_prefix = hit <= queried && !signs->is_prefix_caching_off;
    if (signs->has_prefix) {
        signs->prefix = (struct kvb_prefix_counters){ .queried_tokens = (uint64_t)queried,
                                                      .cached_tokens = (uint64_t)hit };
    }
}

/* The unit of the page's blocks; 0: the page does not say, or its lines differ. */
static uint32_t block_size_of(const struct row *row, const struct cache_config *cache)
{
    const double size = has(row, sgl_page_size)        ? row->values[sgl_page_size]
                        : cache && !cache->is_disputed ? (double)cache->block_size
                                                       : 0;

    return size >= 1 && size <= kvb_max_block_tokens ? (uint32_t)size : 0;
}

/* A series without a rank is of all ranks. */
static bool speculates(const struct kvb_engine_page *page, const struct row *row)
{
    bool is_there = has(row, drafts);

    for (size_t i = 0; i < page->row_count; i++) {
        is_there |= !page->rows[i].has_rank && has(&page->rows[i], drafts);
    }
    return is_there;
}

static void add_signs(
    const struct kvb_engine_page *page, const struct row *row, size_t ranks,
    struct kvb_load_sample *sample)
{
    const struct cache_config *cache = config_of(page, row);
    struct kvb_cache_signs *signs = &sample->signs;

    signs->sleep = sleep_of(row);
    signs->block_size = block_size_of(row, cache);
    signs->started_s = page->started_s;
    signs->has_hidden_pools = page->has_hidden_pools;
    /* A sum of a hostile page may be above what the type holds. */
    signs->reset_requests =
        page->reset_requests < 0x1p63 ? (uint64_t)page->reset_requests : UINT64_MAX;
    signs->is_prefix_caching_off = cache && cache->is_prefix_caching_off;
    signs->is_total_sure = is_total_sure(row, cache, ranks);
    signs->counts_running = has(row, usage) || has(row, usage_old);
    /* Only on a page of vLLM does the absence of drafts prove anything. */
    signs->speculation = !signs->counts_running  ? KVB_SPECULATION_UNKNOWN
                         : speculates(page, row) ? KVB_SPECULATION_UNDECIDED
                                                 : KVB_SPECULATION_KEEPS;
    signs->has_occupancy = has(row, sgl_used_tokens) && has(row, sgl_evictable_tokens);
    if (signs->has_occupancy) {
        signs->used_tokens = (uint64_t)row->values[sgl_used_tokens];
        signs->evictable_tokens = (uint64_t)row->values[sgl_evictable_tokens];
    }
    /* Last: it asks whether prefix caching is off. */
    add_prefix(row, signs);
}

/* Removes the rows that are not kept, so that ranks which are no longer reported disappear. */
static void keep_rows(struct kvb_engine_page *page, bool (*is_kept)(const struct row *row))
{
    size_t kept = 0;

    for (size_t i = 0; i < page->row_count; i++) {
        if (is_kept(&page->rows[i])) {
            page->rows[kept++] = page->rows[i];
        }
    }
    page->row_count = kept;
}

static bool is_given(const struct row *row)
{
    return row->present != 0;
}

/* Of a page that names the worker's model, ranks of other models alone are another engine's. */
static void drop_other_engines(struct kvb_engine_page *page)
{
    for (size_t i = 0; page->has_model && i < page->row_count; i++) {
        struct row *row = &page->rows[i];
        if (row->is_of_other && !row->is_of_model) {
            /* A row without values is removed by the keep_rows() that follows. */
            row->present = 0;
        }
    }
}

static bool is_row_known(const struct row *row)
{
    return row->is_known;
}

static size_t count_alive(const struct kvb_engine_page *page)
{
    size_t alive = 0;

    for (size_t i = 0; i < page->row_count; i++) {
        alive += is_alive(&page->rows[i]);
    }
    return alive;
}

kvb_status kvb_engine_page_end(
    struct kvb_engine_page *page, const struct kvb_load_sample **out_samples, size_t *out_count)
{
    size_t count = 0;

    KVB_TRY(kvb_text_lines_end(&page->lines));
    page->refused += page->lines.too_long;
    page->lines.too_long = 0;
    /* Before ranks are counted: another engine's ranks would share this one's blocks. */
    drop_other_engines(page);
    keep_rows(page, is_given);
    const size_t ranks = count_alive(page);
    if (ranks == 0) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_array_reserve(
        &page->samples, &page->sample_capacity, ranks, sizeof *page->samples, kvb_max_ranks));
    for (size_t i = 0; i < page->row_count; i++) {
        struct row *row = &page->rows[i];
        /* Also of a rank without figures: its counters belong to the next page. */
        row->is_known = true;
        if (is_alive(row)) {
            struct kvb_load_sample sample = { .has_rank = row->has_rank, .dp_rank = row->rank };
            add_page_requests(row, &sample);
            add_blocks(page, row, ranks, &sample);
            add_hit_rate(page, row, &sample);
            add_signs(page, row, ranks, &sample);
            page->samples[count] = sample;
            count += sample.stats != 0; /* a hit rate needs both counters */
        }
    }
    if (count == 0) {
        return KVB_BAD_INPUT;
    }
    *out_samples = page->samples;
    *out_count = count;
    return KVB_OK;
}

kvb_status kvb_engine_page_feed(struct kvb_engine_page *page, kvb_span bytes)
{
    return kvb_text_lines_feed(&page->lines, bytes);
}

struct kvb_engine_page_counts kvb_engine_page_count(const struct kvb_engine_page *page)
{
    return (struct kvb_engine_page_counts){ .refused = page->refused, .resets = page->resets };
}

/* ---- Creating and freeing ---- */

kvb_status
kvb_engine_page_new(uint32_t block_size, const char *model, struct kvb_engine_page **out_page)
{
    struct kvb_engine_page *page = calloc(1, sizeof *page);

    if (!page) {
        return KVB_NO_MEMORY;
    }
    page->block_size = block_size;
    (void)snprintf(page->model, sizeof page->model, "%s", model);
    kvb_text_lines_init(&page->lines, take_page_line, page);
    *out_page = page;
    return KVB_OK;
}

void kvb_engine_page_free(struct kvb_engine_page *page)
{
    if (!page) {
        return;
    }
    kvb_text_lines_done(&page->lines);
    free(page->rows);
    free(page->samples);
    free(page);
}

void kvb_engine_page_begin(struct kvb_engine_page *page)
{
    kvb_text_lines_reset(&page->lines);
    /* Ranks of a page that was never finished may be made up. */
    keep_rows(page, is_row_known);
    page->started_s = 0;
    page->has_model = false;
    page->has_hidden_pools = false;
    page->reset_requests = 0;
    /* Counters of the last finished page stay: the next rate is a difference from them. */
    for (size_t i = 0; i < page->row_count; i++) {
        page->rows[i].present = 0;
        page->rows[i].is_of_model = false;
        page->rows[i].is_of_other = false;
        page->rows[i].sleep = 0;
    }
}
