#include "kvctl/top/columns.h"

#include "core/own.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef const struct kvctl_top_row *row_of; /* short enough for a table */

/* ---- States ---------------------------------------------------------------------------- */

struct state_look {
    const char *name;
    enum kvctl_top_color color;
};

/* The better first: sorting by state brings the worst to the top. */
static const struct state_look state_looks[] = {
    { "EXACT", kvctl_top_green },    { "SYNCING", kvctl_top_cyan },
    { "PARTIAL", kvctl_top_yellow }, { "UNVERIFIED", kvctl_top_yellow },
    { "STALE", kvctl_top_magenta },  { "DOWN", kvctl_top_red },
};

static size_t state_rank(const char *state)
{
    size_t i = 0;

    while (i < KVB_COUNT_OF(state_looks) && strcmp(state_looks[i].name, state) != 0) {
        i++;
    }
    return i;
}

enum kvctl_top_color kvctl_top_state_color(const char *state)
{
    const size_t rank = state_rank(state);

    return rank < KVB_COUNT_OF(state_looks) ? state_looks[rank].color : kvctl_top_plain;
}

static enum kvctl_top_color state_color(row_of row)
{
    return kvctl_top_state_color(row->state);
}

/* ---- Figures ----------------------------------------------------------------------------- */

static const double max_plain = 1e9;
static const double max_hours = 9999;

/* What is not known is less than anything. */
static int compare_stats(const struct kvctl_top_figure *a, const struct kvctl_top_figure *b)
{
    if (!a->is_known || !b->is_known) {
        return a->is_known - b->is_known;
    }
    return (a->value > b->value) - (a->value < b->value);
}

static void render_figure(const struct kvctl_top_figure *figure, int digits, char *text)
{
    if (!figure->is_known) {
        (void)snprintf(text, kvctl_top_cell_bytes, "-");
    } else if (figure->value < max_plain && figure->value > -max_plain) {
        (void)snprintf(text, kvctl_top_cell_bytes, "%.*f", digits, figure->value);
    } else { /* nonsense from the wire must not push other columns off the screen */
        (void)snprintf(text, kvctl_top_cell_bytes, "%.1e", figure->value);
    }
}

/* 0.3s, 99.9s, 12m, 30h */
static void render_span(const struct kvctl_top_figure *seconds, char *text)
{
    const double value = seconds->value;

    if (!seconds->is_known || value > 3600 * max_hours) {
        render_figure(seconds, 1, text);
    } else if (value < 100) {
        (void)snprintf(text, kvctl_top_cell_bytes, "%.1fs", value);
    } else if (value < 100 * 60) {
        (void)snprintf(text, kvctl_top_cell_bytes, "%.0fm", value / 60);
    } else {
        (void)snprintf(text, kvctl_top_cell_bytes, "%.0fh", value / 3600);
    }
}

static void render_word(const char *word, char *text)
{
    (void)snprintf(text, kvctl_top_cell_bytes, "%s", word[0] ? word : "-");
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* ---- Columns that are no figures ---- */

static void render_worker(row_of row, char *text)
{
    (void)snprintf(text, kvctl_top_cell_bytes, "%" PRIu64, row->id.worker_id);
}

static int compare_worker(row_of a, row_of b)
{
    return compare_numbers(a->id.worker_id, b->id.worker_id);
}

static void render_rank(row_of row, char *text)
{
    (void)snprintf(text, kvctl_top_cell_bytes, "%" PRIu32, row->id.dp_rank);
}

static int compare_rank(row_of a, row_of b)
{
    return compare_numbers(a->id.dp_rank, b->id.dp_rank);
}

static void render_state(row_of row, char *text)
{
    render_word(row->state, text);
}

static int compare_state(row_of a, row_of b)
{
    return compare_numbers(state_rank(a->state), state_rank(b->state));
}

/* The reason of the stream, which is that of the device; then those of other tiers:
 * "gone host:no_removals". */
static void render_reason(row_of row, char *text)
{
    size_t len = (size_t)snprintf(text, kvctl_top_cell_bytes, "%s", row->reason);

    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (row->tier_reasons[tier][0] && len < kvctl_top_cell_bytes) {
            len += (size_t)snprintf(
                text + len, kvctl_top_cell_bytes - len, "%s%s:%s", len > 0 ? " " : "",
                kvb_tier_name((enum kvb_tier)tier), row->tier_reasons[tier]);
        }
    }
    if (len == 0) {
        render_word("", text);
    }
}

