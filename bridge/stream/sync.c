#include "stream/inside.h"

/* Entries looked at for each block that may be found.  Most entries of a mirror are listed, but a
 * request for few buckets finds few. */
enum { looks_a_block = 4 };

void kvb_sync_job_begin(
    struct kvb_sync_job *job, const struct kvb_stream *stream,
    const struct kvb_sync_request *request)
{
    *job = (struct kvb_sync_job){ .request = *request,
                                  .epoch = stream->epoch,
                                  .barrier_id = stream->last_id,
                                  .next_id = request->from_id,
                                  .picture = { .lists = kvb_picture_all_lists } };
}

/* The part of the range that is still kept.  The reply stands as GONE before. */
static kvb_status step_range(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *reply)
{
    uint64_t first = 0;
    uint64_t last = 0;
    const bool is_kept = !stream->is_withdrawn && stream->log &&
                         kvb_event_log_range(stream->log, &first, &last) && job->next_id >= first;
    const uint64_t to_id = job->request.to_id < last ? job->request.to_id : last;

    if (job->next_id > stream->last_id) {
        reply->answer = KVB_SYNC_TOO_NEW;
        return KVB_OK;
    }
    if (!is_kept || to_id < job->next_id) {
        return KVB_OK;
    }
    KVB_TRY(
        kvb_event_log_read(stream->log, job->next_id, to_id, max_blocks, events, &job->next_id));
    reply->answer = KVB_SYNC_EVENTS;
    reply->events = events;
    reply->is_last = job->next_id > to_id;
    return KVB_OK;
}

static kvb_status step_snapshot(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *reply)
{
    const struct kvb_bucket_set *buckets = job->request.has_buckets ? &job->request.buckets : NULL;
    const struct kvb_picture_part part = {
        .max_blocks = max_blocks,
        .max_looks = buckets ? looks_a_block * max_blocks : max_blocks,
        .buckets = buckets,
    };
    bool is_done = stream->is_withdrawn; /* readers treat it as empty */

    if (!is_done) {
        KVB_TRY(kvb_picture_step(&job->picture, stream->mirror, &part, events, &is_done));
    }
    for (size_t i = 0; i < events->event_count; i++) {
        events->events[i].event_id = i; /* ids of a message must be consecutive */
    }
    reply->answer = KVB_SYNC_BLOCKS;
    reply->events = events;
    reply->is_last = is_done;
    return KVB_OK;
}

kvb_status kvb_sync_job_step(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *out_reply)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    /* Ranges, digests and buckets belong to the requester's epoch; a snapshot of all blocks serves
     * any epoch. */
    const bool is_bound = job->request.kind != KVB_SYNC_SNAPSHOT || job->request.has_buckets;
    const bool is_void = !kvb_epoch_is_same(&job->epoch, &stream->epoch) ||
                         (is_bound && !kvb_epoch_is_same(&job->request.epoch, &stream->epoch));
    struct kvb_sync_reply reply = { .worker_id = stream->options.worker_id,
                                    .dp_rank = stream->options.dp_rank,
                                    .epoch = stream->epoch,
                                    .answer = KVB_SYNC_GONE,
                                    .chunk = job->chunk++,
                                    .is_last = true,
                                    .barrier_id = job->barrier_id,
                                    .last_id = stream->last_id,
                                    .digest_seed = stream->digest_seed };

    kvb_router_batch_reset(events);
    events->worker_id = stream->options.worker_id;
    events->dp_rank = stream->options.dp_rank;
    events->has_epoch = true;
    events->epoch = stream->epoch;
    if (!is_void) {
        switch (job->request.kind) {
        case KVB_SYNC_RANGE:
            KVB_TRY(step_range(job, stream, max_blocks, events, &reply));
            break;
        case KVB_SYNC_SNAPSHOT:
            KVB_TRY(step_snapshot(job, stream, max_blocks, events, &reply));
            break;
        case KVB_SYNC_DIGEST:
            reply.answer = KVB_SYNC_SUMS;
            for (size_t tier = 0; tier < KVB_LIST_COUNT && !stream->is_withdrawn; tier++) {
                if (counts->held[tier] > 0) {
                    reply.sums[tier] =
                        kvb_mirror_digest(stream->mirror, (enum kvb_tier)tier)->buckets;
                }
            }
            break;
        case KVB_SYNC_KIND_COUNT:
            break;
        }
    }
    *out_reply = reply;
    return KVB_OK;
}
