#include "target.h"
#include "wire/router/books.h"

#include <stdlib.h>
#include <string.h>

static void try_decision(kvb_span json, struct kvb_buf *buf)
{
    struct kvb_shared_decision first = { .sequence = 0 };
    struct kvb_shared_decision again = { .sequence = 0 };

    if (kvb_books_decision_decode(json, &first) != KVB_OK) {
        return;
    }
    kvb_buf_reset(buf);
    check(kvb_books_decision_encode(&first, buf) == KVB_OK);
    check(kvb_books_decision_decode(kvb_buf_span(buf), &again) == KVB_OK);
    check(first.sequence == again.sequence && first.name_count == again.name_count);
    check(strcmp(first.request_id, again.request_id) == 0);
    for (size_t i = 0; i < first.name_count; i++) {
        check(first.names[i].value == again.names[i].value);
    }
    kvb_shared_decision_done(&first);
    kvb_shared_decision_done(&again);
}

static void try_report(kvb_span json, struct kvb_buf *buf)
{
    struct kvb_shared_report first = { .request_id = "" };
    struct kvb_shared_report again = { .request_id = "" };

    if (kvb_books_report_decode(json, &first) != KVB_OK) {
        return;
    }
    kvb_buf_reset(buf);
    check(kvb_books_report_encode(&first, buf) == KVB_OK);
    check(kvb_books_report_decode(kvb_buf_span(buf), &again) == KVB_OK);
    check(strcmp(first.request_id, again.request_id) == 0);
    check(strcmp(first.sender.id, again.sender.id) == 0);
}

static void try_status(kvb_span json, struct kvb_buf *buf)
{
    struct kvb_aggregator_status first = { .sequence = 0 };
    struct kvb_aggregator_status again = { .sequence = 0 };

    if (kvb_books_status_decode(json, &first) != KVB_OK) {
        return;
    }
    kvb_buf_reset(buf);
    check(kvb_books_status_encode(&first, buf) == KVB_OK);
    check(kvb_books_status_decode(kvb_buf_span(buf), &again) == KVB_OK);
    check(first.sequence == again.sequence && first.is_bye == again.is_bye);
}

/* An accepted message is encoded, and decodes to the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const kvb_span json = { .data = data, .len = size };
    struct kvb_buf buf;

    kvb_buf_init(&buf, 8 << 20);
    try_decision(json, &buf);
    try_report(json, &buf);
    try_status(json, &buf);
    kvb_buf_done(&buf);
    return 0;
}
