#include "core/limits.h"
#include "core/own.h"
#include "target.h"
#include "wire/json/writer.h"
#include "wire/query/registration.h"
#include "wire/router/heartbeat.h"

#include <stdlib.h>
#include <string.h>

/* The registration in the form that one of the two kinds of senders uses. */
static kvb_span write(const struct kvb_registration *who, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    if (who->has_worker_id) {
        kvb_json_write_pair_text(&json, "instance_id", who->instance);
    }
    kvb_json_write_pair_text(&json, "endpoint", who->endpoint);
    kvb_json_write_pair_text(&json, "replay_endpoint", who->replay_endpoint);
    kvb_json_write_pair_text(&json, "modelname", who->model);
    kvb_json_write_pair_text(&json, "lora_name", who->lora);
    kvb_json_write_pair_text(&json, "topic", who->topic);
    kvb_json_write_pair_text(&json, "address", who->facts.address);
    kvb_json_write_pair_text(&json, "role", kvb_worker_role_name(who->facts.role));
    kvb_json_write_key(&json, "labels");
    kvb_labels_json_write(&who->facts.labels, &json);
    kvb_json_write_pair_u64(&json, "block_size", who->block_size);
    if (who->has_rank) {
        kvb_json_write_pair_u64(&json, "dp_rank", who->dp_rank);
    }
    kvb_json_write_end(&json, '}');
    check(json.status == KVB_OK);
    return kvb_buf_span(out);
}

static bool is_same(const struct kvb_registration *a, const struct kvb_registration *b)
{
    return a->has_worker_id == b->has_worker_id && a->worker_id == b->worker_id &&
           a->has_rank == b->has_rank && a->dp_rank == b->dp_rank &&
           a->block_size == b->block_size && strcmp(a->instance, b->instance) == 0 &&
           strcmp(a->endpoint, b->endpoint) == 0 &&
           strcmp(a->replay_endpoint, b->replay_endpoint) == 0 && strcmp(a->topic, b->topic) == 0 &&
           strcmp(a->model, b->model) == 0 && strcmp(a->lora, b->lora) == 0 &&
           kvb_worker_facts_are_same(&a->facts, &b->facts);
}

static void check_farewell(kvb_span json)
{
    struct kvb_registration who = { 0 };
    struct kvb_detail why = { "" };
    const kvb_status status = kvb_unregister_json_decode(json, &who, &why);

    check(status == KVB_OK ? who.has_worker_id : why.text[0] != '\0');
}

/* An accepted registration is written and reads as the same, and its numbers are in the bridge's
 * ranges; for a refused one there is a sentence. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_registration who = { 0 };
    struct kvb_registration again = { 0 };
    struct kvb_detail why = { "" };
    const kvb_span json = { data, size };

    check_farewell(json);
    if (kvb_register_json_decode(json, &who, &why) != KVB_OK) {
        check(why.text[0] != '\0' && who.endpoint[0] == '\0');
        return 0;
    }
    check(
        who.worker_id <= INT64_MAX && who.dp_rank < kvb_max_ranks && who.block_size != 0 &&
        who.endpoint[0] != '\0' && who.model[0] != '\0');
    kvb_buf_init(&buf, kvb_max_register_bytes);
    check(
        kvb_register_json_decode(write(&who, &buf), &again, &why) == KVB_OK &&
        is_same(&who, &again));
    return 0;
}
