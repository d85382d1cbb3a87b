#include "wire/query/selection.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/utf8.h"
#include "wire/json/value.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_depth = 16 }; /* the query has been scanned with less */

static kvb_status refuse_selection(struct kvb_detail *detail, const char *name, const char *why)
{
    kvb_detail_set(detail, "%s: %s", name, why);
    return KVB_NOT_FOUND;
}

/* out is unchanged when the field is missing. */
static kvb_status read_selection_text(
    kvb_span value, const char *name, char *out, size_t size, struct kvb_detail *detail)
{
    size_t len = 0;
    const kvb_status status = value.data ? kvb_json_text_of(value, out, size, &len) : KVB_OK;

    if (status == KVB_BAD_INPUT || (status == KVB_OK && !kvb_utf8_is_plain(out))) {
        kvb_detail_set(
            detail, "%s: expected a string of at most %zu printable bytes", name, size - 1);
        return KVB_NOT_FOUND;
    }
    return status;
}

static kvb_status
read_dry_run(kvb_span value, struct kvb_selection *selection, struct kvb_detail *detail)
{
    if (value.data && kvb_json_kind_of(value) != KVB_JSON_BOOL) {
        return refuse_selection(detail, "dry_run", "expected true or false");
    }
    selection->is_dry_run = value.data && value.data[0] == 't';
    return KVB_OK;
}

/* ---- Labels ---- */

