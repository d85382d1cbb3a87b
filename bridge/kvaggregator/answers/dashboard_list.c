#include "kvaggregator/answers/dashboard_list.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/answers.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

kvb_status kvb_dashboard_list_new(struct kvb_dashboard_list **out_list)
{
    struct kvb_dashboard_list *list = calloc(1, sizeof *list);

    if (!list) {
        return KVB_NO_MEMORY;
    }
    atomic_init(&list->users, 1);
    kvb_buf_init(&list->text, kvb_max_dashboard_bytes);
    kvb_buf_init(&list->words, kvb_max_dashboard_bytes);
    *out_list = list;
    return KVB_OK;
}

void kvb_dashboard_list_ref(struct kvb_dashboard_list *list)
{
    atomic_fetch_add(&list->users, 1);
}

void kvb_dashboard_list_unref(struct kvb_dashboard_list *list)
{
    if (list && atomic_fetch_sub(&list->users, 1) == 1) {
        kvb_buf_done(&list->text);
        kvb_buf_done(&list->words);
        free(list->rows);
        free(list);
    }
}

/* ---- Making it ---- */

/* State, reason, worker/rank, component, model: what a person would look for. */
static kvb_status append_words(
    struct kvb_buf *words, const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    KVB_TRY(kvb_buf_append_format(
        words, "%s %s %" PRIu64 "/%" PRIu32 " %s %s %s", kvb_stream_state_name(follower->state),
        kvb_stream_reason_name(follower->reason), follower->id.worker_id, follower->id.dp_rank,
        follower->id.name_space, follower->id.component, kvb_query_context_model(ctx, follower)));
    return kvb_buf_append(words, "", 1);
}

/* What a failed row has left in text or words belongs to no row and is never read. */
kvb_status kvb_dashboard_list_add(
    struct kvb_dashboard_list *list, const struct kvb_query_context *ctx,
    const struct kvb_follower *follower)
{
    const struct kvb_dashboard_row row = {
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

/* ---- Reading it ---- */

enum { max_words = 8, word_bytes = 128 };

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

static kvb_status append_row(
    const struct kvb_dashboard_list *list, const struct kvb_dashboard_row *row, bool is_first,
    struct kvb_buf *out)
{
    if (!is_first) {
        KVB_TRY(kvb_buf_append(out, ",", 1));
    }
    return kvb_buf_append(out, list->text.data + row->text_at, row->text_bytes);
}

kvb_status kvb_dashboard_list_write(
    const struct kvb_dashboard_list *list, const char *filter, size_t max_rows,
    size_t *out_matching, struct kvb_buf *out)
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
            const struct kvb_dashboard_row *row = &list->rows[i];
            if (row->state != worst_first[rank] ||
                !matches_filter((const char *)list->words.data + row->words_at, &wanted)) {
                continue;
            }
            if (matching++ < max_rows) {
                KVB_TRY(append_row(list, row, matching == 1, out));
            }
        }
    }
    *out_matching = matching;
    return KVB_OK;
}
