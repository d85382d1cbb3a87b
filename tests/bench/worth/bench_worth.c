#include "parts/bench.h"
#include "worth/replay.h"

#include <stdio.h>
#include <string.h>

/* The rows worth.*: what cache-aware routing is worth.  Workloads are sent to simulated fleets,
 * once for each policy, with the same seeds; everything is virtual time, so the figures are the
 * same on every machine.
 *
 *     for each workload, 8 and 64 workers
 *         burst by round_robin: the seconds of work in it
 *         open loop at load_share of that
 *             each policy, with each picture
 *         closed loop with clients_a_worker
 *             each policy, with an exact picture
 *
 * A run is one figure: its value is the median time to the first token; the rest stands beside it
 * in fields of its own. */

/* An engine in the size of an 8-billion-parameter model on one large GPU: 512,000 tokens fit into
 * its pool. */
static const struct worth_rates rates = {
    .pool_blocks = 1000,
    .slots = 64,
    .step_tokens = 2048,
    .prefill_tokens_per_s = 10000,
    .step_us = 8000,
    .decode_us = 100,
};

enum { chains_a_fleet = 2000, workers_a_fleet = 8, clients_a_worker = 6, predict_ms = 3000 };

static const double load_share = 0.75;

struct contender {
    const char *name;
    const char *policy;
    double overlap_weight;
    bool is_blind; /* knows nothing of caches */
};

/* round_robin comes first, because the others are compared with it. */
static const struct contender contenders[] = {
    { "round_robin", "round_robin", 1, true },
    { "least_requests", "least_requests", 1, true },
    { "kv", "kv", 1, false },
    { "kv_weight_8", "kv", 8, false },
    { "ttft", "ttft", 1, false },
};

enum { contender_count = sizeof contenders / sizeof contenders[0] };

static const struct worth_picture pictures[] = {
    { "exact", 0, 0 },      { "late_100ms", 100000, 0 }, { "late_1000ms", 1000000, 0 },
    { "lossy_10", 0, 0.1 }, { "no_events", 0, 1 },
};

enum { picture_count = sizeof pictures / sizeof pictures[0] };

static const char *const workloads[] = { "conversation", "heads", "agents" };

struct scene {
    struct worth_workload workload;
    uint32_t workers;
    uint64_t span_us;
};

/* The result of one policy in one setting: loop and quality of the events. */
struct run {
    struct worth_result results[contender_count];
};

static size_t contender_at(const char *name)
{
    for (size_t i = 0; i < contender_count; i++) {
        if (strcmp(contenders[i].name, name) == 0) {
            return i;
        }
    }
    bench_fail("no contender %s", name);
}

static struct worth_result replay_one(
    const struct scene *scene, enum worth_loop loop, const struct worth_picture *picture,
    const struct contender *contender)
{
    struct worth_replay_options options = {
        .workload = &scene->workload,
        .rates = rates,
        .router = { .workers = scene->workers,
                    .overlap_weight = contender->overlap_weight,
                    .picture = *picture,
                    .predict_ms = predict_ms,
                    .seed = 1 },
        .loop = loop,
        .span_us = scene->span_us,
        .clients = (size_t)clients_a_worker * scene->workers,
    };

    bench_must(kvb_route_policy_find(contender->policy, &options.router.policy), contender->policy);
    return worth_replay(&options);
}

/* worth.conversation.8.open.late_100ms */
static void name_setting(
    char name[128], const struct scene *scene, enum worth_loop loop,
    const struct worth_picture *picture)
{
    (void)snprintf(
        name, 128, "worth.%s.%u.%s.%s", scene->workload.name, scene->workers,
        loop == WORTH_OPEN ? "open" : "closed", picture->name);
}

static void
say_run(const char *setting, const struct contender *contender, const struct worth_result *result)
{
    char name[192];
    char more[256];

    (void)snprintf(name, sizeof name, "%s.%s", setting, contender->name);
    (void)snprintf(
        more, sizeof more,
        "\"hit_rate\":%.4f,\"ttft_p99_ms\":%.1f,\"load_std\":%.4f,\"requests_per_s\":%.3f,"
        "\"checksum\":\"%016llx\"",
        result->hit_rate, result->ttft_p99_ms, result->load_std, result->requests_per_s,
        (unsigned long long)result->checksum);
    bench_figure_with(name, result->ttft_p50_ms, "ms", more);
}

