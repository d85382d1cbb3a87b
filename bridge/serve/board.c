#include "serve/board.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "serve/board_list.h"
#include "wire/json_writer.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { streams_a_turn = 4096 }; /* some 10 ms */

static const uint64_t list_period_ns = 500 * KVB_NS_PER_MS;
static const uint64_t look_ns = 5 * KVB_NS_PER_S;

struct kvb_board {
    struct kvb_board_options options;
    struct kvb_board_list *next; /* owned; being made, by the view's thread alone */
    size_t next_number;          /* of the stream to go on with */
    uint64_t next_began_ns;

    pthread_mutex_t lock;         /* of all below */
    struct kvb_history *history;  /* owned */
    struct kvb_board_list *shown; /* one reference is ours; NULL before the first */
    bool was_asked;
    uint64_t asked_ns; /* when last */
};

kvb_status kvb_board_new(const struct kvb_board_options *options, struct kvb_board **out_board)
{
    struct kvb_board *board = calloc(1, sizeof *board);

    if (!board) {
        return KVB_NO_MEMORY;
    }
    board->options = *options;
    (void)pthread_mutex_init(&board->lock, NULL); /* cannot fail with glibc */
    const kvb_status status =
        kvb_history_new(kvb_max_history_samples, options->now_ns, &board->history);
    if (status != KVB_OK) {
        kvb_board_free(board);
        return status;
    }
    *out_board = board;
    return KVB_OK;
}

void kvb_board_free(struct kvb_board *board)
{
    if (!board) {
        return;
    }
    kvb_board_list_unref(board->next);
    kvb_board_list_unref(board->shown);
    kvb_history_free(board->history);
    (void)pthread_mutex_destroy(&board->lock);
    free(board);
}

/* ---- On the view's thread ---- */

void kvb_board_add_sample(
    struct kvb_board *board, const struct kvb_history_reading *reading, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&board->lock);
    kvb_history_add(board->history, reading, now_ns);
    (void)pthread_mutex_unlock(&board->lock);
}

static bool is_wanted(struct kvb_board *board, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&board->lock);
    const bool is_looked_at = board->was_asked && now_ns < board->asked_ns + look_ns;
    const bool has_list = board->shown != NULL;
    (void)pthread_mutex_unlock(&board->lock);
    return is_looked_at && (!has_list || now_ns >= board->next_began_ns + list_period_ns);
}

static bool begin(struct kvb_board *board, uint64_t now_ns)
{
    if (!is_wanted(board, now_ns) || kvb_board_list_new(&board->next) != KVB_OK) {
        return false;
    }
    board->next_began_ns = now_ns;
    board->next_number = 0;
    return true;
}

/* The age of a list is that of its first stream. */
static void show(struct kvb_board *board)
{
    struct kvb_board_list *list = board->next;

    board->next = NULL;
    list->made_ns = board->next_began_ns;
    (void)pthread_mutex_lock(&board->lock);
    struct kvb_board_list *old = board->shown;
    board->shown = list;
    (void)pthread_mutex_unlock(&board->lock);
    kvb_board_list_unref(old);
}

void kvb_board_renew(struct kvb_board *board, const struct kvb_view *view, uint64_t now_ns)
{
    const size_t limit = kvb_followers_limit(view->followers);

    if (!board->next && !begin(board, now_ns)) {
        return;
    }
    for (size_t i = 0; i < streams_a_turn && board->next_number < limit; i++) {
        const struct kvb_follower *follower =
            kvb_followers_at(view->followers, board->next_number++);
        if (follower && kvb_board_list_add(board->next, view, follower) == KVB_NO_MEMORY) {
            kvb_board_list_unref(board->next);
            board->next = NULL;
            return;
        }
    }
    if (board->next_number >= limit) {
        show(board);
    }
}

/* ---- On any thread: history ---- */

/* Digits that nobody sees would be half the answer. */
static void write_rounded(struct kvb_json_writer *json, double value, double digits)
{
    kvb_json_write_number(json, round(value * digits) / digits);
}

static void write_columns(struct kvb_json_writer *json)
{
    static const char *const names[] = { "second",     "events_per_s", "asked_blocks",
                                         "hit_blocks", "held_blocks",  "load_avg",
                                         "load_std" };

    kvb_json_write_key(json, "columns");
    kvb_json_write_begin(json, '[');
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        kvb_json_write_text(json, names[i]);
    }
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_text(json, kvb_stream_state_name((enum kvb_stream_state)state));
    }
    kvb_json_write_end(json, ']');
}

