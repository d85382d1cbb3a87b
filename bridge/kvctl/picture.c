#include "kvctl/picture.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void kvctl_picture_done(struct kvctl_picture *picture)
{
    for (size_t i = 0; i < picture->count; i++) {
        free(picture->streams[i].names);
    }
    free(picture->streams);
    *picture = (struct kvctl_picture){ 0 };
}

struct kvctl_listed *
kvctl_picture_find(const struct kvctl_picture *picture, uint64_t worker_id, uint32_t dp_rank)
{
    for (size_t i = 0; i < picture->count; i++) {
        if (picture->streams[i].worker_id == worker_id && picture->streams[i].dp_rank == dp_rank) {
            return &picture->streams[i];
        }
    }
    return NULL;
}

static uint64_t picture_number(struct json_object *object, const char *name)
{
    return json_object_get_uint64(kvb_json_member(object, name));
}

/* ---- Reading the aggregator ----------------------------------------------------------- */

/* Takes one page of an answer.  Its position of the next page goes into the next query. */
typedef kvb_status (*page_taker)(struct kvctl_picture *picture, struct json_object *page);

struct pages {
    const char *tail;
    page_taker take;
    struct {
        const char *said;
        const char *member;
    } places[2];
};

static kvb_status take_streams(struct kvctl_picture *picture, struct json_object *page)
{
    struct json_object *rows = kvb_json_member(page, "streams");
    const size_t more = rows ? json_object_array_length(rows) : 0;

    KVB_TRY(kvb_array_reserve(
        &picture->streams, &picture->capacity, picture->count + more, sizeof *picture->streams,
        kvb_max_streams));
    for (size_t i = 0; i < more; i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        const char *state = json_object_get_string(kvb_json_member(row, "state"));
        picture->streams[picture->count++] = (struct kvctl_listed){
            .worker_id = picture_number(row, "worker_id"),
            .dp_rank = (uint32_t)picture_number(row, "dp_rank"),
            .is_exact = state && strcmp(state, "EXACT") == 0,
            .doubtful = picture_number(row, "doubtful"),
        };
    }
    return KVB_OK;
}

/* Reads the next number of a row and moves *row behind it. */
static kvb_status read_row_number(const char **row, uint64_t *out_value)
{
    char *end = NULL;

    errno = 0;
    *out_value = strtoull(*row, &end, 10);
    if (errno != 0 || end == *row || (*end != ' ' && *end != '\n' && *end != '\0')) {
        return KVB_BAD_INPUT;
    }
    *row = end;
    return KVB_OK;
}

/* "worker rank tier hash" */
static kvb_status take_row(struct kvctl_picture *picture, const char *row)
{
    uint64_t worker_id = 0;
    uint64_t dp_rank = 0;
    uint64_t name = 0;

    KVB_TRY(read_row_number(&row, &worker_id));
    KVB_TRY(read_row_number(&row, &dp_rank));
    row = strchr(row + 1, ' '); /* past the tier */
    if (!row) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_row_number(&row, &name));
    struct kvctl_listed *stream = kvctl_picture_find(picture, worker_id, (uint32_t)dp_rank);
    if (!stream) {
        return KVB_OK; /* a stream added after the list was read; the next attempt sees it */
    }
    KVB_TRY(kvb_array_reserve(
        &stream->names, &stream->capacity, stream->count + 1, sizeof *stream->names,
        kvb_max_stream_blocks));
    stream->names[stream->count++] = name;
    return KVB_OK;
}

static kvb_status take_rows(struct kvctl_picture *picture, struct json_object *page)
{
    const char *row = json_object_get_string(kvb_json_member(page, "rows"));

    while (row && *row != '\0') {
        KVB_TRY(take_row(picture, row));
        const char *end = strchr(row, '\n');
        row = end ? end + 1 : NULL;
    }
    return KVB_OK;
}

static bool
next_picture_query(struct json_object *page, const struct pages *pages, struct kvb_buf *query)
{
    struct kvb_json_writer json = kvb_json_writer_of(query);
    bool has_next = false;

    kvb_buf_reset(query);
    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < KVB_COUNT_OF(pages->places); i++) {
        const char *said = pages->places[i].said;
        struct json_object *place = said ? kvb_json_member(page, said) : NULL;
        if (place) {
            kvb_json_write_pair_u64(&json, pages->places[i].member, json_object_get_uint64(place));
            has_next = true;
        }
    }
    kvb_json_write_end(&json, '}');
    return has_next && json.status == KVB_OK;
}

static enum kvctl_exit
read_pages(struct kvctl_line *line, const struct pages *pages, struct kvctl_picture *picture)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    bool has_next = true;

    kvb_buf_init(&query, 256);
    kvb_buf_init(&answer, kvb_max_answer_bytes);
    while (has_next) {
        KVB_OWN(kvb_json_drop) struct json_object *page = NULL;
        const enum kvctl_exit outcome =
            kvctl_request_answer(line, pages->tail, kvb_buf_span(&query), &answer);
        const enum kvctl_exit read =
            outcome == kvctl_ok ? kvctl_read_answer(&answer, &page) : outcome;
        if (read != kvctl_ok) {
            return read;
        }
        const kvb_status status = pages->take(picture, page);
        if (status != KVB_OK) {
            kvctl_say(
                "%s: an answer that cannot be used: %s", pages->tail, kvb_status_name(status));
            return kvctl_failed;
        }
        has_next = next_picture_query(page, pages, &query);
        kvctl_stay_with(line, page);
    }
    return kvctl_ok;
}

enum kvctl_exit kvctl_picture_read(const struct kvctl_line *line, struct kvctl_picture *picture)
{
    const struct pages streams = { "kv_get.streams", take_streams, { { "next", "from" } } };
    const struct pages rows = { "kv_get.dump",
                                take_rows,
                                { { "stream", "stream" }, { "row", "row" } } };

    struct kvctl_line one = *line; /* all pages come from one aggregator */

    const enum kvctl_exit result = read_pages(&one, &streams, picture);
    return result == kvctl_ok ? read_pages(&one, &rows, picture) : result;
}
