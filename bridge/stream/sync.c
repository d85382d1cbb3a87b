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

static void finish_reply(struct kvb_sync_reply *reply, enum kvb_sync_answer answer)
{
    reply->answer = answer;
    reply->is_last = true;
    reply->events = NULL;
}

/* ---- Range ---- */

/* Finds the part of the range that is still kept, or the answer when none is. */
static bool has_range(
    const struct kvb_stream *stream, const struct kvb_sync_job *job, uint64_t *out_to_id,
    enum kvb_sync_answer *out_why_not)
{
    uint64_t first = 0;
    uint64_t last = 0;

    *out_why_not = KVB_SYNC_GONE;
    if (job->next_id > stream->last_id) {
        *out_why_not = KVB_SYNC_TOO_NEW;
        return false;
    }
    if (stream->is_withdrawn || !stream->log || !kvb_event_log_range(stream->log, &first, &last) ||
        job->next_id < first) {
        return false;
    }
    *out_to_id = job->request.to_id < last ? job->request.to_id : last;
    return *out_to_id >= job->next_id;
}

static kvb_status step_range(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *reply)
{
    uint64_t to_id = 0;
    enum kvb_sync_answer why_not = KVB_SYNC_GONE;

    if (!has_range(stream, job, &to_id, &why_not)) {
        finish_reply(reply, why_not);
        return KVB_OK;
    }
    KVB_TRY(
        kvb_event_log_read(stream->log, job->next_id, to_id, max_blocks, events, &job->next_id));
    reply->answer = KVB_SYNC_EVENTS;
    reply->is_last = job->next_id > to_id;
    return KVB_OK;
}

/* ---- Snapshot ---- */

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
    reply->is_last = is_done;
    return KVB_OK;
}

/* ---- Digest ---- */

static kvb_status step_digest(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *reply)
{
    (void)job;
    (void)max_blocks;
    (void)events;
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);

    finish_reply(reply, KVB_SYNC_SUMS);
    for (size_t tier = 0; tier < KVB_LIST_COUNT && !stream->is_withdrawn; tier++) {
        if (counts->held[tier] > 0) {
            reply->sums[tier] = kvb_mirror_digest(stream->mirror, (enum kvb_tier)tier)->buckets;
        }
    }
    return KVB_OK;
}

/* ---- All kinds of request ---- */

typedef kvb_status (*step_of_kind)(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *reply);

static const step_of_kind steps[KVB_SYNC_KIND_COUNT] = {
    [KVB_SYNC_RANGE] = step_range,
    [KVB_SYNC_SNAPSHOT] = step_snapshot,
    [KVB_SYNC_DIGEST] = step_digest,
};

/* Ranges, digests and buckets belong to the requester's epoch; a snapshot of all blocks serves any
 * epoch. */
static bool is_void(const struct kvb_sync_job *job, const struct kvb_stream *stream)
{
    const bool is_bound = job->request.kind != KVB_SYNC_SNAPSHOT || job->request.has_buckets;

    return !kvb_epoch_is_same(&job->epoch, &stream->epoch) ||
           (is_bound && !kvb_epoch_is_same(&job->request.epoch, &stream->epoch));
}

static void sign(const struct kvb_stream *stream, struct kvb_router_batch *events)
{
    events->worker_id = stream->options.worker_id;
    events->dp_rank = stream->options.dp_rank;
    events->has_epoch = true;
    events->epoch = stream->epoch;
}

kvb_status kvb_sync_job_step(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *out_reply)
{
    struct kvb_sync_reply reply = { .worker_id = stream->options.worker_id,
                                    .dp_rank = stream->options.dp_rank,
                                    .epoch = stream->epoch,
                                    .chunk = job->chunk++,
                                    .barrier_id = job->barrier_id,
                                    .last_id = stream->last_id,
                                    .digest_seed = stream->digest_seed,
                                    .events = events };

    kvb_router_batch_reset(events);
    sign(stream, events);
    if (is_void(job, stream)) {
        finish_reply(&reply, KVB_SYNC_GONE);
    } else {
        KVB_TRY(steps[job->request.kind](job, stream, max_blocks, events, &reply));
    }
    *out_reply = reply;
    return KVB_OK;
}
