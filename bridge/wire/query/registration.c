#include "wire/query/registration.h"

#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/tree.h"
#include "wire/query/selection.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_depth = 8, max_containers = 64, max_values = 256 };

struct reading {
    struct json_object *root;  /* borrowed */
    struct kvb_detail *detail; /* borrowed; may be NULL */
};

static kvb_status refuse_field(const struct reading *reading, const char *name, const char *why)
{
    kvb_detail_set(reading->detail, "%s: %s", name, why);
    return KVB_NOT_FOUND;
}

static kvb_status missing(const struct reading *reading, const char *name)
{
    kvb_detail_set(reading->detail, "missing field `%s`", name);
    return KVB_NOT_FOUND;
}

/* ---- Texts ---- */

/* A text with one of several names: the first name that is present counts.  Without any of them
 * `out` is unchanged. */
struct text_field {
    const char *names[4]; /* up to a NULL */
    char *out;
    size_t size;
    bool is_required;
};

static kvb_status take_registration_text(
    const struct reading *reading, const char *name, struct json_object *value,
    const struct text_field *field)
{
    char why[64];

    if (kvb_json_text(value, field->out, field->size) != KVB_OK ||
        !kvb_utf8_is_plain(field->out)) { /* json-c accepts overlong UTF-8 */
        /* Nothing that was refused stays in the answer. */
        field->out[0] = '\0';
        (void)snprintf(
            why, sizeof why, "expected a string of at most %zu printable bytes", field->size - 1);
        return refuse_field(reading, name, why);
    }
    if (field->is_required && field->out[0] == '\0') {
        return refuse_field(reading, name, "is empty");
    }
    return KVB_OK;
}

static kvb_status
read_registration_text(const struct reading *reading, const struct text_field *field)
{
    for (size_t i = 0; field->names[i]; i++) {
        struct json_object *value = kvb_json_member(reading->root, field->names[i]);
        if (value) {
            return take_registration_text(reading, field->names[i], value, field);
        }
    }
    return field->is_required ? missing(reading, field->names[0]) : KVB_OK;
}

/* ---- Numbers ---- */

/* json-c replaces a wider number by the nearest 64-bit one, which is also out of range here. */
static kvb_status read_registration_number(
    const struct reading *reading, const char *name, uint64_t min, uint64_t max, bool *out_is_there,
    uint64_t *out_number)
{
    struct json_object *value = kvb_json_member(reading->root, name);
    uint64_t number = 0;
    char why[96];

    *out_is_there = value != NULL;
    if (!value) {
        return KVB_OK;
    }
    if (kvb_json_number(value, max, &number) != KVB_OK || number < min) {
        (void)snprintf(
            why, sizeof why, "expected a whole number from %" PRIu64 " to %" PRIu64, min, max);
        return refuse_field(reading, name, why);
    }
    *out_number = number;
    return KVB_OK;
}

static kvb_status
read_registered_block_size(const struct reading *reading, struct kvb_registration *out)
{
    bool is_there = false;
    uint64_t block_size = 0;

    KVB_TRY(read_registration_number(
        reading, "block_size", 1, kvb_max_block_tokens, &is_there, &block_size));
    out->block_size = (uint32_t)block_size;
    return is_there ? KVB_OK : missing(reading, "block_size");
}

static kvb_status read_registered_drop(const struct reading *reading, struct kvb_registration *out)
{
    bool is_there = false;
    uint64_t drop = 0;

    KVB_TRY(read_registration_number(
        reading, "speculative_drop", 0, kvb_max_speculative_drop, &is_there, &drop));
    out->speculative_drop = is_there ? (uint32_t)drop : KVB_DROP_DETECT;
    return KVB_OK;
}

static kvb_status read_registered_rank(const struct reading *reading, struct kvb_registration *out)
{
    uint64_t dp_rank = 0;

    KVB_TRY(read_registration_number(
        reading, "dp_rank", 0, kvb_max_ranks - 1, &out->has_rank, &dp_rank));
    out->dp_rank = (uint32_t)dp_rank;
    return KVB_OK;
}

