#include "kvaggregator/answers/dashboard.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "wire/json/writer.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    streams_a_turn = 4096, /* some 10 ms */
    max_words = 8,
    word_bytes = 128
};

static const uint64_t list_period_ns = 500 * KVB_NS_PER_MS;
static const uint64_t look_ns = 5 * KVB_NS_PER_S;

/* ---- The list of streams ---- */

/* All streams as text, written once and then read by any number of threads.
 *
 *     rows   [ state, offsets of its text and words ] ...
 *     text   {"worker_id":7,...}{"worker_id":8,...}       as in GET /streams
 *     words  EXACT  7/0 dynamo VllmWorker m\0 ...         what a filter searches
 *
 * Threads: one thread writes it; after that any thread may read it with a reference. */
struct listed_row {
    enum kvb_stream_state state;
    size_t text_at;
    size_t text_bytes;
    size_t words_at;
};

struct stream_list {
    _Atomic unsigned users;
    uint64_t made_ns;
    uint64_t counts[KVB_STREAM_STATE_COUNT]; /* of all streams, listed or not */
    struct listed_row *rows;                 /* owned */
    size_t row_count;
    size_t row_capacity;
    struct kvb_buf text;
    struct kvb_buf words;
};

/* Creates a list with one reference, which the caller owns. */
static kvb_status new_stream_list(struct stream_list **out_list)
{
    struct stream_list *list = calloc(1, sizeof *list);

    if (!list) {
        return KVB_NO_MEMORY;
    }
    atomic_init(&list->users, 1);
    kvb_buf_init(&list->text, kvb_max_dashboard_bytes);
    kvb_buf_init(&list->words, kvb_max_dashboard_bytes);
    *out_list = list;
    return KVB_OK;
}

/* The last reference frees it.  NULL is fine. */
static void unref_stream_list(struct stream_list *list)
{
    if (list && atomic_fetch_sub(&list->users, 1) == 1) {
        kvb_buf_done(&list->text);
        kvb_buf_done(&list->words);
        free(list->rows);
        free(list);
    }
}

/* Appends the searchable words: state, reason, worker/rank, namespace, component, model. */
static kvb_status append_words(
    struct kvb_buf *words, const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    KVB_TRY(kvb_buf_append_format(
        words, "%s %s %" PRIu64 "/%" PRIu32 " %s %s %s", kvb_stream_state_name(follower->state),
        kvb_stream_reason_name(follower->reason), follower->id.worker_id, follower->id.dp_rank,
        follower->id.name_space, follower->id.component, kvb_query_context_model(ctx, follower)));
    return kvb_buf_append(words, "", 1);
}

/* KVB_TOO_LARGE  the stream is counted but not listed: kvb_max_dashboard_bytes is reached
 * KVB_NO_MEMORY  the caller drops the list
 * Bytes that a failed row leaves in text or words belong to no row and are never read. */
static kvb_status add_to_stream_list(
    struct stream_list *list, const struct kvb_query_context *ctx,
    const struct kvb_follower *follower)
{
    const struct listed_row row = {
        .state = follower->state,
        .text_at = list->text.len,
        .words_at = list->words.len,
    };

    list->counts[follower->state]++;
    KVB_TRY(kvb_array_reserve(
        &list->rows, &list->row_capacity, list->row_count + 1, sizeof *list->rows,
        kvb_max_streams));
    KVB_TRY(append_words(&list->words, ctx, follower));
    KVB_TRY(kvb_answer_stream(ctx, follower, &list->text));
    list->rows[list->row_count] = row;
    list->rows[list->row_count++].text_bytes = list->text.len - row.text_at;
    return KVB_OK;
}

/* The words of a filter.  Too many words are cut off, which matches more rows than requested. */
struct filter {
    char words[max_words][word_bytes];
    size_t count;
};

static void split_filter(const char *text, struct filter *out)
{
    out->count = 0;
    for (text += strspn(text, " "); *text && out->count < max_words; text += strspn(text, " ")) {
        const size_t len = strcspn(text, " ");
        const size_t kept = len < word_bytes ? len : word_bytes - 1;
        memcpy(out->words[out->count], text, kept);
        out->words[out->count++][kept] = '\0';
        text += len;
    }
}

static bool matches_filter(const char *words, const struct filter *filter)
{
    for (size_t i = 0; i < filter->count; i++) {
        if (!strcasestr(words, filter->words[i])) {
            return false;
        }
    }
    return true;
}

