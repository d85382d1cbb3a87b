#include "core/own.h"
#include "core/utf8.h"
#include "target.h"
#include "wire/router/heartbeat.h"

#include <stdlib.h>
#include <string.h>

enum { max_json_bytes = 64 << 10 };

static bool is_same(const struct kvb_heartbeat *a, const struct kvb_heartbeat *b)
{
    return a->worker_id == b->worker_id && a->dp_rank == b->dp_rank &&
           kvb_epoch_is_same(&a->epoch, &b->epoch) && a->last_id == b->last_id &&
           a->epoch_first_id == b->epoch_first_id && a->state == b->state &&
           a->reason == b->reason && a->hashes == b->hashes && a->formats == b->formats &&
           strcmp(a->model, b->model) == 0 && a->block_size == b->block_size &&
           a->lookahead == b->lookahead && a->shape_count == b->shape_count &&
           a->period_ms == b->period_ms && a->publisher == b->publisher && a->is_bye == b->is_bye &&
           a->has_missing_at_most == b->has_missing_at_most &&
           a->missing_at_most == b->missing_at_most && a->doubtful == b->doubtful &&
           memcmp(a->tiers, b->tiers, sizeof a->tiers) == 0 &&
           kvb_worker_facts_are_same(&a->facts, &b->facts) &&
           kvb_served_names_are_same(&a->names, &b->names);
}

/* A role or an address among the labels is also in the field of its own, whoever wrote the message.
 */
static bool are_settled(const struct kvb_worker_facts *facts)
{
    const char *address = kvb_labels_find(&facts->labels, "address");
    const char *role = kvb_labels_find(&facts->labels, "role");
    enum kvb_worker_role found = KVB_ROLE_NONE;

    return kvb_utf8_is_plain(facts->address) &&
           (!address || address[0] == '\0' || facts->address[0] != '\0') &&
           (!role || kvb_worker_role_find(role, &found) != KVB_OK || facts->role != KVB_ROLE_NONE);
}

/* An accepted heartbeat is encoded and decodes to the same, and can be written as JSON. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_heartbeat beat = { 0 };
    struct kvb_heartbeat again = { 0 };

    if (kvb_heartbeat_decode((kvb_span){ data, size }, &beat) != KVB_OK) {
        return 0;
    }
    kvb_buf_init(&buf, max_json_bytes);
    check(
        are_settled(&beat.facts) && kvb_heartbeat_encode(&beat, &buf) == KVB_OK &&
        kvb_heartbeat_decode(kvb_buf_span(&buf), &again) == KVB_OK && is_same(&beat, &again));
    kvb_buf_reset(&buf);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);
    kvb_heartbeat_json_write(&beat, &json);
    check(json.status == KVB_OK);
    return 0;
}