/* ---- The id ---- */

static bool is_decimal(const char *text, uint64_t *out_number)
{
    enum { max_digits = 19 }; /* of 2^63-1 */
    const size_t len = strlen(text);

    if (len == 0 || len > max_digits || strspn(text, "0123456789") != len) {
        return false;
    }
    *out_number = strtoull(text, NULL, 10);
    return *out_number <= INT64_MAX;
}

static kvb_status read_registered_name(const struct reading *reading, struct kvb_registration *out)
{
    const struct text_field field = { .names = { "instance_id" },
                                      .out = out->instance,
                                      .size = sizeof out->instance,
                                      .is_required = true };
    static const uint64_t below_2_53 = (UINT64_C(1) << 53) - 1;

    KVB_TRY(read_registration_text(reading, &field));
    out->is_instance_text = true;
    out->has_worker_id = true;
    /* Below 2^53, so that readers with doubles do not round it. */
    if (!is_decimal(out->instance, &out->worker_id)) {
        out->worker_id = kvb_hash64(kvb_span_of(out->instance), 0) & below_2_53;
    }
    return KVB_OK;
}

static kvb_status
read_registered_instance(const struct reading *reading, struct kvb_registration *out)
{
    struct json_object *value = kvb_json_member(reading->root, "instance_id");

    if (json_object_is_type(value, json_type_string)) {
        return read_registered_name(reading, out);
    }
    KVB_TRY(read_registration_number(
        reading, "instance_id", 0, INT64_MAX, &out->has_worker_id, &out->worker_id));
    if (out->has_worker_id) {
        (void)snprintf(out->instance, sizeof out->instance, "%" PRIu64, out->worker_id);
    }
    return KVB_OK;
}

/* ---- Unsupported fields ---- */

static kvb_status check_foreign(const struct reading *reading)
{
    static const char *const salts[] = { "additional_salt", "additionalsalt" };
    char tenant[kvb_model_bytes + 1] = "";
    const struct text_field field = { .names = { "tenant_id" },
                                      .out = tenant,
                                      .size = sizeof tenant };

    for (size_t i = 0; i < KVB_COUNT_OF(salts); i++) {
        char salt[kvb_model_bytes + 1] = "";
        const struct text_field salted = { .names = { salts[i] },
                                           .out = salt,
                                           .size = sizeof salt };
        KVB_TRY(read_registration_text(reading, &salted));
        /* An empty salt is what clients send that have none. */
        if (salt[0] != '\0') {
            return refuse_field(
                reading, salts[i], "a salt for all blocks of a worker is not supported");
        }
    }
    KVB_TRY(read_registration_text(reading, &field));
    if (tenant[0] != '\0' && strcmp(tenant, "default") != 0) {
        return refuse_field(
            reading, "tenant_id", "only \"default\": give each tenant a component of its own");
    }
    return KVB_OK;
}

/* ---- Bodies ---- */

static kvb_status
read_registered_model(const struct reading *reading, bool is_required, struct kvb_registration *out)
{
    const struct text_field field = { .names = { "model_name", "modelname", "model" },
                                      .out = out->model,
                                      .size = sizeof out->model,
                                      .is_required = is_required };

    return read_registration_text(reading, &field);
}

static kvb_status read_registered_role(const struct reading *reading, struct kvb_registration *out)
{
    char role[16] = "";
    const struct text_field field = { .names = { "role" }, .out = role, .size = sizeof role };

    KVB_TRY(read_registration_text(reading, &field));
    if (role[0] != '\0' && kvb_worker_role_find(role, &out->facts.role) != KVB_OK) {
        return refuse_field(reading, "role", "expected prefill, decode or both");
    }
    return KVB_OK;
}

