#include "kvctl/top/sampler.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/thread.h"
#include "kvctl/top/fleet.h"
#include "kvctl/top/json.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct kvctl_top_sampler {
    const struct kvctl_line *line; /* borrowed */
    struct kvctl_line round;       /* a copy: a round asks one aggregator; its bus is borrowed */
    uint32_t interval_ms;
    int wake_fd;                           /* borrowed */
    struct kvb_bus_subscription *statuses; /* owned, like the next */
    struct kvb_bus_subscription *hits;
    struct kvb_buf answer; /* the sampling thread's own */
    struct kvb_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t stopping;
    bool is_stopping; /* lock, like the next */
    struct kvctl_top_fleet fleet;
};

/* ---- What is published --------------------------------------------------------------------- */

static void on_status(void *context, const struct kvb_bus_message *message)
{
    struct kvctl_top_sampler *sampler = context;
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_stream_id component = { .worker_id = 0 };
    const char *tail = NULL;

    if (kvb_subject_split(message->subject, component.name_space, component.component, &tail) !=
            KVB_OK ||
        kvctl_top_parse(message->payload, &root) != KVB_OK) {
        return; /* no bridge of ours: its streams show what the aggregator says */
    }
    pthread_mutex_lock(&sampler->lock);
    (void)kvctl_top_take_status(
        &sampler->fleet, &component, root, kvb_clock_monotonic_ns()); /* what can be read */
    pthread_mutex_unlock(&sampler->lock);
}

static void on_hit(void *context, const struct kvb_bus_message *message)
{
    struct kvctl_top_sampler *sampler = context;
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    if (kvctl_top_parse(message->payload, &root) != KVB_OK) {
        return;
    }
    pthread_mutex_lock(&sampler->lock);
    kvctl_top_take_hit(&sampler->fleet, root);
    pthread_mutex_unlock(&sampler->lock);
}

/* ---- What is asked ---- */

/* Shorter than what the bus says: it has to fit a line of the screen. */
static void
explain(const struct kvctl_options *options, kvb_status status, struct kvb_detail *detail)
{
    if (status == KVB_NOT_FOUND) {
        kvb_detail_set(
            detail, "nobody answers for %s/%s: is it running?",
            options->name_space ? options->name_space : "dynamo",
            options->component ? options->component : "Router");
    } else if (status == KVB_IO) {
        kvb_detail_set(detail, "no answer within %u ms: is it stuck?", options->timeout_ms);
    }
}

static kvb_status request(
    struct kvctl_top_sampler *sampler, const char *tail, kvb_span query,
    struct json_object **out_root, struct kvb_detail *detail)
{
    char subject[kvb_subject_bytes];
    char said[128];

    KVB_TRY(kvctl_line_subject(&sampler->round, tail, subject));
    kvb_status status = kvctl_request(&sampler->round, subject, query, &sampler->answer, detail);
    explain(sampler->line->options, status, detail);
    KVB_TRY(status);
    status = kvctl_top_parse(kvb_buf_span(&sampler->answer), out_root);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "the answer on %s is no JSON object", tail);
        return status;
    }
    kvctl_top_word(*out_root, "error", said, sizeof said);
    if (said[0]) {
        kvb_detail_set(detail, "%s", said);
        return KVB_AGAIN;
    }
    return KVB_OK;
}

typedef void (*taker)(struct kvctl_top_fleet *fleet, struct json_object *answer);

static kvb_status request_and_take(
    struct kvctl_top_sampler *sampler, const char *tail, taker take, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(request(sampler, tail, (kvb_span){ NULL, 0 }, &root, detail));
    pthread_mutex_lock(&sampler->lock);
    take(&sampler->fleet, root);
    pthread_mutex_unlock(&sampler->lock);
    return KVB_OK;
}

/* One page from the stream of number `from` on; *out_next is 0 behind the last. */
static kvb_status request_page(
    struct kvctl_top_sampler *sampler, uint64_t from, uint64_t *out_next, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    struct kvb_json_writer json = kvb_json_writer_of(&query);

    kvb_buf_init(&query, 64);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "from", from);
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    KVB_TRY(request(sampler, "kv_get.streams", kvb_buf_span(&query), &root, detail));
    pthread_mutex_lock(&sampler->lock);
    (void)kvctl_top_take_streams(
        &sampler->fleet, root, kvb_clock_monotonic_ns()); /* what can be read */
    pthread_mutex_unlock(&sampler->lock);
    (void)kvctl_top_u64(root, "next", out_next); /* else 0 */
    kvctl_stay_with(&sampler->round, root);
    return KVB_OK;
}

static kvb_status request_all(struct kvctl_top_sampler *sampler, struct kvb_detail *detail)
{
    uint64_t from = 0;
    uint64_t next = 0;

    do {
        from = next;
        KVB_TRY(request_page(sampler, from, &next, detail));
    } while (next > from && next < kvb_max_streams);
    KVB_TRY(request_and_take(sampler, "kv_get.load", kvctl_top_take_load, detail));
    return request_and_take(sampler, "kv_get.state", kvctl_top_take_state, detail);
}

