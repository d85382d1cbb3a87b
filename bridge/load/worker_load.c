#include "load/worker_load.h"

#include <stdlib.h>

static int compare_dp_ranks(const void *left, const void *right)
{
    const struct kvb_rank_load *a = left;
    const struct kvb_rank_load *b = right;

    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

/* Adds without overflow: engines may report any number. */
static void add_count(uint64_t *sum, uint64_t more)
{
    if (__builtin_add_overflow(*sum, more, sum)) {
        *sum = UINT64_MAX;
    }
}

static void add_counts(struct kvb_load *sum, const struct kvb_load *more)
{
    add_count(&sum->request_active_slots, more->request_active_slots);
    add_count(&sum->request_total_slots, more->request_total_slots);
    add_count(&sum->kv_active_blocks, more->kv_active_blocks);
    add_count(&sum->kv_total_blocks, more->kv_total_blocks);
    add_count(&sum->num_requests_waiting, more->num_requests_waiting);
}

/* Sets the mean shares over the ranks that were received, at least one. */
static void set_shares(struct kvb_load *sum, const struct kvb_rank_load *ranks, size_t count)
{
    double usage = 0;
    double usage_weights = 0;
    double hit_rate = 0;
    double received = 0;

    for (size_t i = 0; i < count; i++) {
        const struct kvb_load *load = &ranks[i].load;
        if (!ranks[i].was_received) {
            continue;
        }
        /* Where no rank says how many blocks it has, all weigh the same. */
        const double weight = sum->kv_total_blocks > 0 ? (double)load->kv_total_blocks : 1;
        usage += (double)load->gpu_cache_usage_perc * weight;
        usage_weights += weight;
        hit_rate += (double)load->gpu_prefix_cache_hit_rate;
        received += 1;
    }
    sum->gpu_cache_usage_perc = (float)(usage / usage_weights);
    sum->gpu_prefix_cache_hit_rate = (float)(hit_rate / received);
}

static struct kvb_worker_load worker_of(const struct kvb_rank_load *ranks, size_t count)
{
    struct kvb_worker_load worker = { .worker_id = ranks[0].worker_id };
    size_t received = 0;

    for (size_t i = 0; i < count; i++) {
        if (!ranks[i].was_received) {
            continue; /* another rank's source may speak for it */
        }
        if (!ranks[i].is_fresh) {
            received = 0;
            break;
        }
        add_counts(&worker.load, &ranks[i].load);
        received++;
    }
    if (count == 1) {
        worker.has_rank = true;
        worker.dp_rank = ranks[0].dp_rank;
    }
    if (received == 0) {
        worker.load = (struct kvb_load){ 0 };
        return worker;
    }
    worker.has_load = true;
    set_shares(&worker.load, ranks, count);
    return worker;
}

size_t kvb_worker_loads(
    struct kvb_rank_load *ranks, size_t rank_count, struct kvb_worker_load *out_workers)
{
    size_t workers = 0;

    if (rank_count > 1) {
        qsort(ranks, rank_count, sizeof *ranks, compare_dp_ranks);
    }
    for (size_t from = 0, to = 0; from < rank_count; from = to) {
        for (to = from; to < rank_count && ranks[to].worker_id == ranks[from].worker_id; to++) {
        }
        /* A larger id would stop the readers that this is for. */
        if (ranks[from].worker_id <= INT64_MAX) {
            out_workers[workers++] = worker_of(&ranks[from], to - from);
        }
    }
    return workers;
}