/* Appends the first max_rows rows that have every word of the filter, with commas, worst states
 * first.  *out_matching: how many rows match, shown or not. */
static kvb_status write_listed(
    const struct stream_list *list, const char *filter, size_t max_rows, size_t *out_matching,
    struct kvb_buf *out)
{
    static const enum kvb_stream_state worst_first[KVB_STREAM_STATE_COUNT] = {
        KVB_STREAM_DOWN,    KVB_STREAM_STALE,   KVB_STREAM_UNVERIFIED,
        KVB_STREAM_PARTIAL, KVB_STREAM_SYNCING, KVB_STREAM_EXACT,
    };
    struct filter wanted;
    size_t matching = 0;

    split_filter(filter, &wanted);
    for (size_t rank = 0; rank < KVB_STREAM_STATE_COUNT; rank++) {
        for (size_t i = 0; i < list->row_count; i++) {
            const struct listed_row *row = &list->rows[i];
            if (row->state != worst_first[rank] ||
                !matches_filter((const char *)list->words.data + row->words_at, &wanted)) {
                continue;
            }
            /* Those beyond are counted, so that the page can say how many it does not show. */
            if (matching++ < max_rows) {
                KVB_TRY(kvb_buf_append(out, ",", matching > 1));
                KVB_TRY(kvb_buf_append(out, list->text.data + row->text_at, row->text_bytes));
            }
        }
    }
    *out_matching = matching;
    return KVB_OK;
}

/* ---- The dashboard ---- */

/* Of its counters: how much was added since the sample before. */
struct sample {
    uint64_t second;
    double events_per_s;
    struct kvb_dashboard_reading figures;
};

struct kvb_dashboard {
    struct kvb_dashboard_options options;
    struct stream_list *next; /* owned; not complete; only the query context's thread uses it */
    size_t next_number;       /* number of the next stream to add */
    uint64_t next_began_ns;

    pthread_mutex_t lock;                           /* protects all fields below */
    struct sample samples[kvb_max_history_samples]; /* a ring */
    uint64_t sample_count;                          /* so far: where the next one goes */
    uint64_t newest_ns;                             /* when the newest was taken; or the start */
    struct kvb_dashboard_reading newest;            /* what it was made of */
    struct stream_list *shown; /* we hold one reference; NULL before the first list */
    bool was_read;
    uint64_t read_ns; /* last query for the list */
};

kvb_status
kvb_dashboard_new(const struct kvb_dashboard_options *options, struct kvb_dashboard **out_dashboard)
{
    struct kvb_dashboard *dashboard = calloc(1, sizeof *dashboard);

    if (!dashboard) {
        return KVB_NO_MEMORY;
    }
    dashboard->options = *options;
    dashboard->newest_ns = options->now_ns;
    (void)pthread_mutex_init(&dashboard->lock, NULL); /* cannot fail with glibc */
    *out_dashboard = dashboard;
    return KVB_OK;
}

void kvb_dashboard_free(struct kvb_dashboard *dashboard)
{
    if (!dashboard) {
        return;
    }
    unref_stream_list(dashboard->next);
    unref_stream_list(dashboard->shown);
    (void)pthread_mutex_destroy(&dashboard->lock);
    free(dashboard);
}

/* ---- On the query context's thread ---- */

/* The number of a second since the start. */
static uint64_t second_of(const struct kvb_dashboard *dashboard, uint64_t now_ns)
{
    return (now_ns - dashboard->options.now_ns) / KVB_NS_PER_S;
}

void kvb_dashboard_add_sample(
    struct kvb_dashboard *dashboard, const struct kvb_dashboard_reading *reading, uint64_t now_ns)
{
    const uint64_t second = second_of(dashboard, now_ns);

    /* Only this thread writes what is read here, so the lock is taken once a second. */
    if (second <= second_of(dashboard, dashboard->newest_ns)) {
        return;
    }
    const struct kvb_dashboard_reading *before = &dashboard->newest;
    struct sample sample = { .second = second, .figures = *reading };
    sample.figures.events_applied -= before->events_applied;
    sample.figures.asked_blocks -= before->asked_blocks;
    sample.figures.hit_blocks -= before->hit_blocks;
    sample.figures.promised_tokens -= before->promised_tokens;
    sample.figures.delivered_tokens -= before->delivered_tokens;
    /* By the time that has passed: a late sample covers more than a second. */
    sample.events_per_s = (double)sample.figures.events_applied * (double)KVB_NS_PER_S /
                          (double)(now_ns - dashboard->newest_ns);
    (void)pthread_mutex_lock(&dashboard->lock);
    dashboard->samples[dashboard->sample_count++ % kvb_max_history_samples] = sample;
    dashboard->newest_ns = now_ns;
    dashboard->newest = *reading;
    (void)pthread_mutex_unlock(&dashboard->lock);
}