static void run_round(struct kvctl_top_sampler *sampler)
{
    struct kvb_detail detail = { 0 };

    pthread_mutex_lock(&sampler->lock);
    sampler->round = *sampler->line;
    kvctl_top_begin_round(&sampler->fleet);
    pthread_mutex_unlock(&sampler->lock);
    const kvb_status status = request_all(sampler, &detail);
    const char *trouble = detail.text[0] ? detail.text : kvb_status_name(status);
    const bool is_connected = kvb_bus_is_connected(sampler->line->bus);
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    pthread_mutex_lock(&sampler->lock);
    kvctl_top_set_connected(&sampler->fleet, is_connected, now_ns);
    kvctl_top_end_round(&sampler->fleet, status == KVB_OK ? NULL : trouble, now_ns);
    pthread_mutex_unlock(&sampler->lock);
}

/* ---- The thread ---- */

static void wake(const struct kvctl_top_sampler *sampler)
{
    const uint64_t one = 1;

    /* It can only fail when there is enough in it to wake anybody. */
    if (write(sampler->wake_fd, &one, sizeof one) < 0) {
        return;
    }
}

/* False when the sampler shall stop. */
static bool pause_between(struct kvctl_top_sampler *sampler)
{
    struct timespec end;
    bool is_late = false;

    (void)clock_gettime(CLOCK_MONOTONIC, &end); /* cannot fail: the clock exists */
    end.tv_sec += sampler->interval_ms / 1000;
    end.tv_nsec += (long)(sampler->interval_ms % 1000 * KVB_NS_PER_MS);
    end.tv_sec += end.tv_nsec / (long)KVB_NS_PER_S;
    end.tv_nsec %= (long)KVB_NS_PER_S;
    pthread_mutex_lock(&sampler->lock);
    while (!sampler->is_stopping && !is_late) {
        is_late = pthread_cond_timedwait(&sampler->stopping, &sampler->lock, &end) != 0;
    }
    const bool goes_on = !sampler->is_stopping;
    pthread_mutex_unlock(&sampler->lock);
    return goes_on;
}

static void *run(void *context)
{
    struct kvctl_top_sampler *sampler = context;

    do {
        run_round(sampler);
        wake(sampler);
    } while (pause_between(sampler));
    return NULL;
}

/* ---- Its life ---- */

static kvb_status subscribe(struct kvctl_top_sampler *sampler)
{
    struct kvb_bus *bus = sampler->line->bus;
    char subject[kvb_subject_bytes];

    KVB_TRY(kvctl_router_subject(sampler->line->options, "kv-hit-rate", subject));
    KVB_TRY(kvb_bus_subscribe(bus, subject, on_hit, sampler, &sampler->hits));
    KVB_TRY(kvb_subject_make(subject, "*", "*", "bridge_status"));
    return kvb_bus_subscribe(bus, subject, on_status, sampler, &sampler->statuses);
}

static kvb_status begin(struct kvctl_top_sampler *sampler)
{
    (void)pthread_mutex_init(&sampler->lock, NULL);
    kvb_cond_init_monotonic(&sampler->stopping);
    kvb_buf_init(&sampler->answer, kvb_max_answer_bytes);
    kvctl_top_fleet_init(&sampler->fleet);
    KVB_TRY(subscribe(sampler));
    return kvb_thread_start(&sampler->thread, run, sampler);
}

kvb_status kvctl_top_sampler_start(
    const struct kvctl_line *line, uint32_t interval_ms, int wake_fd,
    struct kvctl_top_sampler **out_sampler)
{
    struct kvctl_top_sampler *sampler = calloc(1, sizeof *sampler);

    if (!sampler) {
        return KVB_NO_MEMORY;
    }
    sampler->line = line;
    sampler->interval_ms = interval_ms;
    sampler->wake_fd = wake_fd;
    const kvb_status status = begin(sampler);
    if (status != KVB_OK) {
        kvctl_top_sampler_stop(sampler);
        return status;
    }
    *out_sampler = sampler;
    return KVB_OK;
}

void kvctl_top_sampler_stop(struct kvctl_top_sampler *sampler)
{
    if (!sampler) {
        return;
    }
    pthread_mutex_lock(&sampler->lock);
    sampler->is_stopping = true;
    pthread_cond_signal(&sampler->stopping);
    pthread_mutex_unlock(&sampler->lock);
    kvb_thread_join(&sampler->thread);
    kvb_bus_unsubscribe(sampler->statuses);
    kvb_bus_unsubscribe(sampler->hits);
    kvctl_top_fleet_done(&sampler->fleet);
    kvb_buf_done(&sampler->answer);
    (void)pthread_cond_destroy(&sampler->stopping);
    (void)pthread_mutex_destroy(&sampler->lock);
    free(sampler);
}

kvb_status kvctl_top_sampler_read(struct kvctl_top_sampler *sampler, struct kvctl_top_model *model)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    pthread_mutex_lock(&sampler->lock);
    kvctl_top_set_connected(&sampler->fleet, kvb_bus_is_connected(sampler->line->bus), now_ns);
    const kvb_status status = kvctl_top_fleet_show(&sampler->fleet, now_ns, model);
    pthread_mutex_unlock(&sampler->lock);
    return status;
}
