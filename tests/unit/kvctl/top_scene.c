#include "kvctl/top_scene.h"

#include "kvb_test.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"

#include <stdio.h>
#include <string.h>

static struct kvctl_top_figure known(double value)
{
    return (struct kvctl_top_figure){ .is_known = true, .value = value };
}

static void name_row(struct kvctl_top_row *row, const char *state, const char *reason)
{
    (void)snprintf(row->state, sizeof row->state, "%s", state);
    (void)snprintf(row->reason, sizeof row->reason, "%s", reason);
}

static void fill_row(struct kvctl_top_row *row, uint64_t worker_id, uint32_t rank)
{
    const double number = (double)((2 * (worker_id % 100)) + rank);

    *row = (struct kvctl_top_row){ .id = { .name_space = "dynamo",
                                           .component = "VllmWorker",
                                           .worker_id = worker_id,
                                           .dp_rank = rank },
                                   .events_per_s = known(100.25 * number),
                                   .lag_s = known(0.1 * number),
                                   .blocks = known(500 + (7 * number)),
                                   .load = known(number / 20),
                                   .active = known(number),
                                   .waiting = known(rank),
                                   .reconnects = known(0) };
    name_row(row, "EXACT", "");
}

static void fill_odd_rows(struct kvctl_top_model *model)
{
    name_row(&model->rows[3], "DOWN", "bridge_stopped");
    model->rows[3].lag_s = known(754);
    model->rows[3].events_per_s.is_known = false;
    model->rows[3].reconnects = known(4);
    name_row(&model->rows[4], "PARTIAL", "gone");
    name_row(&model->rows[6], "SYNCING", "replaying");
    fill_row(&model->rows[12], INT64_MAX, 0);
    model->rows[12].events_per_s = known(123456.7);
    model->rows[12].blocks = known(16777216);
    model->rows[12].load = known(1);
    model->rows[12].lag_s = known(1e300);
    model->rows[13] = (struct kvctl_top_row){ .id = { .worker_id = 9 } };
    name_row(&model->rows[13], "\033[2J\x9b!", "\r\n\xc2\x9b 2J");
}

void top_scene_make(struct kvctl_top_model *model)
{
    *model = (struct kvctl_top_model){ 0 };
    assert_ok(kvb_array_reserve(
        (void *)&model->rows, &model->capacity, 14, sizeof *model->rows, kvb_max_streams));
    model->count = 14;
    for (size_t i = 0; i < 12; i++) {
        fill_row(&model->rows[i], 1 + (i / 2), i % 2);
    }
    fill_odd_rows(model);
    model->totals = (struct kvctl_top_totals){
        .states = { [KVB_STREAM_SYNCING] = 1,
                    [KVB_STREAM_EXACT] = 10,
                    [KVB_STREAM_PARTIAL] = 1,
                    [KVB_STREAM_DOWN] = 1 },
        .other_states = 1,
        .bridges = 2,
        .events_per_s = known(2475.2),
        .blocks = known(7744),
        .active = known(39),
        .waiting = known(63),
        .load_avg = known(0.6874),
        .load_std = known(0.2511),
        .hit_rate = known(0.614),
        .routed = 120,
        .engine_hit_rate = known(0.48),
        .engine_reconnects = 4,
        .nats_reconnects = 1,
    };
    model->link = (struct kvctl_top_link){
        .is_connected = true,
        .is_answering = true,
        .has_answer = true,
        .answered_ns = KVB_NS_PER_S,
    };
    (void)snprintf(model->link.version, sizeof model->link.version, "0.1.0");
}
