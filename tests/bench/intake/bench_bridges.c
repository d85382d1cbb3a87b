#include "core/own.h"
#include "intake/asker.h"
#include "intake/bridges.h"
#include "parts/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A fleet's bridges, and the routers that query about it: the part of aggregator.py that must be
 * fast.
 *
 *     bench_bridges NATS_URL WORKERS HELD POOL GROUPS MESSAGE_EVENTS      the last five: fleet.h
 *
 * It does what the lines on stdin say, and answers each with a line of JSON.  What goes wrong ends
 * it, with a line on stderr. */

enum { flush_ms = 60000 };

static const char *url;
static struct kvb_bus *bus;
static struct fleet fleet;
static struct fleet_round made;
static struct questions questions;
static struct talker talker;
static struct bridges bridges;

/* ---- Commands: each reads its words and prints its answer ---- */

/* heartbeats HAS_ADDRESSES: one of each worker; engines name the blocks of those with addresses */
static void say_heartbeats(char *const words[])
{
    fleet.has_addresses = bench_number(words[0]) != 0;
    send_heartbeats(bus, &fleet);
    BENCH_MUST(kvb_bus_flush(bus, flush_ms));
    printf("true");
}

/* make BLOCKS: the next block operations, ready to be sent */
static void make_round(char *const words[])
{
    fleet_make(&fleet, bench_number(words[0]), &made);
    printf("{\"blocks\":%" PRIu64 ",\"events\":%" PRIu64 "}", made.blocks, made.events);
}

/* send: what was made; the server has it then */
static void say_round(char *const words[])
{
    (void)words;
    send_round(bus, &made);
    BENCH_MUST(kvb_bus_flush(bus, flush_ms));
    printf("true");
}

/* talk RATE BURST SECONDS */
static void talk(char *const words[])
{
    talker = (struct talker){ .bus = bus,
                              .fleet = &fleet,
                              .rate = bench_number(words[0]),
                              .burst = bench_number(words[1]),
                              .seconds = bench_real(words[2]) };
    talker_begin(&talker);
    printf("true");
}

/* hush: at the end of what was to be said */
static void hush(char *const words[])
{
    (void)words;
    talker_end(&talker);
    printf("true");
}

/* questions: about what workers hold now */
static void make_questions(char *const words[])
{
    (void)words;
    (void)pthread_mutex_lock(&bridges.lock);
    questions_make(&questions, &fleet);
    (void)pthread_mutex_unlock(&bridges.lock);
    printf("true");
}

/* http PORT, grpc PORT or nats SUBJECT; and the seconds */
static struct asking asking_of(char *const words[])
{
    const bool is_nats = strcmp(words[0], "nats") == 0;

    return (struct asking){
        .questions = &questions,
        .way = is_nats                         ? ASK_NATS
               : strcmp(words[0], "http") == 0 ? ASK_HTTP
                                               : ASK_GRPC,
        .port = is_nats ? 0 : (uint16_t)bench_number(words[1]),
        .url = url,
        .subject = words[1],
        .seconds = bench_real(words[2]),
    };
}

/* ask WAY WHERE SECONDS QUESTIONS_A_SECOND */
static void ask(char *const words[])
{
    static const unsigned permilles[] = { 500, 990 };
    const struct asking asking = asking_of(words);
    const struct asked asked = ask_at_rate(&asking, bench_number(words[3]));
    double spreads[KVB_COUNT_OF(permilles)];
    for (size_t i = 0; i < KVB_COUNT_OF(permilles); i++) { /* the next loop sorts the samples */
        spreads[i] = bench_percentile_spread(asked.samples_ns, asked.count, permilles[i]);
    }
    printf("{\"count\":%zu,\"answer_bytes\":%.17g", asked.count, asked.answer_bytes);
    for (size_t i = 0; i < KVB_COUNT_OF(permilles); i++) {
        const unsigned percent = permilles[i] / 10;
        printf(
            ",\"p%u\":%.17g", percent,
            bench_percentile(asked.samples_ns, asked.count, permilles[i]) / 1e3);
        if (!isnan(spreads[i])) {
            printf(",\"p%u_spread\":%.4f", percent, spreads[i]);
        }
    }
    printf("}");
    free(asked.samples_ns);
}

/* load WAY WHERE SECONDS: how many were answered */
static void load(char *const words[])
{
    const struct asking asking = asking_of(words);

    printf("%" PRIu64, ask_at_most(&asking));
}

/* begin: what bridges.h says, until the end */
static void begin(char *const words[])
{
    (void)words;
    bridges = (struct bridges){ .url = url, .bus = bus, .fleet = &fleet };
    bridges_begin(&bridges);
    printf("true");
}

static void fill(char *const words[])
{
    (void)words;
    printf("%s", bridges_fill(&bridges) ? "true" : "false");
}

/* rates EVENTS_A_SECOND LOADS_A_SECOND */
static void set_rates(char *const words[])
{
    bridges.events_a_second = bench_number(words[0]);
    bridges.loads_a_second = bench_number(words[1]);
    printf("true");
}

static void count(char *const words[])
{
    (void)words;
    printf(
        "{\"events\":%" PRIu64 ",\"event_bytes\":%" PRIu64 ",\"heartbeat_bytes\":%" PRIu64
        ",\"lists\":%" PRIu64 ",\"copies\":%" PRIu64 "}",
        bridges.events, bridges.event_bytes, bridges.heartbeat_bytes, bridges.lists,
        bridges_copies(&bridges));
}

/* clang-format off */
static const struct bench_command commands[] = {
    { "heartbeats", 1, say_heartbeats },
    { "make",       1, make_round },
    { "send",       0, say_round },
    { "talk",       3, talk },
    { "hush",       0, hush },
    { "questions",  0, make_questions },
    { "ask",        4, ask },
    { "load",       3, load },
    { "begin",      0, begin },
    { "fill",       0, fill },
    { "rates",      2, set_rates },
    { "count",      0, count },
};
/* clang-format on */

int main(int argc, char **argv)
{
    if (argc != 7) {
        (void)fprintf(
            stderr, "usage: %s NATS_URL WORKERS HELD POOL GROUPS MESSAGE_EVENTS\n", argv[0]);
        return 64;
    }
    uint32_t numbers[5];
    for (size_t i = 0; i < KVB_COUNT_OF(numbers); i++) {
        numbers[i] = (uint32_t)bench_number(argv[2 + i]);
    }
    url = argv[1];
    bus = connect_to_nats(url, "bench", false);
    fleet_init(
        &fleet, &(struct fleet_options){ .workers = numbers[0],
                                         .held = numbers[1],
                                         .pool = numbers[2],
                                         .groups = numbers[3],
                                         .decoded = 16,
                                         .message_events = numbers[4] });
    fleet_round_init(&made);
    bench_obey(commands, KVB_COUNT_OF(commands));
    return 0;
}
