#include "core/own.h"
#include "rows.h"

enum { pool_blocks = 1 << 16, batches_a_second = 10000 };

kvb_status rows_latency(struct relay_bench *bench)
{
    static const bool is_wanted[contender_kinds] = {
        [contender_pass_through] = true, [contender_protobuf] = true
    };
    struct field_figure figure = { .ours = contender_protobuf, .against = contender_pass_through };
    KVB_OWN(script_done) struct script script = { .count = 0 };
    KVB_OWN(field_stop) struct field field = { .runs = { false } };

    if (!bench_wants(&bench->options, "relay.latency.p50") &&
        !bench_wants(&bench->options, "relay.latency.p99")) {
        return KVB_OK;
    }
    KVB_TRY(script_make(
        &(struct script_options){ .blocks_per_batch = 1, .pool_blocks = pool_blocks, .seed = 3 },
        &script));
    KVB_TRY(field_start(bench, is_wanted, &script, &field));
    KVB_TRY(field_run(
        bench, &field, "relay.latency",
        &(struct run_options){ .script = &script, .batches_a_second = batches_a_second }));
    figure.number = field_p50;
    field_say(&field, "relay.latency.p50", &figure);
    figure.number = field_p99;
    field_say(&field, "relay.latency.p99", &figure);
    return KVB_OK;
}