static int compare_reason(row_of a, row_of b)
{
    char text_a[kvctl_top_cell_bytes];
    char text_b[kvctl_top_cell_bytes];

    render_reason(a, text_a);
    render_reason(b, text_b);
    return strcmp(text_a, text_b);
}

/* ---- The table ---- */

#define FIGURE(field) offsetof(struct kvctl_top_row, field)

/* clang-format off */
static const struct kvctl_top_column columns[] = {
    { .title = "WORKER", .name = "worker", .key = 'W', .width = 6, .priority = 11,
      .render = render_worker, .compare = compare_worker,
      .help = "worker id" },
    { .title = "RANK", .name = "rank", .key = 'N', .width = 4, .priority = 8,
      .render = render_rank, .compare = compare_rank,
      .help = "data-parallel rank" },
    { .title = "STATE", .name = "state", .key = 'S', .width = 10, .priority = 10, .is_left = true, .is_falling = true,
      .render = render_state, .compare = compare_state, .color = state_color,
      .help = "how far its list of blocks may be trusted" },
    { .title = "REASON", .name = "reason", .key = 'R', .width = 6, .priority = 4, .is_left = true, .is_falling = true,
      .render = render_reason, .compare = compare_reason,
      .help = "why not EXACT" },
    { .title = "EVENTS/S", .name = "events", .key = 'E', .width = 8, .priority = 9, .is_falling = true,
      .figure = FIGURE(events_per_s), .digits = 1,
      .help = "events of the engine in a second" },
    { .title = "LAG", .name = "lag", .key = 'L', .width = 5, .priority = 6, .is_falling = true,
      .figure = FIGURE(lag_s), .is_span = true,
      .help = "since a batch came, or nothing new was proven" },
    { .title = "BLOCKS", .name = "blocks", .key = 'B', .width = 6, .priority = 7, .is_falling = true,
      .figure = FIGURE(blocks),
      .help = "blocks held, in all tiers" },
    { .title = "LOAD", .name = "load", .key = 'O', .width = 5, .priority = 5, .is_falling = true,
      .figure = FIGURE(load), .digits = 2,
      .help = "active blocks of all blocks, 0 to 1" },
    { .title = "ACTIVE", .name = "active", .key = 'A', .width = 6, .priority = 2, .is_falling = true,
      .figure = FIGURE(active),
      .help = "requests that run" },
    { .title = "WAIT", .name = "wait", .key = 'T', .width = 4, .priority = 3, .is_falling = true,
      .figure = FIGURE(waiting),
      .help = "requests that wait" },
    { .title = "RECON", .name = "recon", .key = 'C', .width = 5, .priority = 1, .is_falling = true,
      .figure = FIGURE(reconnects),
      .help = "times that the bridge reconnected to the engine" },
    { .title = "KEPT", .name = "kept", .key = 'K', .width = 5, .priority = 0,
      .figure = FIGURE(kept), .digits = 3,
      .help = "cached tokens delivered of those promised, 0 to 1" },
};
/* clang-format on */

static const struct kvctl_top_figure *
column_figure(const struct kvctl_top_column *column, row_of row)
{
    return (const void *)((const char *)row + column->figure);
}

void kvctl_top_column_render(
    const struct kvctl_top_column *column, const struct kvctl_top_row *row,
    char text[kvctl_top_cell_bytes])
{
    if (column->render) {
        column->render(row, text);
    } else if (column->is_span) {
        render_span(column_figure(column, row), text);
    } else {
        render_figure(column_figure(column, row), column->digits, text);
    }
}

int kvctl_top_column_compare(
    const struct kvctl_top_column *column, const struct kvctl_top_row *a,
    const struct kvctl_top_row *b)
{
    return column->compare ? column->compare(a, b)
                           : compare_stats(column_figure(column, a), column_figure(column, b));
}

const struct kvctl_top_column *kvctl_top_columns(size_t *out_count)
{
    *out_count = KVB_COUNT_OF(columns);
    return columns;
}

kvb_status kvctl_top_column_named(const char *name, size_t *out_number)
{
    for (size_t i = 0; i < KVB_COUNT_OF(columns); i++) {
        if (strcasecmp(columns[i].name, name) == 0) {
            *out_number = i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}