/* False: nobody looks at the page, or the list that is shown is new enough, or there is no memory.
 */
static bool begin_dashboard_round(struct kvb_dashboard *dashboard, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&dashboard->lock);
    const bool is_looked_at = dashboard->was_read && now_ns < dashboard->read_ns + look_ns;
    const bool has_list = dashboard->shown != NULL;
    (void)pthread_mutex_unlock(&dashboard->lock);
    /* The first list is made as soon as somebody looks, all others at their time. */
    if (!is_looked_at || (has_list && now_ns < dashboard->next_began_ns + list_period_ns) ||
        new_stream_list(&dashboard->next) != KVB_OK) {
        return false;
    }
    dashboard->next_began_ns = now_ns;
    dashboard->next_number = 0;
    return true;
}

/* The age of a list is that of its first stream. */
static void show_finished_lists(struct kvb_dashboard *dashboard)
{
    struct stream_list *list = dashboard->next;

    dashboard->next = NULL;
    list->made_ns = dashboard->next_began_ns;
    (void)pthread_mutex_lock(&dashboard->lock);
    struct stream_list *old = dashboard->shown;
    dashboard->shown = list;
    (void)pthread_mutex_unlock(&dashboard->lock);
    unref_stream_list(old);
}

void kvb_dashboard_renew(
    struct kvb_dashboard *dashboard, const struct kvb_query_context *ctx, uint64_t now_ns)
{
    const size_t limit = kvb_followers_limit(ctx->followers);

    if (!dashboard->next && !begin_dashboard_round(dashboard, now_ns)) {
        return;
    }
    for (size_t i = 0; i < streams_a_turn && dashboard->next_number < limit; i++) {
        const struct kvb_follower *follower =
            kvb_followers_at(ctx->followers, dashboard->next_number++);
        /* A list without some streams would show a smaller fleet, so the old one stays.  One that
         * has reached its limit is shown: it still counts them all. */
        if (follower && add_to_stream_list(dashboard->next, ctx, follower) == KVB_NO_MEMORY) {
            unref_stream_list(dashboard->next);
            dashboard->next = NULL;
            return;
        }
    }
    if (dashboard->next_number >= limit) {
        show_finished_lists(dashboard);
    }
}

/* ---- On any thread: history ---- */

/* Those after that second, oldest first, or all of them (dashboard.h).  Returns how many. */
static size_t copy_samples(
    struct kvb_dashboard *dashboard, uint64_t after, struct sample out[kvb_max_history_samples])
{
    size_t copied = 0;

    (void)pthread_mutex_lock(&dashboard->lock);
    const uint64_t count = dashboard->sample_count;
    const uint64_t oldest = count > kvb_max_history_samples ? count - kvb_max_history_samples : 0;
    const uint64_t from = after > second_of(dashboard, dashboard->newest_ns) ? 0 : after;
    for (uint64_t i = oldest; i < count; i++) {
        const struct sample *sample = &dashboard->samples[i % kvb_max_history_samples];
        if (sample->second > from) {
            out[copied++] = *sample;
        }
    }
    (void)pthread_mutex_unlock(&dashboard->lock);
    return copied;
}

/* Rounds, because invisible digits would be half of the answer. */
static void write_rounded(struct kvb_json_writer *json, double value, double digits)
{
    kvb_json_write_number(json, round(value * digits) / digits);
}

static void write_columns(struct kvb_json_writer *json)
{
    static const char *const names[] = { "second",     "events_per_s", "asked_blocks",
                                         "hit_blocks", "held_blocks",  "load_avg",
                                         "load_std" };

    kvb_json_write_pair_begin(json, "columns", '[');
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        kvb_json_write_text(json, names[i]);
    }
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_text(json, kvb_stream_state_name((enum kvb_stream_state)state));
    }
    kvb_json_write_text(json, "promised_tokens");
    kvb_json_write_text(json, "delivered_tokens");
    kvb_json_write_end(json, ']');
}

