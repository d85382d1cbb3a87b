#include "wire/query/forward.h"

#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <string.h>

enum { max_depth = 8, max_containers = 64, max_values = 256 };

/* ---- Reading ---- */

/* A required text of an object. */
struct forward_field {
    const char *name;
    char *out;
    size_t size;
};

static kvb_status parse_forward(kvb_span json, struct json_object **out_root)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };

    if (json.len > kvb_max_forward_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_json_parse(json, &budget, out_root));
    return json_object_is_type(*out_root, json_type_object) ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status
read_forward_texts(struct json_object *root, const struct forward_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct json_object *value = kvb_json_member(root, fields[i].name);
        KVB_TRY(value ? kvb_json_text(value, fields[i].out, fields[i].size) : KVB_BAD_INPUT);
    }
    return KVB_OK;
}

static bool is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

kvb_status kvb_forward_offer_decode(kvb_span json, struct kvb_forward_offer *out_offer)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_forward_offer offer = { .ranks = 0 };
    const struct forward_field fields[] = {
        { "bridge", offer.bridge, sizeof offer.bridge },
        { "bridge_id", offer.bridge_id, sizeof offer.bridge_id },
        { "challenge", offer.challenge, sizeof offer.challenge },
    };

    KVB_TRY(parse_forward(json, &root));
    KVB_TRY(read_forward_texts(root, fields, KVB_COUNT_OF(fields)));
    KVB_TRY(kvb_json_number(kvb_json_member(root, "ranks"), UINT32_MAX, &offer.ranks));
    KVB_TRY(kvb_json_number(kvb_json_member(root, "held"), UINT32_MAX, &offer.held));
    /* `bridge` becomes a part of a subject. */
    if (!is_hex(offer.bridge, kvb_forward_bridge_bytes - 1) ||
        !is_hex(offer.challenge, kvb_forward_challenge_bytes - 1)) {
        return KVB_BAD_INPUT;
    }
    *out_offer = offer;
    return KVB_OK;
}

kvb_status kvb_forward_request_decode(kvb_span json, struct kvb_forward_request *out_request)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    const struct forward_field fields[] = {
        { "path", out_request->path, sizeof out_request->path },
        { "challenge", out_request->challenge, sizeof out_request->challenge },
        { "proof", out_request->proof, sizeof out_request->proof },
        { "body", out_request->body, sizeof out_request->body },
    };

    KVB_TRY(parse_forward(json, &root));
    return read_forward_texts(root, fields, KVB_COUNT_OF(fields));
}

kvb_status kvb_forward_answer_decode(kvb_span json, struct kvb_forward_answer *out_answer)
{
    enum { min_status = 200, max_status = 599 };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    const struct forward_field body = { "body", out_answer->body, sizeof out_answer->body };
    uint64_t status = 0;

    KVB_TRY(parse_forward(json, &root));
    KVB_TRY(read_forward_texts(root, &body, 1));
    KVB_TRY(kvb_json_number(kvb_json_member(root, "status"), max_status, &status));
    if (status < min_status) {
        return KVB_BAD_INPUT;
    }
    out_answer->status = (unsigned)status;
    return KVB_OK;
}

/* ---- Writing ---- */

kvb_status kvb_forward_offer_encode(const struct kvb_forward_offer *offer, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge", offer->bridge);
    kvb_json_write_pair_text(&json, "bridge_id", offer->bridge_id);
    kvb_json_write_pair_u64(&json, "ranks", offer->ranks);
    kvb_json_write_pair_u64(&json, "held", offer->held);
    kvb_json_write_pair_text(&json, "challenge", offer->challenge);
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status
kvb_forward_request_encode(const struct kvb_forward_request *request, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "path", request->path);
    kvb_json_write_pair_text(&json, "challenge", request->challenge);
    kvb_json_write_pair_text(&json, "proof", request->proof);
    kvb_json_write_pair_text(&json, "body", request->body);
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_forward_answer_encode(unsigned status, kvb_span body, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "status", status);
    kvb_json_write_key(&json, "body");
    kvb_json_write_span(&json, body);
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status
kvb_forward_text(const char *bridge, const struct kvb_forward_request *request, struct kvb_buf *out)
{
    return kvb_buf_append_format(
        out, "%s\n%s\n%s\n%s\n", bridge, request->challenge, request->path, request->body);
}
