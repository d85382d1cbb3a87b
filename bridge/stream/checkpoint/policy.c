#include "stream/checkpoint/policy.h"

#include "core/clock.h"

static const uint64_t after_give_up_ns = KVB_NS_PER_S;

/* ---- What is on the disk ---- */

static void note_contents(struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream)
{
    (void)kvb_stream_last_seq(stream, &policy->seq); /* cannot fail: a saved stream has one */
    policy->has_base = kvb_stream_has_base(stream);
}

void kvb_checkpoint_restored(struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream)
{
    policy->is_on_disk = true;
    policy->is_being_written = false;
    policy->epoch_on_disk = kvb_stream_epoch(stream);
    note_contents(policy, stream);
}

bool kvb_checkpoint_becomes_void(struct kvb_checkpoint_policy *policy)
{
    const bool was_there = policy->is_on_disk || policy->is_being_written;

    policy->is_on_disk = false;
    policy->is_being_written = false;
    return was_there;
}

bool kvb_checkpoint_enters_epoch(struct kvb_checkpoint_policy *policy, const kvb_epoch *epoch)
{
    const bool is_other =
        (policy->is_on_disk && !kvb_epoch_is_same(&policy->epoch_on_disk, epoch)) ||
        (policy->is_being_written && !kvb_epoch_is_same(&policy->epoch_written, epoch));

    return is_other && kvb_checkpoint_becomes_void(policy);
}

/* ---- Making ---- */

bool kvb_checkpoint_is_due(
    const struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream, uint64_t now_ns)
{
    const kvb_epoch epoch = kvb_stream_epoch(stream);
    uint64_t seq = 0;

    return now_ns >= policy->next_ns && kvb_stream_last_seq(stream, &seq) &&
           (!policy->is_on_disk || seq != policy->seq ||
            kvb_stream_has_base(stream) != policy->has_base ||
            !kvb_epoch_is_same(&epoch, &policy->epoch_on_disk));
}

kvb_status kvb_checkpoint_begin(
    struct kvb_checkpoint_maker *maker, struct kvb_checkpoint_policy *policy,
    struct kvb_stream *stream, uint64_t now_ns, uint64_t period_ns)
{
    if (!kvb_checkpoint_is_due(policy, stream, now_ns)) {
        return KVB_NOT_FOUND;
    }
    policy->next_ns = now_ns + period_ns;
    KVB_TRY(kvb_checkpoint_save_begin(&maker->save, stream));
    maker->stage = KVB_CHECKPOINT_MAKING;
    maker->policy = policy;
    maker->is_first_part = true;
    return KVB_OK;
}

static void end_making(struct kvb_checkpoint_maker *maker, enum kvb_checkpoint_stage stage)
{
    kvb_checkpoint_save_end(&maker->save);
    maker->stage = stage;
}

static void note_outcome(struct kvb_checkpoint_policy *policy, kvb_status outcome)
{
    /* If it became void meanwhile, it is not being written any more, and its outcome is nothing. */
    if (outcome == KVB_OK && policy->is_being_written) {
        policy->epoch_on_disk = policy->epoch_written;
        policy->is_on_disk = true;
    }
    if (outcome != KVB_OK && outcome != KVB_CLOSED) {
        policy->seq = UINT64_MAX; /* the disk has an older one, so the stream has changed */
    }
    policy->is_being_written = false;
}

void kvb_checkpoint_give_up(struct kvb_checkpoint_maker *maker, uint64_t now_ns)
{
    if (maker->stage == KVB_CHECKPOINT_MAKING) {
        /* Its state counts as being written, and its end never will be. */
        if (maker->save.has_state) {
            note_outcome(maker->policy, KVB_IO);
        }
        end_making(maker, KVB_CHECKPOINT_IDLE);
        maker->policy->next_ns = now_ns + after_give_up_ns;
    }
}

kvb_status kvb_checkpoint_step(
    struct kvb_checkpoint_maker *maker, size_t max_items, struct kvb_buf *out, uint64_t now_ns,
    struct kvb_checkpoint_progress *out_progress)
{
    const bool had_state = maker->save.has_state;
    bool is_done = false;
    const kvb_status status = kvb_checkpoint_save_step(&maker->save, max_items, out, &is_done);

    if (status != KVB_OK) {
        kvb_checkpoint_give_up(maker, now_ns); /* the stream was cleared, or memory is out */
        return status;
    }
    *out_progress =
        (struct kvb_checkpoint_progress){ .is_first = maker->is_first_part, .is_last = is_done };
    maker->is_first_part = false;
    if (maker->save.has_state && !had_state) { /* it is of this moment, though tokens follow */
        maker->policy->is_being_written = true;
        maker->policy->epoch_written = kvb_stream_epoch(maker->save.stream);
        note_contents(maker->policy, maker->save.stream);
    }
    if (is_done) {
        end_making(maker, KVB_CHECKPOINT_STORING);
    }
    return KVB_OK;
}

void kvb_checkpoint_written(struct kvb_checkpoint_maker *maker, kvb_status outcome)
{
    if (maker->policy) {
        note_outcome(maker->policy, outcome);
    }
    maker->policy = NULL;
    maker->stage = KVB_CHECKPOINT_IDLE;
}

void kvb_checkpoint_hurry(struct kvb_checkpoint_policy *policy, uint64_t now_ns)
{
    policy->next_ns = now_ns;
}

void kvb_checkpoint_forget(
    struct kvb_checkpoint_maker *maker, const struct kvb_checkpoint_policy *policy)
{
    if (maker->policy != policy) {
        return;
    }
    if (maker->stage == KVB_CHECKPOINT_MAKING) {
        end_making(maker, KVB_CHECKPOINT_IDLE); /* it watches the mirror of the stream */
    }
    maker->policy = NULL; /* nobody needs the outcome */
}
