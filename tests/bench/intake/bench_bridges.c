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

static void must_be(bool is_good)
{
    bench_must(is_good ? KVB_OK : KVB_BAD_INPUT, "a command");
}

/* ---- Commands: each reads its words and prints its answer ---- */

/* heartbeats [addresses]: one of each worker; from then on with addresses, and engines name the
 * blocks */
static void say_heartbeats(const char *words)
{
    fleet.has_addresses |= strstr(words, "addresses") != NULL;
    send_heartbeats(bus, &fleet);
    BENCH_MUST(kvb_bus_flush(bus, flush_ms));
    printf("true");
}

/* make BLOCKS: the next block operations, ready to be sent */
static void make_round(const char *words)
{
    uint64_t blocks = 0;

    must_be(sscanf(words, "%" SCNu64, &blocks) == 1);
    fleet_make(&fleet, blocks, &made);
    printf("{\"blocks\":%" PRIu64 ",\"events\":%" PRIu64 "}", made.blocks, made.events);
}

/* send: what was made; the server has it then */
static void say_round(const char *words)
{
    (void)words;
    send_round(bus, &made);
    BENCH_MUST(kvb_bus_flush(bus, flush_ms));
    printf("true");
}

/* talk RATE BURST SECONDS */
static void talk(const char *words)
{
    talker = (struct talker){ .bus = bus, .fleet = &fleet };
    must_be(
        sscanf(
            words, "%" SCNu64 " %" SCNu64 " %lf", &talker.rate, &talker.burst, &talker.seconds) ==
        3);
    talker_begin(&talker);
    printf("true");
}

/* hush: at the end of what was to be said */
static void hush(const char *words)
{
    (void)words;
    talker_end(&talker);
    printf("true");
}

/* questions: about what workers hold now */
static void make_questions(const char *words)
{
    (void)words;
    (void)pthread_mutex_lock(&bridges.lock);
    questions_make(&questions, &fleet);
    (void)pthread_mutex_unlock(&bridges.lock);
    printf("true");
}

/* http PORT, grpc PORT, nats SUBJECT; then the seconds.  Returns the rest. */
static const char *read_asking(const char *words, char subject[128], struct asking *out_asking)
{
    char way[8];
    int len = 0;

    *out_asking = (struct asking){ .questions = &questions, .url = url, .subject = subject };
    must_be(sscanf(words, "%7s %127s %lf%n", way, subject, &out_asking->seconds, &len) == 3);
    out_asking->port = (uint16_t)strtoul(subject, NULL, 10);
    out_asking->way = way[0] == 'h' ? ASK_HTTP : way[0] == 'n' ? ASK_NATS : ASK_GRPC;
    return words + len;
}

/* ask WAY WHERE SECONDS QUESTIONS_A_SECOND */
static void ask(const char *words)
{
    static const unsigned permilles[] = { 500, 990 };
    char subject[128];
    struct asking asking;
    const uint64_t rate = strtoull(read_asking(words, subject, &asking), NULL, 10);

    must_be(rate > 0);
    const struct asked asked = ask_at_rate(&asking, rate);
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
static void load(const char *words)
{
    char subject[128];
    struct asking asking;

    (void)read_asking(words, subject, &asking);
    must_be(asking.way != ASK_GRPC);
    printf("%" PRIu64, ask_at_most(&asking));
}

/* begin: what bridges.h says, until the end */
static void begin(const char *words)
{
    (void)words;
    bridges = (struct bridges){ .url = url, .bus = bus, .fleet = &fleet };
    bridges_begin(&bridges);
    printf("true");
}

static void fill(const char *words)
{
    (void)words;
    printf("%s", bridges_fill(&bridges) ? "true" : "false");
}

/* rates EVENTS_A_SECOND LOADS_A_SECOND */
static void set_rates(const char *words)
{
    uint64_t events = 0;
    uint64_t loads = 0;

    must_be(sscanf(words, "%" SCNu64 " %" SCNu64, &events, &loads) == 2);
    bridges.events_a_second = events;
    bridges.loads_a_second = loads;
    printf("true");
}

static void count(const char *words)
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
    { "heartbeats", say_heartbeats },
    { "make",       make_round },
    { "send",       say_round },
    { "talk",       talk },
    { "hush",       hush },
    { "questions",  make_questions },
    { "ask",        ask },
    { "load",       load },
    { "begin",      begin },
    { "fill",       fill },
    { "rates",      set_rates },
    { "count",      count },
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
        numbers[i] = (uint32_t)strtoul(argv[2 + i], NULL, 10);
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