static kvb_status
read_registered_labels(const struct reading *reading, struct kvb_registration *out)
{
    struct json_object *labels = kvb_json_member(reading->root, "labels");

    if (labels) {
        const char *text = json_object_to_json_string_ext(labels, JSON_C_TO_STRING_PLAIN);
        KVB_TRY(text ? KVB_OK : KVB_NO_MEMORY);
        KVB_TRY(kvb_labels_json_read(kvb_span_of(text), &out->facts.labels, reading->detail));
    }
    return kvb_worker_facts_settle(&out->facts, reading->detail) == KVB_OK ? KVB_OK : KVB_NOT_FOUND;
}

static kvb_status read_registration(const struct reading *reading, struct kvb_registration *out)
{
    const struct text_field texts[] = {
        { { "endpoint" }, out->endpoint, sizeof out->endpoint, true },
        { { "replay_endpoint" }, out->replay_endpoint, sizeof out->replay_endpoint, false },
        { { "lora_name" }, out->lora, sizeof out->lora, false },
        { { "topic" }, out->topic, sizeof out->topic, false },
        { { "address" }, out->facts.address, sizeof out->facts.address, false },
        { { "tokenize" }, out->facts.tokenize, sizeof out->facts.tokenize, false },
    };

    KVB_TRY(read_registered_instance(reading, out));
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        KVB_TRY(read_registration_text(reading, &texts[i]));
    }
    if (!kvb_worker_tokenize_is_valid(out->facts.tokenize)) {
        return refuse_field(
            reading, "tokenize", "expected http://host:port, without a user, a query or a slash");
    }
    KVB_TRY(read_registered_model(reading, true, out));
    KVB_TRY(read_registered_block_size(reading, out));
    KVB_TRY(read_registered_drop(reading, out));
    KVB_TRY(read_registered_rank(reading, out));
    KVB_TRY(read_registered_role(reading, out));
    /* Labels may repeat address and role, so these two come first. */
    KVB_TRY(read_registered_labels(reading, out));
    return check_foreign(reading);
}

static kvb_status read_farewell(const struct reading *reading, struct kvb_registration *out)
{
    KVB_TRY(read_registered_instance(reading, out));
    if (!out->has_worker_id) {
        return missing(reading, "instance_id");
    }
    KVB_TRY(read_registered_model(reading, false, out));
    return read_registered_rank(reading, out);
}

static kvb_status
parse_registration(kvb_span json, struct json_object **out_root, struct kvb_detail *detail)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    kvb_status status = KVB_TOO_LARGE;

    if (json.len <= kvb_max_register_bytes) {
        status = kvb_json_parse(json, &budget, out_root);
    }
    if (status == KVB_TOO_LARGE) {
        kvb_detail_set(
            detail, "body: at most %d bytes, %d values, %d levels", kvb_max_register_bytes,
            max_values, max_depth);
    } else if (status == KVB_BAD_INPUT) {
        kvb_detail_set(detail, "body: no JSON");
    }
    return status;
}

static kvb_status decode_registration(
    kvb_span json, kvb_status (*read)(const struct reading *reading, struct kvb_registration *out),
    struct kvb_registration *out_registration, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_registration registration = { 0 };

    KVB_TRY(parse_registration(json, &root, detail));
    const struct reading reading = { .root = root, .detail = detail };
    if (!json_object_is_type(root, json_type_object)) {
        return refuse_field(&reading, "body", "expected an object");
    }
    KVB_TRY(read(&reading, &registration));
    *out_registration = registration;
    return KVB_OK;
}

kvb_status kvb_register_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail)
{
    return decode_registration(json, read_registration, out_registration, detail);
}

static kvb_status read_drain(const struct reading *reading, struct kvb_registration *out)
{
    KVB_TRY(read_registration_number(
        reading, "worker_id", 0, INT64_MAX, &out->has_worker_id, &out->worker_id));
    if (!out->has_worker_id) {
        return missing(reading, "worker_id");
    }
    return read_registered_rank(reading, out);
}

kvb_status kvb_drain_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail)
{
    return decode_registration(json, read_drain, out_registration, detail);
}

kvb_status kvb_unregister_json_decode(
    kvb_span json, struct kvb_registration *out_registration, struct kvb_detail *detail)
{
    return decode_registration(json, read_farewell, out_registration, detail);
}
