#include "kvb_test.h"

#include "stream_script.h"

/* What a stream does with its engine's batches and replays; the steps are those of stream_script.h.
 */
SUITE(stream)
{
    const struct CMUnitTest tests[] = {
        /* ---- The beginning ---- */

        SCRIPT(
            "a stream is down until the engine connects",
            "begin, DOWN(connecting), up, SYNCING(replaying), down, DOWN(engine_away)"),
        SCRIPT(
            "an engine that published nothing is exact from its first batch on",
            "exact 0, UNVERIFIED(no_base), live 0, UNVERIFIED(no_base), find 0, EXACT, lists 1"),
        SCRIPT(
            "a replay without the first batches is partial",
            "begin, up, ask, reply 41, confirm, UNVERIFIED(no_base), live 41, PARTIAL(gone),"
            "clear 42, EXACT"),
        SCRIPT(
            "a failed replay does not prove an empty engine",
            "exact 0, down, up, ask, ms 2100, PARTIAL(replay_failed)"),
        SCRIPT(
            "without a replay endpoint nothing is ever exact",
            "alone, up, live 0, UNVERIFIED(no_replay),"
            /* a gap: blocks that may be gone are cleared */
            "live 5, cleared, lists 1,"
            /* a restart */
            "live 0', cleared, lists 1, no-ask"),
        SCRIPT(
            "a block without its parent is held but not listed",
            "exact 1, orphan 1, PARTIAL(unrooted), lists 1, orphan-gone 2, EXACT"),

        /* ---- Publishers that count from 1 ---- */

        SCRIPT(
            "the first batch of a new engine may be 1",
            /* histories are requested seldom */
            "idle 0, live 1, ms 10000, ask 0, reply 1, confirm, EXACT, lists 1, has 1"),
        /* Batch 0 may have been dropped just now.  Whether batch 1 outlives a newer one shows it.
         */
        SCRIPT(
            "a history that begins with 1 is whole if it still does later",
            "begin, up, ask 0, reply 1-2, confirm, live 2, PARTIAL(gone), live 3, ms 1100, ask 1,"
            "reply 1-3, end, EXACT, lists 3"),
        SCRIPT(
            "a history that began with 1 is not whole if it begins with 2 later",
            "begin, up, ask 0, reply 1-2, confirm, live 2, PARTIAL(gone), live 3, ms 1100, ask 1,"
            "reply 2-3, end, PARTIAL(gone), lists 3"),

        /* ---- A list is the engine's once a batch came both live and by replay ---- */

        /* vLLM's buffer_steps = 0, or a replay port of a process that never publishes. */
        SCRIPT(
            "an end without any batch proves nothing",
            "idle 0, ms 1100, ask 0, end, UNVERIFIED(no_base), ms 1100, ask 0, end,"
            "UNVERIFIED(no_base)"),
        SCRIPT(
            "a history is not exact before a live batch is found in it",
            "idle 3, ms 1100, ask 2, reply 2, end, UNVERIFIED(no_base), live 3,"
            "UNVERIFIED(no_base), find 3, EXACT, lists 4"),
        /* Batches 0 to 2 belong to another engine, which does not have batch 3. */
        SCRIPT(
            "a list of another engine is rebuilt from live batches",
            "idle 3, live 3', ms 50, ask 3, live 4', end, cleared, ms 50, UNVERIFIED(no_base),"
            "lists 1, has 4', live 5', lists 2,"
            /* it backs off, and never asks for the whole buffer */
            "ms 900, no-ask, ms 200, ask 5,"
            "reply 5, lists 2, UNVERIFIED(no_base)"),
        SCRIPT(
            "an engine with higher numbers is another engine too",
            "idle 3, live 3', ms 50, ask 3, reply 3, cleared, lists 0, UNVERIFIED(no_base),"
            "ms 5000, lists 0, live 4', lists 1"),
        /* Another engine answered for a while, which a proxy can cause. */
        SCRIPT(
            "a replay by the right engine is used later",
            "idle 3, live 3', ms 50, ask, end, live 4', ms 1100, ask 4, reply 4', end,"
            /* its whole buffer was requested a moment ago */
            "ms 10000, ask 0, reply 0-4', confirm', EXACT, lists 5"),
        /* The engine is faster than the look-up: its oldest kept batch is newer than the one that
         * is looked for. */
        SCRIPT(
            "a batch that left the buffer proves nothing",
            "idle 3, live 3, ms 50, ask 3, live 4-8, reply 6, uncleared, ms 50, lists 9,"
            "UNVERIFIED(no_base), ms 1000, ask 8, reply 8, end, EXACT, clears 0"),
        SCRIPT(
            "after a loss beyond the buffer the list has what followed",
            "exact 3, live 80, ask 2, reply 31-81, live 81, end, PARTIAL(gone), lists 51"),
        SCRIPT(
            "live batches before a reconnection prove nothing after it",
            "idle 0, live 0-1, down, up, ask 0, reply 0-1, confirm, UNVERIFIED(no_base), live 2,"
            "find 2, EXACT"),

        /* ---- After a reconnection the engine may be another incarnation ---- */

        SCRIPT(
            "a list is not used until the engine proves its incarnation",
            "exact 3, down, DOWN(engine_away), up, ms 3000, DOWN(connecting), need proof, ask 1,"
            "live 3, reply 1, DOWN(connecting), reply 2, SYNCING(replaying), need missing, confirm,"
            "EXACT, lists 4, clears 0"),
        SCRIPT(
            "batches that arrive while disconnected wait for the replay",
            "exact 3, down, live 3, lists 3, up, ask 1, reply 1-3, confirm, EXACT, lists 4"),
        /* The new incarnation has a batch with our last number, and batches after it. */
        SCRIPT(
            "a restart with higher numbers is detected by the bytes",
            "exact 3, down, up, live 3', ask 1, reply 1', cleared, drops, lists 0,"
            "SYNCING(replaying), ask 0, reply 0-3', confirm', live 3', EXACT, lists 4, lacks 0"),
        SCRIPT(
            "an end alone is that of another incarnation",
            "exact 3, down, up, ask 1, end, cleared, lists 0, SYNCING(replaying)"),
        SCRIPT(
            "the last batch alone is a proof if the buffer begins with it",
            "exact 3, down, up, ask 1, reply 2, SYNCING(replaying), reply 3, confirm, EXACT,"
            "lists 4"),
        SCRIPT(
            "a different batch at the buffer's beginning means another list",
            "exact 3, down, up, ask, reply 2', cleared, lists 1"),
        SCRIPT(
            "a proof that does not arrive clears the list",
            "exact 3, down, up, ask, ms 1900, DOWN(connecting), ms 200, PARTIAL(replay_failed),"
            "lists 0"),
        /* An engine that writes no timestamps sends an identical batch 2 in its next incarnation.
         */
        SCRIPT(
            "an equal last batch does not prove the same incarnation",
            "exact 3, down, up, ask 1, reply 1', cleared, ask 0, reply 0-1' 2, confirm, lists 3,"
            "UNVERIFIED(no_base)"),
        SCRIPT(
            "an equal earlier batch does not prove it if the last one is missing",
            "exact 3, down, up, ask, reply 1, DOWN(connecting), end, cleared, lists 0"),
        SCRIPT(
            "an equal earlier batch does not prove it if the last one differs",
            "exact 3, down, up, ask, reply 1, DOWN(connecting), reply 2', cleared, lists 0"),
        /* What follows the batches of the proof may have been cut off. */
        SCRIPT(
            "an end right after the proof is requested once more",
            "exact 3, down, up, ask 1, reply 1-2, end, SYNCING(replaying), ask 2, reply 2-3,"
            "confirm, EXACT, lists 4"),
        SCRIPT(
            "a single batch proves the incarnation of an engine that has no more",
            "exact 1, down, up, ask 0, reply 0, end, EXACT"),
        /* At a first connection there is no list that could be wrong. */
        SCRIPT(
            "a stream without a list has nothing to prove",
            "begin, up, SYNCING(replaying), need history"),
        SCRIPT(
            "batches of a lost connection do not follow the first replay",
            "begin, up, down, live 2, up, ask 0, reply 0-1', confirm', lacks 2, lists 2"),
        SCRIPT(
            "without a replay a reconnection restarts the list",
            "alone, up, live 0, down, up, cleared, lists 0"),
        /* Only its first batch was known, so the replay requested as a proof is the whole history.
         */
        SCRIPT(
            "a first reply that begins another incarnation is not requested again",
            "exact 1, down, up, ask 0, reply 0', no-ask, reply 1', end, ask 1, reply 1', end,"
            "live 1', EXACT, lists 2, restarts 1"),

        /* ---- Gaps ---- */

        SCRIPT(
            "a gap on the same connection keeps the list in use",
            "exact 3, live 5, SYNCING(replaying), need missing, ask, ms 1000, SYNCING(replaying),"
            "lists 3"),
        SCRIPT(
            "a cut replay is requested again from the gap",
            /* 2 and 3 were dropped in transit */
            "exact 1, live 9, ask 0, reply 0-1 4, drops, ask 1,"
            /* 6 to 8 were dropped, and END arrived nevertheless */
            "reply 1-5, end, ask 5, reply 5-9, confirm, EXACT, lists 10, clears 0"),
        /* Replies above the engine's high-water mark are dropped, and END arrives nevertheless. */
        SCRIPT(
            "an end counts only when nothing follows",
            "begin, up, ask, reply 0, end, SYNCING(replaying), ask 0, reply 0-1, confirm, live 1,"
            "EXACT, lists 2"),
        /* A replay has a maximum size.  What arrived is kept, and the rest is requested again. */
        SCRIPT(
            "a replay cut by its bound continues from the last applied batch",
            /* at once, because it is no full replay */
            "begin, up, ask 0, reply 0-1, cut, SYNCING(replaying), ask 1,"
            "reply 1-2, confirm, live 2, EXACT, lists 3, clears 0, cut, EXACT"),
        SCRIPT(
            "a replay that never answers ends at its deadline",
            "exact 3, live 5, ask, ms 2100, lists 1, has 5, PARTIAL(replay_failed), no-ask,"
            "ms 2100, ask"),
        SCRIPT(
            "batches left out by an unanswered replay are requested again",
            "exact 3, live 5, ask, ms 12100, ask 5, reply 5, end, ask 0, reply 0-5, confirm, EXACT,"
            "lists 6"),
        /* Another engine answers, and its answers use up the limit of full replays. */
        SCRIPT(
            "a replay that is not permitted soon is left out for now",
            "exact 3, live 5, ask, reply 2', ask 0, reply 40' 7', SYNCING(replaying), live 6,"
            "ms 50, PARTIAL(replay_failed), lists 1, has 6, live 7, lists 2, no-ask"),
        /* An engine that repeats old batches must not cause a request each time. */
        SCRIPT(
            "batches that arrive before the next request are not lost",
            "exact 3, live 3 1', ask 3, reply 3, end, live 1', no-ask, live 4, ms 1100, ask 3,"
            "reply 3, confirm, has 4, EXACT"),
        SCRIPT(
            "a late repeated batch costs one request and nothing else",
            /* the fingerprint of 7 is no longer kept */
            "exact 3, live 3-1499 7 1500-1502, ask 1499, reply 1499-1500, end, no-ask, EXACT,"
            "lists 1503, duplicates 3, restarts 0,"
            "live 9, no-ask, ms 1000, ask 1502, reply 1502, end, EXACT"),

        /* ---- The limit of full replays ---- */

        /* Heartbeats of a busy engine came too late.  It is the same process, and answers already.
         */
        SCRIPT(
            "a lost connection does not reset the limit of full replays",
            "begin, up, ask 0, ms 1000, down, up, no-ask, live 7, ms 100, PARTIAL(replay_failed),"
            /* a probe, not a full replay */
            "lists 1, wait 8900, ask 7"),
        SCRIPT(
            "a new incarnation has its own limit of full replays",
            /* two batches are needed for the proof */
            "begin, up, ask 0, reply 0-1, down, up, ask 0, end, ask 0"),

        /* ---- Batches that cannot be decoded ---- */

        SCRIPT(
            "an undecodable batch restarts the list",
            "exact 3, garbled 3, lists 3, ask 2, reply 2, garbled-reply 3, cleared, end,"
            "PARTIAL(poison), live 4, lists 1, poison 1"),
        SCRIPT(
            "an undecodable batch is requested once more",
            "exact 3, garbled 3', live 4, ask, reply 2-4, uncleared, end, EXACT, lists 5, poison "
            "0"),
        /* It arrived after the request of another replay. */
        SCRIPT(
            "a broken batch that the engine did not keep is abandoned",
            "exact 3, ms 1100, ask, garbled 3, confirm, cleared, PARTIAL(poison), lists 0"),

        /* ---- Probes of a silent engine ---- */

        SCRIPT(
            "a lost tail shows within a second of silence",
            "exact 3, ms 1100, ask 2, EXACT, reply 2-3, confirm, lists 4"),
        /* 3 to 5 may be under way: the probe overtook them.  Then 3 was lost, 4 has come, 5 may
         * still come.  Nothing comes in a second of silence. */
        SCRIPT(
            "the newest batches that only a probe brought count as missed",
            "exact 3, ms 1500, ask 2, reply 2-5, confirm, missed 0, live 4, missed 1, live 6,"
            "missed 2, ms 1500, ask 6, reply 6-7, confirm, missed 2,"
            "ms 1500, ask 7, reply 7, confirm, missed 3,"
            "ms 1500, ask 7, reply 7, confirm, missed 3, gaps 0"),
        SCRIPT(
            "batches that came live during a probe are not missed",
            /* 3 was lost; 6 is overtaken by the probe */
            "exact 3, ms 1500, ask 2, live 4-5, reply 2-6, confirm, live 6-7, missed 1, lists 8"),
        SCRIPT(
            "a probe that overtakes a live batch costs no state",
            "exact 3, ms 1100, ask 2, reply 2-3, EXACT, unchanged, end, EXACT, ask 3, EXACT, live "
            "3,"
            "reply 3, end, EXACT, no-ask, lists 4, duplicates 2"),
        /* So many batches do not overtake: they were lost, and the list is outdated until they are
         * applied. */
        SCRIPT(
            "a probe that brings a long tail is a loss",
            "exact 3, ms 1100, ask, reply 2-18, EXACT, reply 19, SYNCING(replaying), end,"
            "SYNCING(replaying), ask 19, reply 19, end, EXACT, lists 20"),
        SCRIPT(
            "an unanswered probe leaves the list unverified",
            "exact 3, ms 1100, ask 2, EXACT, ms 2100, UNVERIFIED(replay_failed), lists 3, ms 1100,"
            "ask 2, reply 2, confirm, EXACT"),
        /* Its buffer has size zero: every request is answered with END alone. */
        SCRIPT(
            "an engine without a buffer is unverified and loses nothing",
            "exact 3, ms 1100, ask 2, end, UNVERIFIED(replay_failed), lists 3, live 3, lists 4,"
            "UNVERIFIED(replay_failed)"),
        SCRIPT(
            "an engine that may have restarted is probed once although it publishes",
            "exact 3, live 3, ms 50, no-ask, suspect, live 4, ms 50, ask 4, reply 4, end, EXACT,"
            "live 5, ms 50, no-ask"),

        /* ---- Pauses of this process ---- */

        SCRIPT(
            "after a pause the list is not exact until a replay shows its tail",
            /* other batches may wait behind 3 */
            "exact 3, pause, changed, SYNCING(replaying), live 3, SYNCING(replaying), ms 50, ask 3,"
            "reply 3-4, end, SYNCING(replaying), ask 4, reply 4, end, EXACT, lists 5"),
        SCRIPT(
            "replies that came before a pause ended prove nothing",
            "exact 3, wait 1100, ask, reply 2, pause, drops, end, SYNCING(replaying), ask 2,"
            "reply 2, end, EXACT"),
        /* The monitor has not reported yet that the engine has gone. */
        SCRIPT(
            "an engine that restarted during a pause is recognised",
            "exact 3, pause, ms 50, ask, reply 0', lacks 0-2"),
        SCRIPT(
            "a pause that no replay ends leaves the list unverified",
            "exact 3, pause, ms 50, ask, ms 2100, UNVERIFIED(replay_failed), wait 60000, ask,"
            "reply 2, SYNCING(replaying), end, EXACT"),

        /* ---- Restored from a checkpoint ---- */

        SCRIPT(
            "a restored list is not exact until the engine proves it",
            "exact 5, restart, DOWN(connecting), up, DOWN(connecting), ms 500, DOWN(connecting),"
            "ask 3, reply 3-4, SYNCING(replaying), confirm, EXACT, lists 5"),
        SCRIPT(
            "a restored list of unknown origin stays unverified",
            "idle 3, restart, up, ask 1, reply 1-2, confirm, UNVERIFIED(no_base)"),
        SCRIPT(
            "a restored stream continues in the same epoch with the next id",
            "exact 5, restart, up, ask 3, reply 3-5, confirm, kept-epoch, has 5"),
        SCRIPT(
            "an engine that restarted meanwhile clears the restored list",
            "exact 5, restart, up, ask 3, reply 3', cleared, lists 0"),
        SCRIPT(
            "an engine without the last batch clears the restored list",
            "exact 5, restart, up, ask 3, reply 9, cleared, confirm, live 9, lists 1,"
            "PARTIAL(gone)"),
        SCRIPT(
            "an engine that answers only END clears the restored list",
            "exact 5, restart, up, ask, end, cleared, lists 0"),
        /* The socket may deliver a batch before its monitor reports the connection. */
        SCRIPT(
            "no live batch is applied to an unproven list",
            "exact 5, restart, live 5', publishes 0, up, ask 3, reply 3-4, confirm, lists 5"),
        SCRIPT(
            "a known batch is still distinguished from another of its number",
            "exact 5, restart, up, ask 3, reply 3-4, confirm, live 2, duplicates 1,"
            /* possibly another incarnation */
            "live 2', ask 4"),
        SCRIPT("waiting children need a new epoch", "exact 2, orphan 2, restart anew"),

        /* ---- Batches that are applied in slices ---- */

        SCRIPT(
            "live batches wait behind a batch that is half applied",
            "sliced, end, live 0, large 1, more, lists 6, live 2, publishes 0, lacks 2, finish,"
            "has 2, newest 2, find 2, EXACT"),
        SCRIPT(
            "no replay begins within a batch",
            /* two batches prove the incarnation */
            "sliced, end, live 0-1, large 2, down, up, no-ask, finish, newest 2, ask 1"),
        SCRIPT(
            "a batch is finished although its engine has disconnected",
            /* queued batches are dropped, as at any loss */
            "sliced, end, live 0, large 1, live 2, down, more, DOWN(engine_away), finish, newest 1,"
            /* no live batch arrived on this connection */
            "lists 21, up, ask 0, reply 0-2, confirm, UNVERIFIED(no_base), live 2, EXACT"),
        /* Nothing proves to which incarnation the other half belongs. */
        SCRIPT(
            "without replays a new connection drops the rest of a batch",
            "sliced alone, live 0, large 1, more, down, up, cleared, no-more, lists 0, newest none,"
            "live 7', finish, lists 1, has 7'"),
        /* No request can begin before the very first batch. */
        SCRIPT(
            "a new connection within the first batch restarts the list",
            "sliced, end, large 0, more, down, up, no-more, lists 0, ask 0, large-reply 0, finish,"
            "confirm, live 0, EXACT, lists 20"),
        /* The engine has answered; the time that the batch takes is ours. */
        SCRIPT(
            "a replay does not time out within a batch",
            "sliced, large-reply 0, leap 5000, leap 5000, leap 5000, no-more, replaying, leap 0,"
            "replaying"),
        SCRIPT(
            "a reply within a batch is applied after it",
            "sliced, large-reply 0, lists 5, reply 1, lists 21, newest 1"),

        /* ---- What an event that was skipped may hide ---- */

        SCRIPT(
            "a store that cannot be read makes the list partial",
            "exact 3, batch 3 skipped bad-stored, PARTIAL(skipped), lists 3, clear 4, EXACT"),
        SCRIPT(
            "a removal that cannot be read clears the list",
            "exact 3, batch 3 skipped bad-removed, PARTIAL(poison), lists 0, clear 4, EXACT"),
        SCRIPT(
            "an event of an unknown type makes the list unverified",
            "exact 3, batch 3 skipped unknown, UNVERIFIED(unknown_event), lists 3, clear 4, EXACT"),
        SCRIPT(
            "a group without a rule and what no query can name hide nothing",
            "exact 3, batch 3 skipped not-prefix ; skipped unmatchable, EXACT, lists 3"),

        /* ---- Groups, windows, shapes ---- */

        SCRIPT(
            "a group of no known kind makes the stream unverified until a rebuild",
            "exact 3, batch 3 skipped not-prefix group 2 odd-kind, UNVERIFIED(groups), lists 3,"
            "clear 4, UNVERIFIED(groups),"
            /* a gap, and the replay comes from another incarnation */
            "live 9, ask, reply 4', end, ask, reply 0-9', confirm', live 9', EXACT"),
        SCRIPT(
            "a heartbeat contains windows and shapes",
            "exact 3, beat window 0, batch 3 stored 901 group 1 window 3 sparse, changed, EXACT,"
            "beat window 3 in-window 1 blocks 3 shapes 1 block-size 1"),
        /* Until a heartbeat says it, readers count blocks that the window makes unusable, or find
         * none. */
        SCRIPT(
            "a new window or shape causes a heartbeat at once",
            "exact 3, batch 3 stored 901 group 1 window 3 sparse, changed,"
            "batch 4 stored 902 group 1 window 3 sparse, unchanged,"
            "batch 5 stored 555 tokens 8 lookahead 1, EXACT, changed, clear 6, changed"),
        SCRIPT(
            "a heartbeat names the device's first shape",
            /* the configured shape */
            "exact 0, beat block-size 1, batch 0 stored 555 size 2 tokens 8 host, beat block-size "
            "2,"
            "batch 1 stored 555 tokens 8 lookahead 1, beat block-size 1 lookahead 1 shapes 2"),
        SCRIPT(
            "one shape too many is skipped",
            "exact 1, batch 1 stored 1002 size 2, batch 2 stored 1003 size 3,"
            "batch 3 stored 1004 size 4, batch 4 stored 1005 size 5, batch 5 stored 1006 size 6,"
            "batch 6 stored 1007 size 7, batch 7 stored 1008 size 8, EXACT,"
            "batch 8 stored 1009 size 9, PARTIAL(skipped), lists 8"),
        SCRIPT(
            "a child of another size than its parent is found by no query",
            "exact 1, batch 1 stored 700 tokens 7, EXACT,"
            "batch 2 stored 701 size 2 tokens 8 parent 700, UNVERIFIED(groups)"),
        SCRIPT(
            "a child of another size is not named after a parent that comes later",
            "exact 1, batch 1 stored 701 size 2 tokens 8 parent 700, batch 2 stored 700 tokens 7,"
            "lists 2, PARTIAL(unrooted)"),
        SCRIPT(
            "a block that no full-attention group has counts as missing",
            "exact 1, batch 1 stored 777 group 1 window 3 sparse, PARTIAL(unrooted), unplaced 1,"
            "batch 2 removed 777 group 1, EXACT"),
        SCRIPT(
            "more hashes for one content than one name may have are skipped",
            "exact 1, batch 1 stored 700 tokens 7 ; stored 701 tokens 7 ; stored 702 tokens 7 ;"
            " stored 703 tokens 7 ; stored 704 tokens 7 ; stored 705 tokens 7 ; stored 706 tokens "
            "7 ;"
            " stored 707 tokens 7 ; stored 708 tokens 7 ; stored 709 tokens 7 ; stored 710 tokens "
            "7 ;"
            " stored 711 tokens 7 ; stored 712 tokens 7 ; stored 713 tokens 7 ; stored 714 tokens "
            "7 ;"
            " stored 715 tokens 7, UNVERIFIED(ambiguous), names-refused 0, batch 2 stored 800"
            " tokens 7, names-refused 1, lists 2"),

        /* ---- Facts about the engine ---- */

        SCRIPT(
            "the newest tokens say whether they are pairs",
            "exact 3, beat paired 0, batch 3 stored 900 paired, beat paired 1, changed,"
            /* this batch proves nothing: it is the same engine */
            "clear 4, beat paired 1, batch 5 stored 901, beat paired 0, changed"),
        SCRIPT(
            "another incarnation may have other tokens",
            "exact 3, batch 3 stored 900 paired, down, up, ask 2, reply 2', cleared, beat paired "
            "0"),
        /* vLLM 0.33 drops nothing with hashes that have lookahead. */
        SCRIPT(
            "blocks with lookahead are not dropped",
            "begin drop 1, beat drop 1, up, ask, end, batch 0 stored 900 lookahead 1, beat drop 0"),
        /* Also an object of another model: the other workers share the store all the same. */
        SCRIPT(
            "an object of a pool makes the stream a store for good",
            "exact 3, beat store 0, batch 3 removed 5 key 5, beat store 1, changed, live 4,"
            "beat store 1, unchanged"),
        SCRIPT("a worker configured as a store is one", "begin store yes, beat store 1"),

        /* ---- Copies: prompt 8 9 is stored again after the list has lost 9 ---- */

        SCRIPT(
            "an incomplete list takes no store as proof of a copy",
            "begin, up, ask, batch-reply 41 stored 555 tokens 8, confirm, live 41, PARTIAL(gone),"
            "batch 42 stored 555 2 tokens 8, batch 43 removed 555, misses 8"),
        SCRIPT(
            "a complete list takes a store of a new block as proof of a copy",
            "exact 1, batch 1 stored 555 tokens 8 ; stored 555 2 tokens 8 ; removed 555, holds 8"),
        SCRIPT(
            "a list that skipped a store does not",
            "exact 1, batch 1 skipped bad-stored ; stored 555 tokens 8 ; stored 555 2 tokens 8 ;"
            " removed 555, misses 8"),

        /* ---- Totals ---- */

        SCRIPT(
            "a reported total proves that the list is complete",
            "begin total 2 removals complete, up, ask, reply 41, confirm, live 41, PARTIAL(gone),"
            "beat missing 1,"
            /* two are proven, one is not listed */
            "orphan 42, PARTIAL(gone), beat missing 1, orphan-gone 43, live 44, EXACT,"
            /* nobody counts these tiers */
            "batch 45 stored 903 host, PARTIAL(gone)"),
        /* It was configured for an engine with less memory.  There may be further blocks. */
        SCRIPT(
            "a total that the engine exceeded proves nothing",
            "begin total 2, up, ask, reply 41-43, confirm, live 43, PARTIAL(gone),"
            "beat missing unknown, batch 44 removed 944, proven 2, PARTIAL(gone)"),

        /* ---- Tiers ---- */

        SCRIPT(
            "a tier without removals is unverified and the device is not",
            "begin removals detect, up, ask, reply 0, confirm, live 0, tier host fine,"
            "batch 1 stored 6001 host, changed, tier host no_removals, batch 2 stored 6002 disk,"
            "batch 3 removed 6002 disk, batch 4 stored 6002 disk, tier disk fine,"
            "tier host no_removals, tier device fine, EXACT"),
        SCRIPT(
            "the configuration can vouch for a tier",
            "begin removals complete, up, ask, reply 0, confirm, live 0, batch 1 stored 6001 host,"
            "tier host fine"),
        SCRIPT(
            "the configuration can say that removals are missing",
            "begin removals incomplete, up, ask, reply 0, confirm, live 0, batch 1 stored 6001 "
            "host,"
            "batch 2 removed 6001 host, batch 3 stored 6001 host, tier host no_removals"),

        /* ---- What the metrics page shows of a sleep ---- */

        SCRIPT(
            "a discarded cache is unverified until the engine clears",
            "exact 3, page sleep awake, signs none, second,"
            "page sleep discarded, signs asleep, changed, UNVERIFIED(asleep), discarded, second,"
            /* reported once */
            "page sleep discarded, signs none,"
            /* the batch was under way when the engine fell asleep */
            "live 3, UNVERIFIED(asleep), page sleep awake, signs awake, UNVERIFIED(asleep),"
            "clear 4, EXACT, kept, lists 0"),
        /* vLLM could not reset its cache because of running requests, so the listed blocks stay. */
        SCRIPT(
            "an engine that wakes and continues without a clear has kept its cache",
            "exact 3, page sleep discarded, second, page sleep awake, UNVERIFIED(asleep), live 3,"
            "EXACT, lists 4"),
        /* The engine woke and cleared while the page was being fetched. */
        SCRIPT(
            "a page older than the clear is ignored",
            "exact 3, clear 3, page sleep discarded, EXACT, second, page sleep discarded,"
            "UNVERIFIED(asleep)"),
        /* A replay contains clears too; this one is older than the sleep. */
        SCRIPT(
            "a replayed clear is not that of a sleeping engine",
            "begin, up, page sleep discarded, signs asleep, ask 0, clear-reply 0, confirm,"
            "discarded"),
        SCRIPT(
            "states that keep the cache are no evidence",
            "exact 3, page sleep unknown, signs none, EXACT, second, page sleep awake, signs none,"
            "EXACT, second, page sleep paused, signs none, EXACT"),
        SCRIPT(
            "a page without the state does not end a sleep",
            "exact 3, page sleep discarded, page sleep unknown, signs none, live 3,"
            "UNVERIFIED(asleep)"),
        SCRIPT(
            "another incarnation is awake",
            "exact 3, page sleep discarded, down, up, ask, end, kept"),

        /* ---- ... of restarts ---- */

        SCRIPT(
            "smaller counters show a restart if no process is named",
            "exact 3, page smaller yes, signs restart, answer,"
            /* the same process counts from zero again, which is no restart */
            "page started 1000, signs none"),
        SCRIPT(
            "without a replay nothing proves the list of another process",
            "alone, up, live 0, page started 1000, signs none, lists 1,"
            "page started 2000, signs restart, cleared, lists 0, live 1, tick, lists 1"),

        /* ---- ... of requests that may empty the cache ---- */

        SCRIPT(
            "a reset without its clear is unverified until the clear",
            "exact 3, page resets 0, signs none, second, page resets 1, signs reset, changed,"
            "UNVERIFIED(reset), second, page resets 1, signs none, UNVERIFIED(reset), clear 3,"
            "EXACT, second, page resets 1, signs none, EXACT"),
        /* vLLM does not reset while requests run: it publishes no clear, but goes on. */
        SCRIPT(
            "a batch a second later shows that there was no reset",
            /* batch 3 may have been under way */
            "exact 3, page resets 0, page resets 2, live 3, UNVERIFIED(reset), second, live 4,"
            "EXACT"),
        SCRIPT(
            "a clear before the page accounts for one reset",
            "exact 3, page resets 0, clear 3, second, page resets 1, signs none, EXACT,"
            /* one of two was published */
            "clear 4, second, page resets 3, signs reset, UNVERIFIED(reset),"
            /* no older clear is left */
            "clear 5, second, page resets 3, signs none, second, page resets 4, signs reset"),
        /* Whether the engine has published its earlier resets, nothing shows. */
        SCRIPT(
            "resets before the first page count",
            "exact 3, page resets 5, signs reset, UNVERIFIED(reset)"),
        SCRIPT(
            "a new process counts its resets anew",
            "exact 3, page started 100 resets 0, page resets 2, signs reset, clear 3,"
            "page started 200 resets 2, signs reset restart"),

        /* ---- ... of pools and drafts ---- */

        SCRIPT(
            "a pool without events is an odd group",
            "exact 3, page, signs none, page hidden yes, signs hidden, UNVERIFIED(groups),"
            /* a page of another version, or an idle one */
            "why SGLang, page hidden no, signs none, UNVERIFIED(groups)"),
        /* The page shows that the engine speculates, and not by which method. */
        SCRIPT(
            "drafts of an unknown method are unverified",
            "exact 3, page speculation undecided, signs none, changed, UNVERIFIED(speculation),"
            /* a page without the engine's figures */
            "why speculative_drop, page speculation unknown, UNVERIFIED(speculation),"
            /* started again without it */
            "page speculation keeps, EXACT"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
