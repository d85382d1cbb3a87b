#include "kvctl/top/model.h"

#include "core/array.h"
#include "core/limits.h"
#include "kvctl/top/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { words_bytes = 320 };

/* Everything that a filter may find, in one line. */
static void words_of(const struct kvctl_top_row *row, char words[words_bytes])
{
    (void)snprintf(
        words, words_bytes, "%" PRIu64 " %" PRIu32 " %s %s %s %s %s %s", row->id.worker_id,
        row->id.dp_rank, row->state, row->reason, row->tier_reasons[KVB_TIER_HOST],
        row->tier_reasons[KVB_TIER_DISK], row->id.name_space, row->id.component);
}

static bool matches(const struct kvctl_top_row *row, const char *filter)
{
    static const char blanks[] = " \t";
    char words[words_bytes];
    char word[kvctl_top_filter_bytes];

    words_of(row, words);
    for (filter += strspn(filter, blanks); *filter; filter += strspn(filter, blanks)) {
        const size_t len = strcspn(filter, blanks);
        (void)snprintf(word, sizeof word, "%.*s", (int)len, filter);
        if (!strcasestr(words, word)) {
            return false;
        }
        filter += len;
    }
    return true;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* The order of rows that are equal in the chosen column: always the same, so that
 * rows do not change places from one picture to the next. */
static int compare_ids(const struct kvb_stream_id *a, const struct kvb_stream_id *b)
{
    int order = compare_numbers(a->worker_id, b->worker_id);

    order = order ? order : compare_numbers(a->dp_rank, b->dp_rank);
    order = order ? order : strcmp(a->name_space, b->name_space);
    return order ? order : strcmp(a->component, b->component);
}

static int compare_rows(const void *left, const void *right, void *context)
{
    const struct kvctl_top_row *a = *(const struct kvctl_top_row *const *)left;
    const struct kvctl_top_row *b = *(const struct kvctl_top_row *const *)right;
    const struct kvctl_top_view *view = context;
    size_t count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&count);
    const struct kvctl_top_column *column = &columns[view->sort < count ? view->sort : 0];

    const int order = kvctl_top_column_compare(column, a, b);
    if (order != 0) {
        return column->is_falling != view->is_reversed ? -order : order;
    }
    return compare_ids(&a->id, &b->id);
}

kvb_status kvctl_top_select(struct kvctl_top_model *model, const struct kvctl_top_view *view)
{
    struct kvctl_top_view chosen = *view;

    model->shown_count = 0;
    KVB_TRY(kvb_array_reserve(
        (void *)&model->shown, &model->shown_capacity, model->count, sizeof(void *),
        kvb_max_streams));
    for (size_t i = 0; i < model->count; i++) {
        if (matches(&model->rows[i], view->is_typing ? view->typed : view->filter)) {
            model->shown[model->shown_count++] = &model->rows[i];
        }
    }
    if (model->shown_count > 0) {
        qsort_r((void *)model->shown, model->shown_count, sizeof(void *), compare_rows, &chosen);
    }
    return KVB_OK;
}

void kvctl_top_model_done(struct kvctl_top_model *model)
{
    free(model->rows);
    free((void *)model->shown);
    *model = (struct kvctl_top_model){ 0 };
}
