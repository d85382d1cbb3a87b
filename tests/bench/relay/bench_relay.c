#include "core/own.h"
#include "rows.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* What it costs to bring events from an engine's socket to a subscriber on NATS:
 *
 *     engine (PUB) --> a relay, in a process of its own --> nats-server --> subscriber
 *
 * The same bytes go through our bridge, in both formats, and through the relays that it is
 * measured against: one that passes bytes on unread, and one in Python. */

static void stop(int signal)
{
    (void)signal;
    atomic_store(&stage_is_over, true);
}

/* This program ends its processes and folder, also on these signals. */
static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = stop };

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

static bool take_python(void *context, const char *value)
{
    struct stage_programs *programs = context;

    programs->python = strcmp(value, "none") == 0 ? NULL : value;
    return value[0] != '\0';
}

static bool take_bridge(void *context, const char *value)
{
    struct stage_programs *programs = context;

    programs->bridge = value;
    return value[0] != '\0';
}

static kvb_status run_all(struct relay_bench *bench)
{
    KVB_TRY(rows_rate(bench));
    KVB_TRY(rows_latency(bench));
    KVB_TRY(rows_publishers(bench));
    KVB_TRY(rows_republish(bench));
    return rows_memory(bench);
}

int main(int argc, char **argv)
{
    const char *python = secure_getenv("KVB_PYTHON");
    struct stage_programs programs = { .bridge = KVB_BENCH_BRIDGE,
                                       .python = python ? python : "python3" };
    static const struct bench_option options[] = {
        { "--python", "PROGRAM  for the Python relay; none: without it (KVB_PYTHON, python3)",
          take_python },
        { "--bridge", "PROGRAM  the kvbridge of another build", take_bridge },
    };
    const struct bench_about about = {
        .what = "From an engine's events to a subscriber on NATS: rate, delay, cost, memory.",
        .options = options,
        .option_count = KVB_COUNT_OF(options),
        .context = &programs,
    };
    struct relay_bench bench = { .options = bench_begin(argc, argv, &about) };

    catch_signals();
    bench_must(stage_open(&programs, &bench.stage), "nats-server");
    const kvb_status status = run_all(&bench);
    stage_close(&bench.stage);
    bench_must(status, "relay");
    return EXIT_SUCCESS;
}
