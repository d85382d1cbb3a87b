#include "wire/query/selection.h"

#include "core/limits.h"
#include "core/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvb_status refuse_selection(struct kvb_detail *detail, const char *name, const char *why)
{
    kvb_detail_set(detail, "%s: %s", name, why);
    return KVB_NOT_FOUND;
}

/* out is unchanged when the field is missing or null. */
static kvb_status read_selection_text(
    struct json_object *root, const char *name, char *out, size_t size, struct kvb_detail *detail)
{
    struct json_object *value = kvb_json_member(root, name);

    if (value && (kvb_json_text(value, out, size) != KVB_OK || !kvb_utf8_is_plain(out))) {
        kvb_detail_set(
            detail, "%s: expected a string of at most %zu printable bytes", name, size - 1);
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static kvb_status
read_dry_run(struct json_object *root, struct kvb_selection *selection, struct kvb_detail *detail)
{
    struct json_object *value = kvb_json_member(root, "dry_run");

    if (value && !json_object_is_type(value, json_type_boolean)) {
        return refuse_selection(detail, "dry_run", "expected true or false");
    }
    selection->is_dry_run = value && json_object_get_boolean(value);
    return KVB_OK;
}

kvb_status kvb_labels_json_read(
    struct json_object *object, struct kvb_labels *labels, struct kvb_detail *detail)
{
    struct kvb_detail why = { .text = "" };
    char text[kvb_label_value_bytes + 1];

    if (!json_object_is_type(object, json_type_object)) {
        return refuse_selection(detail, "labels", "expected an object of names and texts");
    }
    json_object_object_foreach(object, name, value)
    {
        if (!value || kvb_json_text(value, text, sizeof text) != KVB_OK) {
            kvb_detail_set(
                detail, "labels: %.64s: expected a string of at most %d bytes", name,
                kvb_label_value_bytes);
            return KVB_NOT_FOUND;
        }
        if (kvb_labels_add(labels, name, text, &why) != KVB_OK) {
            return refuse_selection(detail, "labels", why.text);
        }
    }
    return KVB_OK;
}

static kvb_status
read_role(struct json_object *root, struct kvb_labels *labels, struct kvb_detail *detail)
{
    struct kvb_detail why = { .text = "" };
    char role[kvb_label_value_bytes + 1] = "";
    const char *other = kvb_labels_find(labels, "role");

    KVB_TRY(read_selection_text(root, "role", role, sizeof role, detail));
    /* The same role twice is no contradiction. */
    if (!kvb_json_member(root, "role") || (other && strcmp(other, role) == 0)) {
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

/* False: neither a worker id nor an address. */
static bool read_candidate(struct json_object *value, bool *out_is_address, uint64_t *out_number)
{
    char address[kvb_worker_address_bytes + 1];

    *out_is_address = json_object_is_type(value, json_type_string);
    if (*out_is_address) {
        if (kvb_json_text(value, address, sizeof address) != KVB_OK || address[0] == '\0' ||
            !kvb_utf8_is_plain(address)) {
            return false;
        }
        *out_number = kvb_selection_address(address);
        return true;
    }
    /* json-c replaces a wider number by the largest one, which is out of range */
    return kvb_json_number(value, INT64_MAX, out_number) == KVB_OK;
}

static kvb_status refuse_candidates(struct json_object *list, struct kvb_detail *detail)
{
    if (!json_object_is_type(list, json_type_array)) {
        return refuse_selection(detail, "candidates", "expected an array");
    }
    if (json_object_array_length(list) == 0) {
        return refuse_selection(detail, "candidates", "is empty; leave it out for all workers");
    }
    kvb_detail_set(detail, "candidates: at most %d", kvb_max_query_candidates);
    return KVB_NOT_FOUND;
}

/* Reads the candidates.  Keeps the text of the first one for error messages. */
static kvb_status fill_candidates(
    struct json_object *list, size_t count, struct kvb_selection *selection,
    struct kvb_detail *detail)
{
    for (size_t i = 0; i < count; i++) {
        struct json_object *value = json_object_array_get_idx(list, i);
        bool is_address = false;
        uint64_t number = 0;
        if (!read_candidate(value, &is_address, &number)) {
            kvb_detail_set(
                detail,
                "candidates[%zu]: expected a worker id from 0 to 2^63-1, or an address of at most "
                "%d printable bytes",
                i, kvb_worker_address_bytes);
            return KVB_NOT_FOUND;
        }
        if (is_address) {
            selection->addresses[selection->address_count++] = number;
        } else {
            selection->worker_ids[selection->worker_id_count++] = number;
        }
        /* For error texts, which name one of them. */
        if (i == 0) {
            (void)snprintf(
                selection->first_candidate, sizeof selection->first_candidate, "%s",
                json_object_get_string(value));
        }
    }
    return KVB_OK;
}

static kvb_status read_candidates(
    struct json_object *root, struct kvb_selection *selection, struct kvb_detail *detail)
{
    struct json_object *list = kvb_json_member(root, "candidates");

    if (!list) {
        return KVB_OK;
    }
    const size_t count = kvb_json_list_len(list);
    if (count == 0 || count > kvb_max_query_candidates) {
        return refuse_candidates(list, detail);
    }
    /* Room for all of either kind: the list may mix them. */
    selection->worker_ids = calloc(count, sizeof *selection->worker_ids);
    selection->addresses = calloc(count, sizeof *selection->addresses);
    if (!selection->worker_ids || !selection->addresses) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(fill_candidates(list, count, selection, detail));
    /* Sorted, because each worker of a fleet is looked up in them. */
    qsort(
        selection->worker_ids, selection->worker_id_count, sizeof *selection->worker_ids,
        kvb_selection_compare);
    qsort(
        selection->addresses, selection->address_count, sizeof *selection->addresses,
        kvb_selection_compare);
    return KVB_OK;
}

kvb_status kvb_selection_json_read(
    struct json_object *root, struct kvb_selection *selection, struct kvb_detail *detail)
{
    struct json_object *labels = kvb_json_member(root, "labels");

    KVB_TRY(
        read_selection_text(root, "policy", selection->policy, sizeof selection->policy, detail));
    if (labels) {
        KVB_TRY(kvb_labels_json_read(labels, &selection->labels, detail));
    }
    /* Behind the labels, of which it may be one. */
    KVB_TRY(read_role(root, &selection->labels, detail));
    KVB_TRY(read_candidates(root, selection, detail));
    return read_dry_run(root, selection, detail);
}