/* In milliseconds less is better, in a share of blocks more. */
static void say_against(
    const char *setting, const char *what, double ours, const char *unit, const char *against,
    double theirs)
{
    const bool is_less_better = strcmp(unit, "ms") == 0;
    const double base = is_less_better ? ours : theirs;
    char name[192];

    (void)snprintf(name, sizeof name, "%s.%s", setting, what);
    bench_figure_against(
        name, ours, unit, against, theirs, base > 0 ? (is_less_better ? theirs : ours) / base : 1);
}

/* The policy with the lowest median among those that ignore caches. */
static size_t best_blind(const struct run *run)
{
    size_t best = contender_at("round_robin");

    for (size_t i = 0; i < contender_count; i++) {
        if (contenders[i].is_blind &&
            run->results[i].ttft_p50_ms < run->results[best].ttft_p50_ms) {
            best = i;
        }
    }
    return best;
}

/* kv compared with policies that ignore caches. */
static void compare_policies(const char *setting, const struct run *run)
{
    const struct worth_result *kv = &run->results[contender_at("kv")];
    const size_t blind = best_blind(run);

    say_against(
        setting, "kv_hit_rate", kv->hit_rate, "of blocks", "round_robin",
        run->results[contender_at("round_robin")].hit_rate);
    say_against(
        setting, "kv_ttft_p50", kv->ttft_p50_ms, "ms", "least_requests",
        run->results[contender_at("least_requests")].ttft_p50_ms);
    say_against(
        setting, "kv_ttft_p50.of_blind", kv->ttft_p50_ms, "ms", contenders[blind].name,
        run->results[blind].ttft_p50_ms);
}

/* kv compared with kv with exact events. */
static void compare_pictures(const char *setting, const struct run *run, const struct run *exact)
{
    const struct worth_result *kv = &run->results[contender_at("kv")];
    const struct worth_result *best = &exact->results[contender_at("kv")];

    say_against(setting, "kv_hit_rate", kv->hit_rate, "of blocks", "kv, exact", best->hit_rate);
    say_against(setting, "kv_ttft_p50", kv->ttft_p50_ms, "ms", "kv, exact", best->ttft_p50_ms);
}

static struct run run_setting(
    const struct scene *scene, enum worth_loop loop, const struct worth_picture *picture,
    const struct run *exact)
{
    struct run run = { 0 };
    char setting[128];

    name_setting(setting, scene, loop, picture);
    for (size_t i = 0; i < contender_count; i++) {
        bench_progress_now_and_then("%s.%s", setting, contenders[i].name);
        run.results[i] = replay_one(scene, loop, picture, &contenders[i]);
        say_run(setting, &contenders[i], &run.results[i]);
    }
    if (exact) {
        compare_pictures(setting, &run, exact);
    } else {
        compare_policies(setting, &run);
    }
    return run;
}

static void run_scene(struct scene *scene)
{
    const struct worth_result burst =
        replay_one(scene, WORTH_BURST, &pictures[0], &contenders[contender_at("round_robin")]);

    scene->span_us = (uint64_t)((double)burst.busy_us / scene->workers / load_share);
    bench_progress(
        "worth.%s.%u: %zu requests in %.0f s", scene->workload.name, scene->workers,
        scene->workload.turn_count, (double)scene->span_us / 1e6);
    const struct run exact = run_setting(scene, WORTH_OPEN, &pictures[0], NULL);
    for (size_t i = 1; i < picture_count; i++) {
        (void)run_setting(scene, WORTH_OPEN, &pictures[i], &exact);
    }
    (void)run_setting(scene, WORTH_CLOSED, &pictures[0], NULL);
}

int main(int argc, char **argv)
{
    const struct bench bench =
        bench_begin(argc, argv, "What cache-aware routing is worth: rows worth.*.");
    const char *trace =
        bench.input_count > 0 ? bench.inputs[0] : "tests/data/conversation_trace.jsonl";

    for (size_t i = 0; i < sizeof workloads / sizeof workloads[0]; i++) {
        for (uint32_t fleets = 1; fleets <= 8; fleets *= 8) {
            struct scene scene = { .workers = fleets * workers_a_fleet };
            char name[128];
            (void)snprintf(name, sizeof name, "worth.%s.%u.", workloads[i], scene.workers);
            if (!bench_wants(&bench, name)) {
                continue;
            }
            worth_workload_make(
                &scene.workload, workloads[i],
                &(struct worth_plan){ .trace = trace,
                                      .fleets = fleets,
                                      .max_chains = bench_size(&bench, chains_a_fleet),
                                      .seed = 1 });
            run_scene(&scene);
            worth_workload_done(&scene.workload);
        }
    }
    return 0;
}