/* In the order of the columns. */
static void write_sample(struct kvb_json_writer *json, const struct kvb_history_sample *sample)
{
    kvb_json_write_begin(json, '[');
    kvb_json_write_u64(json, sample->second);
    write_rounded(json, sample->events_per_s, 10);
    kvb_json_write_u64(json, sample->asked_blocks);
    kvb_json_write_u64(json, sample->hit_blocks);
    kvb_json_write_u64(json, sample->held_blocks);
    write_rounded(json, sample->load_avg, 10000);
    write_rounded(json, sample->load_std, 10000);
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_u64(json, sample->streams[state]);
    }
    kvb_json_write_end(json, ']');
}

static void
write_head(struct kvb_json_writer *json, const struct kvb_board *board, const char *not_ready)
{
    kvb_json_write_pair_text(json, "version", KVB_VERSION);
    kvb_json_write_pair_u64(json, "started_ms", board->options.started_ms);
    kvb_json_write_key(json, "not_ready");
    if (not_ready) {
        kvb_json_write_text(json, not_ready);
    } else {
        kvb_json_write_null(json);
    }
    kvb_json_write_pair_text(
        json, "load_statistic", kvb_load_statistic_name(board->options.statistic));
}

static void drop_samples(struct kvb_history_sample **samples)
{
    free(*samples);
}

kvb_status kvb_board_history(
    struct kvb_board *board, uint64_t after, const char *not_ready, struct kvb_buf *out)
{
    KVB_OWN(drop_samples)
    struct kvb_history_sample *samples = calloc(kvb_max_history_samples, sizeof *samples);
    struct kvb_json_writer json = kvb_json_writer_of(out);

    if (!samples) {
        return KVB_NO_MEMORY;
    }
    (void)pthread_mutex_lock(&board->lock);
    const size_t count = kvb_history_copy(board->history, after, samples);
    (void)pthread_mutex_unlock(&board->lock);
    kvb_json_write_begin(&json, '{');
    write_head(&json, board, not_ready);
    write_columns(&json);
    kvb_json_write_key(&json, "samples");
    kvb_json_write_begin(&json, '[');
    for (size_t i = 0; i < count; i++) {
        write_sample(&json, &samples[i]);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- On any thread: the list of streams ---- */

/* The list shown, or NULL; the caller gives the reference back. */
static struct kvb_board_list *borrow_shown(struct kvb_board *board, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&board->lock);
    board->was_asked = true;
    board->asked_ns = now_ns;
    struct kvb_board_list *list = board->shown;
    if (list) {
        kvb_board_list_ref(list);
    }
    (void)pthread_mutex_unlock(&board->lock);
    return list;
}

static void drop_list(struct kvb_board_list **list)
{
    kvb_board_list_unref(*list);
}

static void
write_age(struct kvb_json_writer *json, const struct kvb_board_list *list, uint64_t now_ns)
{
    kvb_json_write_key(json, "age_ms");
    if (!list) {
        kvb_json_write_null(json);
    } else {
        const uint64_t age_ns = now_ns > list->made_ns ? now_ns - list->made_ns : 0;
        kvb_json_write_u64(json, age_ns / KVB_NS_PER_MS);
    }
}

static void write_states(struct kvb_json_writer *json, const struct kvb_board_list *list)
{
    kvb_json_write_key(json, "states");
    kvb_json_write_begin(json, '{');
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_pair_u64(
            json, kvb_stream_state_name((enum kvb_stream_state)state),
            list ? list->counts[state] : 0);
    }
    kvb_json_write_end(json, '}');
}

kvb_status
kvb_board_streams(struct kvb_board *board, const struct kvb_board_ask *ask, struct kvb_buf *out)
{
    KVB_OWN(drop_list) struct kvb_board_list *list = borrow_shown(board, ask->now_ns);
    struct kvb_json_writer json = kvb_json_writer_of(out);
    size_t matching = 0;

    kvb_json_write_begin(&json, '{');
    write_age(&json, list, ask->now_ns);
    write_states(&json, list);
    kvb_json_write_key(&json, "streams");
    kvb_json_write_begin(&json, '[');
    KVB_TRY(json.status);
    if (list) {
        KVB_TRY(kvb_board_list_write(list, ask->filter, ask->max_rows, &matching, out));
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_pair_u64(&json, "matching", matching);
    kvb_json_write_end(&json, '}');
    return json.status;
}
