#include "core/limits.h"
#include "core/own.h"
#include "ext_proc.pb-c.h"
#include "target.h"
#include "wire/gateway/messages.h"

#include <stdlib.h>
#include <string.h>

typedef ExtProc__ProcessingRequest Request; /* the names that protoc-c makes are long */

static void drop_request(Request **request)
{
    ext_proc__processing_request__free_unpacked(*request, NULL);
}

static bool is_same_bytes(kvb_span ours, ProtobufCBinaryData theirs)
{
    return ours.len == theirs.len &&
           (ours.len == 0 || memcmp(ours.data, theirs.data, ours.len) == 0);
}

static void compare_headers(kvb_span ours, const ExtProc__HeaderMap *theirs)
{
    static const char *const names[] = { ":path", "x-request-id", "" };
    kvb_span values[3];
    bool has_more = false;

    /* protobuf-c accepts fields with the number 0, which we refuse as other libraries do. */
    if (kvb_ext_proc_headers_find(ours, names, 3, values, &has_more) != KVB_OK || has_more) {
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        const ExtProc__HeaderValue *found = NULL;
        for (size_t j = 0; theirs && !found && j < theirs->n_headers; j++) {
            found = strcmp(theirs->headers[j]->key, names[i]) == 0 ? theirs->headers[j] : NULL;
        }
        check(!found == !values[i].data);
        if (found && found->raw_value.len > 0) {
            check(is_same_bytes(values[i], found->raw_value));
        } else if (found) {
            check(kvb_span_is(values[i], found->value));
        }
    }
}

static const ExtProc__Value *find_value(const ExtProc__Struct *fields, const char *key)
{
    for (size_t i = fields ? fields->n_fields : 0; i > 0; i--) {
        if (strcmp(fields->fields[i - 1]->key, key) == 0) {
            return fields->fields[i - 1]->value;
        }
    }
    return NULL;
}

/* How many endpoints protobuf-c's value has: parts between commas that are not only blanks. */
static size_t count_in_text(const char *text)
{
    size_t count = 0;

    while (*text) {
        const size_t len = strcspn(text, ",");
        count += strspn(text, " \t") < len;
        text += len + (text[len] == ',');
    }
    return count;
}

static size_t count_endpoints(const ExtProc__Value *value)
{
    size_t count = 0;

    if (value && value->kind_case == EXT_PROC__VALUE__KIND_STRING_VALUE) {
        return count_in_text(value->string_value);
    }
    if (value && value->kind_case == EXT_PROC__VALUE__KIND_LIST_VALUE) {
        for (size_t i = 0; i < value->list_value->n_values; i++) {
            const ExtProc__Value *item = value->list_value->values[i];
            if (item->kind_case == EXT_PROC__VALUE__KIND_STRING_VALUE) {
                count += count_in_text(item->string_value);
            }
        }
    }
    return count;
}

static void compare_hint(kvb_span metadata, const ExtProc__Metadata *theirs)
{
    static const char space[] = "envoy.lb.subset_hint";
    static const char key[] = "x-gateway-destination-endpoint-subset";
    const ExtProc__Struct *fields = NULL;
    struct kvb_endpoint_hint hint;
    kvb_span value;
    kvb_span endpoint;

    for (size_t i = 0; theirs && i < theirs->n_filter_metadata; i++) {
        if (strcmp(theirs->filter_metadata[i]->key, space) == 0) {
            fields = theirs->filter_metadata[i]->value; /* the last one counts */
        }
    }
    kvb_status status = kvb_ext_proc_metadata_find(metadata, space, key, &value);
    check(status != KVB_NOT_FOUND || !find_value(fields, key));
    if (status != KVB_OK || kvb_endpoint_hint_of(value, &hint) != KVB_OK) {
        return;
    }
    size_t count = 0;
    while ((status = kvb_endpoint_hint_next(&hint, &endpoint)) == KVB_OK) {
        check(endpoint.len > 0 && !memchr(endpoint.data, ',', endpoint.len));
        count++;
    }
    if (status == KVB_BAD_INPUT) {
        return;
    }
    const size_t expected = count_endpoints(find_value(fields, key));
    check(
        count ==
        (expected < kvb_max_gateway_hint_endpoints ? expected : kvb_max_gateway_hint_endpoints));
}

static void compare(const struct kvb_ext_proc_request *ours, const Request *theirs)
{
    switch (ours->part) {
    case KVB_PART_REQUEST_HEADERS:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_REQUEST_HEADERS);
        check(ours->end_of_stream == theirs->request_headers->end_of_stream);
        compare_headers(ours->headers, theirs->request_headers->headers);
        break;
    case KVB_PART_RESPONSE_HEADERS:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_RESPONSE_HEADERS);
        check(ours->end_of_stream == theirs->response_headers->end_of_stream);
        compare_headers(ours->headers, theirs->response_headers->headers);
        break;
    case KVB_PART_REQUEST_BODY:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_REQUEST_BODY);
        check(ours->end_of_stream == theirs->request_body->end_of_stream);
        check(is_same_bytes(ours->body, theirs->request_body->body));
        break;
    case KVB_PART_RESPONSE_BODY:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_RESPONSE_BODY);
        check(ours->end_of_stream == theirs->response_body->end_of_stream);
        check(is_same_bytes(ours->body, theirs->response_body->body));
        break;
    case KVB_PART_REQUEST_TRAILERS:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_REQUEST_TRAILERS);
        compare_headers(ours->headers, theirs->request_trailers->trailers);
        break;
    case KVB_PART_RESPONSE_TRAILERS:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST_RESPONSE_TRAILERS);
        compare_headers(ours->headers, theirs->response_trailers->trailers);
        break;
    default:
        check(theirs->request_case == EXT_PROC__PROCESSING_REQUEST__REQUEST__NOT_SET);
    }
    check(ours->is_observed == theirs->observability_mode);
    check(ours->has_modes == (theirs->protocol_config != NULL));
    if (ours->has_modes && ours->request_body_mode != KVB_MODE_UNKNOWN) {
        check((int)ours->request_body_mode == (int)theirs->protocol_config->request_body_mode);
    }
    compare_hint(ours->metadata, theirs->metadata_context);
}

/* What both read, they read alike; and nothing breaks our reader. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { ":path" };
    const kvb_span message = { data, size };
    struct kvb_ext_proc_request request = { 0 };
    struct kvb_endpoint_hint hint;
    kvb_span value;
    kvb_span endpoint;
    bool has_more = false;

    (void)!kvb_health_request_decode(message, &value);
    if (kvb_endpoint_hint_of(message, &hint) == KVB_OK) {
        while (kvb_endpoint_hint_next(&hint, &endpoint) == KVB_OK) {
            check(endpoint.data >= data && endpoint.data + endpoint.len <= data + size);
        }
    }
    if (kvb_ext_proc_request_decode(message, &request) != KVB_OK) {
        return 0;
    }
    (void)!kvb_ext_proc_headers_find(request.headers, names, 1, &value, &has_more);
    (void)!kvb_ext_proc_metadata_find(request.metadata, "a", "b", &value);
    KVB_OWN(drop_request) Request *theirs = ext_proc__processing_request__unpack(NULL, size, data);
    /* A shorter message: protobuf-c has joined parts that came twice, or cut a text at a NUL. */
    if (theirs && ext_proc__processing_request__get_packed_size(theirs) == size) {
        compare(&request, theirs);
    }
    return 0;
}