static kvb_status
read_label(struct kvb_json_scan *scan, struct kvb_labels *labels, struct kvb_detail *detail)
{
    struct kvb_json_budget budget = kvb_json_depth(max_depth);
    struct kvb_detail why = { .text = "" };
    char name[2 * kvb_label_name_bytes]; /* a name that is cut is too long to be one */
    char text[kvb_label_value_bytes + 1];
    kvb_span key = { 0 };
    kvb_span value = { 0 };
    size_t len = 0;

    KVB_TRY(kvb_json_value(scan, &budget, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    KVB_TRY(kvb_json_value(scan, &budget, &value));
    kvb_status status = kvb_json_text_of(key, name, sizeof name, &len);
    KVB_TRY(status == KVB_NO_MEMORY ? status : KVB_OK);
    status = kvb_json_text_of(value, text, sizeof text, &len);
    if (status == KVB_BAD_INPUT) {
        kvb_detail_set(
            detail, "labels: %.64s: expected a string of at most %d bytes", name,
            kvb_label_value_bytes);
        return KVB_NOT_FOUND;
    }
    KVB_TRY(status);
    if (kvb_labels_add(labels, name, text, &why) != KVB_OK) {
        return refuse_selection(detail, "labels", why.text);
    }
    return KVB_OK;
}

kvb_status
kvb_labels_json_read(kvb_span object, struct kvb_labels *labels, struct kvb_detail *detail)
{
    struct kvb_json_scan scan = kvb_json_scan_of(object);

    if (!kvb_json_take(&scan, '{')) {
        return refuse_selection(detail, "labels", "expected an object of names and texts");
    }
    if (kvb_json_take(&scan, '}')) {
        return KVB_OK;
    }
    do {
        KVB_TRY(read_label(&scan, labels, detail));
    } while (kvb_json_take(&scan, ','));
    return kvb_json_expect(&scan, '}');
}

static kvb_status read_role(kvb_span value, struct kvb_labels *labels, struct kvb_detail *detail)
{
    struct kvb_detail why = { .text = "" };
    char role[kvb_label_value_bytes + 1] = "";
    const char *other = kvb_labels_find(labels, "role");

    KVB_TRY(read_selection_text(value, "role", role, sizeof role, detail));
    /* The same role twice is no contradiction. */
    if (!value.data || (other && strcmp(other, role) == 0)) {
        return KVB_OK;
    }
    if (other) {
        return refuse_selection(detail, "role", "differs from labels.role; give one of them");
    }
    if (kvb_labels_add(labels, "role", role, &why) != KVB_OK) {
        return refuse_selection(detail, "role", why.text);
    }
    return KVB_OK;
}

/* ---- Candidates ---- */

struct candidates {
    struct kvb_selection *selection;
    struct kvb_detail *detail;
    size_t count;
    size_t id_capacity, address_capacity;
};

/* A worker id, or an address.  KVB_BAD_INPUT: neither. */
static kvb_status add_candidate(struct candidates *candidates, kvb_span value)
{
    struct kvb_selection *selection = candidates->selection;
    char text[kvb_worker_address_bytes + 1];
    struct kvb_json_integer id = { 0 };
    size_t len = 0;

    if (kvb_json_integer_of(value, &id) && !id.is_negative && id.bits <= INT64_MAX) {
        KVB_TRY(kvb_array_reserve(
            &selection->worker_ids, &candidates->id_capacity, selection->worker_id_count + 1,
            sizeof *selection->worker_ids, kvb_max_query_candidates));
        selection->worker_ids[selection->worker_id_count++] = id.bits;
        (void)snprintf(text, sizeof text, "%" PRIu64, id.bits);
    } else {
        KVB_TRY(kvb_json_text_of(value, text, sizeof text, &len));
        KVB_TRY(text[0] != '\0' && kvb_utf8_is_plain(text) ? KVB_OK : KVB_BAD_INPUT);
        KVB_TRY(kvb_array_reserve(
            &selection->addresses, &candidates->address_capacity, selection->address_count + 1,
            sizeof *selection->addresses, kvb_max_query_candidates));
        selection->addresses[selection->address_count++] = kvb_selection_address(text);
    }
    /* For error texts, which name one of them. */
    if (candidates->count++ == 0) {
        (void)snprintf(
            selection->first_candidate, sizeof selection->first_candidate, "%.*s",
            kvb_shown_candidate_bytes, text);
    }
    return KVB_OK;
}

static kvb_status take_candidate(struct kvb_json_scan *scan, void *context)
{
    struct candidates *candidates = context;
    struct kvb_json_budget budget = kvb_json_depth(max_depth);
    kvb_span value = { 0 };

    KVB_TRY(kvb_json_value(scan, &budget, &value));
    if (candidates->count == kvb_max_query_candidates) {
        kvb_detail_set(candidates->detail, "candidates: at most %d", kvb_max_query_candidates);
        return KVB_NOT_FOUND;
    }
    const kvb_status status = add_candidate(candidates, value);
    if (status == KVB_BAD_INPUT) {
        kvb_detail_set(
            candidates->detail,
            "candidates[%zu]: expected a worker id from 0 to 2^63-1, or an address of at most "
            "%d printable bytes",
            candidates->count, kvb_worker_address_bytes);
        return KVB_NOT_FOUND;
    }
    return status;
}

static kvb_status
read_candidates(kvb_span list, struct kvb_selection *selection, struct kvb_detail *detail)
{
    struct candidates candidates = { .selection = selection, .detail = detail };
    struct kvb_json_scan scan = kvb_json_scan_of(list);

    if (!list.data) {
        return KVB_OK;
    }
    if (kvb_json_kind_of(list) != KVB_JSON_ARRAY) {
        return refuse_selection(detail, "candidates", "expected an array");
    }
    KVB_TRY(kvb_json_array(&scan, take_candidate, &candidates));
    if (candidates.count == 0) {
        return refuse_selection(detail, "candidates", "is empty; leave it out for all workers");
    }
    /* Sorted, because each worker of a fleet is looked up in them. */
    if (selection->worker_id_count > 0) {
        qsort(
            selection->worker_ids, selection->worker_id_count, sizeof *selection->worker_ids,
            kvb_selection_compare);
    }
    if (selection->address_count > 0) {
        qsort(
            selection->addresses, selection->address_count, sizeof *selection->addresses,
            kvb_selection_compare);
    }
    return KVB_OK;
}

kvb_status kvb_selection_json_read(
    const struct kvb_selection_members *members, struct kvb_selection *selection,
    struct kvb_detail *detail)
{
    KVB_TRY(read_selection_text(
        members->policy, "policy", selection->policy, sizeof selection->policy, detail));
    if (members->labels.data) {
        KVB_TRY(kvb_labels_json_read(members->labels, &selection->labels, detail));
    }
    /* Behind the labels, of which it may be one. */
    KVB_TRY(read_role(members->role, &selection->labels, detail));
    KVB_TRY(read_candidates(members->candidates, selection, detail));
    return read_dry_run(members->dry_run, selection, detail);
}
