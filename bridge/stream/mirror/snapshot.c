#include "stream/mirror/inside.h"
#include "stream/mirror/shown.h"

/* A snapshot of what readers of engines have been shown: a picture of that, as events of an engine.
 * Where readers are to start over meanwhile, it contains what they no longer have. */

kvb_status kvb_shown_begin(struct kvb_shown *shown)
{
    KVB_TRY(kvb_picture_begin(
        kvb_shown_snapshot(shown), kvb_shown_mirror(shown), KVB_PICTURE_FROM_ROOTS,
        kvb_picture_shown));
    kvb_shown_snapshot(shown)->starts = kvb_shown_starts(shown);
    return KVB_OK;
}

void kvb_shown_end(struct kvb_shown *shown)
{
    kvb_picture_end(kvb_shown_snapshot(shown));
}

kvb_status kvb_shown_step(
    struct kvb_shown *shown, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    bool *out_is_done)
{
    struct kvb_picture *snapshot = kvb_shown_snapshot(shown);
    const size_t begun = out->hash_count;
    size_t looks = max_looks;
    uint32_t id = KVB_NO_ID;

    if (snapshot->starts != kvb_shown_starts(shown)) {
        return KVB_CLOSED;
    }
    while (out->hash_count - begun < max_blocks) {
        KVB_TRY(kvb_picture_next(snapshot, kvb_shown_mirror(shown), &looks, &id));
        if (id == KVB_NO_ID) {
            break;
        }
        KVB_TRY(kvb_shown_write_stored(shown, id, out));
    }
    *out_is_done = kvb_picture_is_done(snapshot, kvb_shown_mirror(shown));
    return KVB_OK;
}