/* Writes one sample as a row, in the order of `columns`. */
static void write_sample(struct kvb_json_writer *json, const struct sample *sample)
{
    const struct kvb_dashboard_reading *figures = &sample->figures;

    kvb_json_write_begin(json, '[');
    kvb_json_write_u64(json, sample->second);
    write_rounded(json, sample->events_per_s, 10);
    kvb_json_write_u64(json, figures->asked_blocks);
    kvb_json_write_u64(json, figures->hit_blocks);
    kvb_json_write_u64(json, figures->held_blocks);
    write_rounded(json, figures->load_avg, 10000);
    write_rounded(json, figures->load_std, 10000);
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_u64(json, figures->streams[state]);
    }
    /* Columns that came later stand at the end, so that the places of the others stay. */
    kvb_json_write_u64(json, figures->promised_tokens);
    kvb_json_write_u64(json, figures->delivered_tokens);
    kvb_json_write_end(json, ']');
}

kvb_status kvb_dashboard_history(
    struct kvb_dashboard *dashboard, uint64_t after, const char *not_ready, struct kvb_buf *out)
{
    struct sample *samples = calloc(kvb_max_history_samples, sizeof *samples);
    struct kvb_json_writer json = kvb_json_writer_of(out);

    if (!samples) {
        return KVB_NO_MEMORY;
    }
    /* Copied, so that the index thread does not wait while the text is made. */
    const size_t count = copy_samples(dashboard, after, samples);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "version", KVB_VERSION);
    kvb_json_write_pair_u64(&json, "started_ms", dashboard->options.started_ms);
    kvb_json_write_key(&json, "not_ready");
    if (not_ready) {
        kvb_json_write_text(&json, not_ready);
    } else {
        kvb_json_write_null(&json);
    }
    kvb_json_write_pair_text(
        &json, "load_statistic", kvb_load_statistic_name(dashboard->options.statistic));
    write_columns(&json);
    kvb_json_write_pair_begin(&json, "samples", '[');
    for (size_t i = 0; i < count; i++) {
        write_sample(&json, &samples[i]);
    }
    free(samples);
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- On any thread: the list of streams ---- */

/* Returns the shown list with a reference that the caller must drop, or NULL. */
static struct stream_list *borrow_shown(struct kvb_dashboard *dashboard, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&dashboard->lock);
    dashboard->was_read = true;
    dashboard->read_ns = now_ns;
    struct stream_list *list = dashboard->shown;
    if (list) {
        atomic_fetch_add(&list->users, 1);
    }
    (void)pthread_mutex_unlock(&dashboard->lock);
    return list;
}

static void drop_dashboard_list(struct stream_list **list)
{
    unref_stream_list(*list);
}

kvb_status kvb_dashboard_streams(
    struct kvb_dashboard *dashboard, const struct kvb_dashboard_query *wanted, struct kvb_buf *out)
{
    KVB_OWN(drop_dashboard_list)
    struct stream_list *list = borrow_shown(dashboard, wanted->now_ns);
    struct kvb_json_writer json = kvb_json_writer_of(out);
    size_t matching = 0;

    kvb_json_write_begin(&json, '{');
    kvb_json_write_key(&json, "age_ms");
    if (list) { /* which may have been finished on another thread since the request came */
        const uint64_t made_ns = list->made_ns < wanted->now_ns ? list->made_ns : wanted->now_ns;
        kvb_json_write_u64(&json, (wanted->now_ns - made_ns) / KVB_NS_PER_MS);
    } else {
        kvb_json_write_null(&json);
    }
    kvb_json_write_pair_begin(&json, "states", '{');
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_pair_u64(
            &json, kvb_stream_state_name((enum kvb_stream_state)state),
            list ? list->counts[state] : 0);
    }
    kvb_json_write_end(&json, '}');
    kvb_json_write_pair_begin(&json, "streams", '[');
    KVB_TRY(json.status);
    if (list) {
        KVB_TRY(write_listed(list, wanted->filter, wanted->max_rows, &matching, out));
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_pair_u64(&json, "matching", matching);
    if (list && list->row_count == 0 && dashboard->options.nats) {
        /* Nothing is heard: where it listens is what a person needs to know then. */
        kvb_json_write_pair_begin(&json, "listens", '{');
        kvb_json_write_pair_text(&json, "nats", dashboard->options.nats);
        kvb_json_write_pair_begin(&json, "subjects", '[');
        for (size_t i = 0; i < kvb_dashboard_subjects; i++) {
            kvb_json_write_text(&json, dashboard->options.subjects[i]);
        }
        kvb_json_write_end(&json, ']');
        kvb_json_write_end(&json, '}');
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}
