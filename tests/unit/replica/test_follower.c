#include "kvb_test.h"

#include "fail_alloc.h"
#include "follower_script.h"

/* What an aggregator makes of a stream's events and heartbeats; the steps are those of
 * follower_script.h. */

/* Whatever allocation fails, what is listed is held, and the state says whether it is all. */
static void survives_every_failing_allocation_and_lists_a_subset(void **state)
{
    static const enum kvb_router_kind kinds[] = { KVB_ROUTER_CLEARED, KVB_ROUTER_STORED,
                                                  KVB_ROUTER_STORED };
    static const enum kvb_tier tiers[] = { KVB_TIER_DEVICE, KVB_TIER_DEVICE, KVB_TIER_HOST };
    struct kvb_router_batch batch = { .worker_id = script_stream.worker_id,
                                      .dp_rank = script_stream.dp_rank,
                                      .has_epoch = true,
                                      .epoch = { { 1 } } };
    bool is_whole = false;

    (void)state;
    for (uint64_t i = 0; i < 3; i++) {
        const struct kvb_router_event event = { .kind = kinds[i],
                                                .tier = tiers[i],
                                                .event_id = 1000 + i };
        assert_ok(kvb_router_batch_add_event(&batch, &event));
        if (i > 0) {
            assert_ok(kvb_router_batch_add_block(
                &batch, (kvb_block_hash){ 4 + i }, (kvb_tokens_hash){ 4 + i }));
        }
    }
    for (long n = 0; !is_whole; n++) {
        follower_script("begin");
        fail_alloc_after(n);
        const kvb_status status =
            kvb_followers_apply(script_followers(), &script_stream, &batch, 1);
        fail_alloc_after(-1);
        if (status != KVB_OK) {
            assert_int_equal(status, KVB_NO_MEMORY);
            continue;
        }
        struct kvb_follower_counters counters;
        kvb_followers_counters(script_followers(), &counters);
        is_whole = counters.blocks_refused == 0;
        follower_script(
            is_whole ? "beat 1 +2 1 host 1, EXACT" : "beat 1 +2 1 host 1, PARTIAL(memory)");
    }
    kvb_router_batch_done(&batch);
}

/* clang-format off */
#define TWO_BRIDGES                                                                                \
    "begin, exact 1, clear 2 5000, store 2 5001 6, beat 2 5001 1, EXACT,"                          \
    "pass 1000, beat 2 5001 1, beat 1 +1 1, wait 0, UNVERIFIED(two_bridges),"                      \
    "pass 1000, beat 2 5001 1, beat 1 +1 1, wait 0, UNVERIFIED(two_bridges), rivals 1, lists 1,"

#define LATE(epoch)                                                                                \
    "store " epoch " 20000 6, clear " epoch " 20001, beat " epoch " 20001 2,"

/* Heartbeats say how often they are sent. */
#define SILENT_AFTER(period, before)                                                               \
    "begin, exact 1, beat 1 +1 1 period " period ", wait " before ", EXACT, wait 1, DOWN(silent)"

/* The bridge holds block 5, and its heartbeats say so. */
#define TRUTH     "beat 1 +1 1 digest 5"
#define TRUE_LIST "begin asks, exact 1, " TRUTH ", EXACT,"

/* The bridge sends a heartbeat each second, the first half a second after the forgery.  At last
 * there are more events of the forged epoch: it is the old one by now. */
#define FOUND_BACK                                                                                 \
    "pass 500, " TRUTH ", pass 1000, " TRUTH ", UNVERIFIED(two_bridges), pass 1000, " TRUTH ","    \
    "ask snapshot, blocks +1 5, lists 1, EXACT, store 2 5002 9, lists 1"

#define JOIN "begin asks, beat 1 +50 2, SYNCING(joined_late), ask snapshot,"

/* It is counted, and asked again; then an answer to the request before is none. */
#define REFUSED(flaw)                                                                              \
    JOIN "flaw " flaw ", blocks +50 6 host 8, lists 0, PARTIAL(joined_late), failed 1, no-ask,"    \
    "wait 110, ask snapshot, stale, blocks +50 6 host 8, lists 0, blocks +50 6 host 8, lists 1"

/* The list is 5, the bridge's 6, at the same event.  The counts are equal, so only the digest
 * shows it. */
#define DIFFERING "begin asks, exact 1, beat 1 +1 1 digest 6, SYNCING(differs),"

#define TRAIT(change) ", again " change ", other-traits, again, same-traits"
/* clang-format on */

SUITE(follower)
{
    const struct CMUnitTest tests[] = {
        /* ---- Becoming exact, joining late ---- */

        SCRIPT(
            "the bridge's own reason is taken over",
            "begin, clear 1 +0, beat 1 +0 0 says PARTIAL(gone), PARTIAL(gone)"),
        /* The later part is a subset of the whole list, so it may be listed. */
        SCRIPT(
            "a stream first seen in the middle is joined late until cleared",
            "begin, store 1 +50 5, beat 1 +50 30, PARTIAL(joined_late), lists 1, differs 0,"
            "clear 1 +51, SYNCING, beat 1 +51 0, EXACT"),
        cmocka_unit_test_teardown(
            survives_every_failing_allocation_and_lists_a_subset, end_follower_script),

        /* ---- Gaps and repeated events ---- */

        SCRIPT(
            "each missing event is counted once",
            /* 2, 3 and 4 are missing, 5 waits for them */
            "begin asks, exact 1, missed 0, store 1 +5 6, missed 3, store 1 +6 7, beat 1 +6 7,"
            /* and 7 and 8 */
            "missed 3, beat 1 +8 9, beat 1 +8 9, missed 5,"
            /* no earlier event is needed after it */
            "clear 1 +500, store 1 +501 8, missed 5, clear 2 +900, store 2 +902 8, missed 6"),
        SCRIPT(
            "repeated and older ids are dropped and counted",
            "begin asks, exact 1, remove 1 +2 5, store 1 +1 5, clear 1 +0, remove 1 +2 5, old 3,"
            "lists 0, no-ask, beat 1 +2 0, EXACT"),

        /* ---- Formats ---- */

        /* The same events in the other format, as of a bridge that publishes both. */
        SCRIPT(
            "events are taken in the format of the heartbeat alone",
            "begin, exact 1, store json +2 6, clear json +3, lists 1, unused 2,"
            "beat 1 +1 1 formats both, format protobuf, store json +2 6, lists 1, store 1 +2 6,"
            "lists 2, unused 3, holes 0"),
        SCRIPT(
            "protobuf of a bridge that publishes json alone is not taken",
            "begin, exact json, store 1 +2 6, lists 1, unused 1, store json +2 6, lists 2"),
        /* JSON may be all that there is.  The protobuf is of an epoch that begins earlier. */
        SCRIPT(
            "before a heartbeat protobuf replaces json",
            "begin, clear json +0, store json +1 5, lists 1, format json, store 1 +1 5,"
            "format protobuf, store json +2 6, store 1 +2 7, unused 1, epochs-missed 1"),
        /* The bridge was restarted with other formats: a new epoch, and what came before its first
         * heartbeat was not taken. */
        SCRIPT(
            "another format is followed from its heartbeat on",
            "begin, exact 1, clear json +100, store json +101 9, lists 1,"
            "beat 2 +101 1 begins +100 formats json, format json, PARTIAL(joined_late), lists 0,"
            "store json +102 10, lists 1"),

        /* ---- Streams of others ---- */

        SCRIPT(
            "a foreign stream may skip ids",
            "begin, store json 10 1, store json 10 2, store json 900 3, store json 3 4,"
            "remove json 3 3, UNVERIFIED(no_heartbeat), lists 3, old 0,"
            "wait 59000, UNVERIFIED(no_heartbeat), clear json 1, lists 0"),
        SCRIPT(
            "a heartbeat after unexplained jumps empties the stream",
            "begin, clear json +0, store json +1 5, store json +9 6, beat 1 +9 4,"
            "PARTIAL(missed_events), lists 0"),

        /* ---- Heartbeats that disagree ---- */

        /* Which of the listed blocks are wrong is unknown. */
        SCRIPT(
            "different counts at the last id are counted once",
            "begin, exact 1, beat 1 +1 9, PARTIAL(differs), lists 0, beat 1 +1 9, differs 1,"
            "clear 1 +2, beat 1 +2 0, EXACT"),
        /* At last the sum is the same. */
        SCRIPT(
            "counts are compared tier by tier",
            "begin, clear 1 +0, store 1 +1 5, store 1 +2 5 host, beat 1 +2 1 host 1, EXACT,"
            "remove 1 +3 5, lists 0, lists 1 host, beat 1 +3 1 host 0, PARTIAL(differs)"),
        SCRIPT(
            "one heartbeat ahead is tolerated and two mean missed events",
            "begin, exact 1, beat 1 +2 2, EXACT, store 1 +2 6, beat 1 +2 2, EXACT,"
            "beat 1 +3 3, beat 1 +3 3, PARTIAL(missed_events), lists 0,"
            /* the next event after them makes no new gap */
            "store 1 +4 7, holes 0"),
        SCRIPT(
            "an impossible count is never exact",
            "begin asks, exact 1, beat 1 +1 max, SYNCING(differs), beat 1 +1 max, "
            "SYNCING(differs)"),

        /* ---- The audit ---- */

        /* At first the stream is not known. */
        SCRIPT(
            "a broken stream is unverified instead of exact",
            "begin, doubt, exact 1, claimed, doubt, UNVERIFIED(audit), claimed, beat 1 +1 1,"
            "UNVERIFIED(audit), away, STALE(nats_away), back, beat 1 +1 1, UNVERIFIED(audit),"
            "trust, EXACT"),
        SCRIPT(
            "a claim ends when the list is emptied or no longer claimed",
            "begin, exact 1, claim, store 1 +2 6, remove 1 +3 6, beat 1 +3 1, doubt, trust,"
            /* it stays EXACT because the id is the next one */
            "same-claim, clear 1 +4, EXACT, other-claim,"
            "away, unclaimed, back, beat 1 +4 0, EXACT, other-claim"),

        /* ---- Epochs ---- */

        SCRIPT(
            "json continues into a new epoch whose cleared arrived",
            "begin, exact json, clear json 5000, SYNCING, store json 5001 9,"
            "beat 2 5001 1 begins 5000, EXACT, lists 1, epochs-missed 0"),
        SCRIPT(
            "late messages of an old epoch have no effect",
            "begin, exact 1, clear 2 5000, beat 2 5000 0 begins 5000, store 1 +2 6, clear 1 9000,"
            "beat 1 +2 2, EXACT, lists 0, old 3"),
        /* An engine that restarts again and again makes many epochs within the time that a message
         * may come again. */
        SCRIPT(
            "messages of the last four epochs have no effect",
            "begin, exact 1, clear 2 6000, clear 3 7000, clear 4 8000, clear 5 9000, clear 6 10000,"
            "beat 6 10000 0 begins 10000," LATE("5") LATE("4") LATE("3")
                LATE("2") "EXACT, lists 0, old 12, store 6 10001 7, lists 1"),
        /* The epoch that is followed again is not among the old ones any more, the one before it
         * is. */
        SCRIPT(
            "an old epoch that is followed again is the newest",
            "begin, exact 1, clear 2 6000, clear 3 7000, clear 4 8000, beat 4 8000 0, wait 3000,"
            "beat 2 6000 0, store 2 6001 7, lists 1, store 1 20000 8, store 3 20000 8,"
            "store 4 20000 8, lists 1"),
        /* A bridge restored from a backup sends messages of the old epoch only. */
        SCRIPT(
            "an old epoch is followed when the new one is silent",
            "begin, exact 1, clear 2 5000, store 2 5001 6, beat 2 5001 1, beat 1 +1 1, EXACT,"
            "wait 3000, DOWN(silent), beat 1 +1 1, PARTIAL(joined_late), lists 0, store 1 +2 7,"
            "beat 1 +2 1, EXACT"),
        SCRIPT(
            "a second bridge is reported until it is silent",
            TWO_BRIDGES "pass 2000, beat 2 5001 1, wait 1000, EXACT"),
        SCRIPT(
            "the bridge that stays is followed at once",
            TWO_BRIDGES "bye 2 5001 1, DOWN(bridge_stopped), beat 1 +1 1, PARTIAL(joined_late)"),
        SCRIPT("a goodbye ends the report of two bridges at once", TWO_BRIDGES "bye 1 +1 1, EXACT"),

        /* ---- Silence, goodbye, NATS ---- */

        SCRIPT(
            "after three missing heartbeats the blocks stay",
            "begin, exact 1, wait 2999, EXACT, wait 1, DOWN(silent), lists 1, silent 1,"
            "beat 1 +1 1, EXACT"),
        /* 0: a bridge of an older version, which does not say it. */
        SCRIPT(
            "three heartbeats are those of the stream's own period",
            SILENT_AFTER("0", "2999") "," SILENT_AFTER("1000", "2999") "," SILENT_AFTER(
                "5000", "14999") "," SILENT_AFTER("60000", "179999")),
        /* A forged period must neither keep a dead stream for ever nor make a live one DOWN between
         * two heartbeats. */
        SCRIPT(
            "an impossible period is limited",
            SILENT_AFTER("1", "1499") "," SILENT_AFTER("100", "1499") "," SILENT_AFTER(
                "4294967295", "179999")),
        SCRIPT(
            "a lagging list is stale and lag is no silence",
            "begin, exact 1, lag, STALE(lagging), store 1 +2 6, beat 1 +2 2, STALE(lagging),"
            "wait 10000, STALE(lagging), no-lag, EXACT, wait 0, EXACT, wait 3000, DOWN(silent)"),
        SCRIPT(
            "a stream without heartbeats lags too",
            "begin, store json 1 5, lag, STALE(lagging), no-lag, UNVERIFIED(no_heartbeat)"),
        SCRIPT(
            "after dropped messages each list must be proven again",
            "begin, exact 1, lose, STALE(lagging), store 1 +2 6, STALE(lagging), beat 1 +2 2,"
            "EXACT"),
        SCRIPT(
            "goodbye is down at once",
            "begin, exact 1, bye 1 +1 1, DOWN(bridge_stopped), clear 2 5000, DOWN(bridge_stopped),"
            "beat 2 5000 0 begins 5000, EXACT"),
        SCRIPT(
            "streams down for long are forgotten and their slots freed",
            "begin, exact 1, store 1 +2 6 window, bye 1 +2 1, wait 59999, streams 1, wait 1,"
            "streams 0, window-blocks 0, freed"),
        SCRIPT(
            "an absent engine is not forgotten while its bridge sends heartbeats",
            "begin, exact 1, beat 1 +1 1 says DOWN(engine_away), beats 100, DOWN(engine_away),"
            "silent 0, forgotten 0"),
        SCRIPT(
            "without NATS all lists are stale and kept however long",
            "begin, exact 1, away, STALE(nats_away), wait 1000000, STALE(nats_away), lists 1"),
        SCRIPT(
            "a silence just before the loss of NATS is not the bridge's",
            "begin, exact 1, wait 3000, DOWN(silent), pass 1000, away, STALE(nats_away)"),
        /* The event is apparently without a gap. */
        SCRIPT(
            "after a reconnect silence counts anew and exact must be proven",
            "begin, exact 1, away, pass 10000, back, wait 2000, STALE(nats_away), store 1 +2 6,"
            "STALE(nats_away), beat 1 +2 2, EXACT"),

        /* ---- Ceilings ---- */

        SCRIPT(
            "a stream above the ceiling is refused and counted",
            "begin streams 1, exact 1, as 8, refuse, store 1 +2 6, refused 1, follows 7"),
        SCRIPT(
            "a full index makes the stream partial",
            "begin nodes 2, clear 1 +0, store 1 +1 1, store 1 +2 2, store 1 +3 3, beat 1 +3 3,"
            "PARTIAL(memory), differs 0, blocks-refused 1"),
        SCRIPT(
            "streams without heartbeats are forgotten after their last event",
            "begin, crowd 1 2, pass 40000, crowd 1, wait 19999, follows 1 2, wait 1, follows 1,"
            "wait 40000, streams 0, freed, forgotten 2"),
        SCRIPT(
            "a stream with a heartbeat is not forgotten so soon",
            "begin, crowd 1, bridges 1, pass 100000, bridges 1, wait 0, follows 1"),
        /* 16 streams in all, 2 of them without heartbeats.  998 gets one. */
        SCRIPT(
            "one too many replaces the one silent for longest",
            "begin streams 16, crowd 1 2 1 3, follows 1 3, crowd 10-999, follows 998 999,"
            "bridges 998, crowd 2000 2001, follows 998 2000 2001"),
        SCRIPT(
            "streams without heartbeats displace no stream with a bridge",
            "begin streams 16, crowd 100 101, bridges 0-15, follows 0-15, refuse, bridges 17,"
            "refused 1"),
        /* While there is no room an answer would be useless.  The request stays until the answer
         * arrives. */
        SCRIPT(
            "a list that found no room is fetched when there is some",
            "begin asks nodes 10, fill 1, exact 1, store 1 +2 6, PARTIAL(memory),"
            "pass 1000, beat 1 +2 2, wait 0, no-ask, PARTIAL(memory), give-back,"
            "pass 1000, beat 1 +2 2, wait 0, lists 1, ask snapshot, blocks +2 5 6, lists 2, EXACT"),
        SCRIPT(
            "a list that does not fit is requested after its pause",
            "begin asks nodes 10, fill 1, pass 1000, beat 1 +2 2, wait 0, ask snapshot,"
            "blocks +2 5 6, PARTIAL(memory), beats 30, asked 0 0, give-back,"
            "pass 1000, beat 1 +2 2, wait 0, ask snapshot, blocks +2 5 6, lists 2, EXACT"),

        /* ---- The window list of a hybrid model ---- */

        /* Its reach is not known before a heartbeat.  A block stored twice counts once. */
        SCRIPT(
            "the window list is a list of its own",
            "begin, exact 1, store 1 +2 5 window, UNVERIFIED(groups), store 1 +3 6 window,"
            "store 1 +4 6 window, lists 2 window, window-blocks 2, lists 1, remove 1 +5 5 window,"
            "lists 1 window, lists 1, beat 1 +5 1 window 1, EXACT, store 1 +6 7 window, EXACT"),
        SCRIPT(
            "window lists share a ceiling",
            "begin nodes 4, exact 1, store 1 +2 10 window, store 1 +3 11 window,"
            "store 1 +4 12 window, store 1 +5 13 window, store 1 +6 14 window, lists 4 window,"
            "blocks-refused 1, beat 1 +6 1 window 5, PARTIAL(memory), remove 1 +7 10 window,"
            "lists 3 window, store 1 +8 14 window, lists 4 window"),
        SCRIPT(
            "the hidden list is freed when the snapshot fails",
            "begin asks, beat 1 +2 1 window 1, ask snapshot, flaw open, blocks +2 5 window 9,"
            "window-blocks 1, wait 10000, window-blocks 0"),

        /* ---- What answers depend on ---- */

        SCRIPT(
            "new facts in a heartbeat change the traits",
            "begin, exact 1, other-traits, again, same-traits" TRAIT("window 0")
                TRAIT("names engine") TRAIT("paired yes") TRAIT("store yes") TRAIT("shapes 1")
                    TRAIT("drop 1") TRAIT("shape 256")),

        /* ---- Messages that no bridge has sent: whoever may publish can forge them ---- */

        SCRIPT(
            "ids far ahead of the heartbeat are refused and counted",
            TRUE_LIST "clear 1 +2^27, store 1 +2^27 9, ahead 2, EXACT, lists 1, store 1 +2 6,"
                      "lists 2"),
        SCRIPT(
            "ids far ahead in json are refused and counted",
            "begin, exact json, clear json max, store json +2^40 9, ahead 2, EXACT, lists 1"),
        /* The first id of such an epoch is a wall-clock time; its heartbeat follows. */
        SCRIPT(
            "an epoch that json begins far ahead is followed",
            "begin, exact json, clear json +2^45, store json +2^45+1 9, lists 1,"
            "beat 2 +2^45+1 1 begins +2^45, EXACT, ahead 0"),
        SCRIPT(
            "a forged event is repaired within two heartbeats",
            TRUE_LIST "clear 1 +1000, lists 0, pass 1000, " TRUTH ", SYNCING(differs),"
                      "contradicted 1, ask digest, sums +1 5, ask snapshot, blocks +1 5, lists 1,"
                      /* the bridge's ids count again */
                      "pass 1000, " TRUTH ", EXACT, store 1 +2 6, lists 2"),
        /* As after an answer that overtook the heartbeat.  Then somebody forges messages
         * continuously, so no listed id is ever old enough. */
        SCRIPT(
            "two heartbeats behind prove a forgery",
            TRUE_LIST "clear 1 +1000, " TRUTH ", no-ask, contradicted 0, clear 1 +2000, " TRUTH ","
                      "ask digest, sums +1 5, ask snapshot, blocks +1 5, lists 1"),
        SCRIPT(
            "a forged id without effect is reverted without a repair",
            TRUE_LIST "clear 1 +1000, store 1 +1001 5, pass 1000, " TRUTH ", ask digest, sums +1 5,"
                      "no-ask, last +1, " TRUTH ", EXACT"),
        SCRIPT(
            "without a repair the bridge is followed from its heartbeat on",
            "begin, exact 1, clear 1 +1000, store 1 +1001 9, pass 1000, beat 1 +1 1,"
            "PARTIAL(differs), lists 0, store 1 +2 6, lists 1, clear 1 +3, beat 1 +3 0, EXACT"),
        /* A bridge restored from a checkpoint publishes again what it has published before. */
        SCRIPT(
            "a restored bridge that catches up is no forgery",
            TRUE_LIST "beat 1 +0 1 digest 5 says DOWN(connecting), pass 1000, again, pass 1000,"
                      "again, no-ask, " TRUTH ", EXACT"),
        SCRIPT(
            "an epoch forged in an event is left again",
            TRUE_LIST "clear 2 5000, store 2 5001 9," FOUND_BACK),
        /* The bridge's own events, of the old epoch as it seems, come more often than its
         * heartbeats. */
        SCRIPT(
            "an epoch forged before the first heartbeat is left again",
            "begin asks, store 1 +0 5, clear 2 5000, pass 500, store 1 +1 5, pass 500,"
            "store 1 +2 5, beat 1 +2 1 digest 5, pass 500, store 1 +3 5, pass 500, store 1 +4 5,"
            "beat 1 +4 1 digest 5, ask snapshot, blocks +4 5, lists 1, EXACT"),
        SCRIPT(
            "an epoch forged in a heartbeat is left again whatever its period",
            TRUE_LIST "beat 2 5001 1 begins 5000 period 4294967295, lists 0," FOUND_BACK),

        /* ---- Repair: a range ---- */

        /* Event 8, which waited, is listed; block 5 may be gone. */
        SCRIPT(
            "a gap that is not filled costs the list before it becomes false",
            "begin asks, exact 1, store 1 +3 8, ask range, wait 1400, lists 1, wait 150, lists 1,"
            "beat 1 +3 2, SYNCING(missed_events), ask snapshot"),
        SCRIPT(
            "a range that lacks an event is not applied",
            "begin asks, exact 1, store 1 +4 8, ask range, events +4 +3 7, lists 1, failed 1,"
            "SYNCING(missed_events)"),
        /* The removal of a block stored by a waiting event may have been missed.  Events that
         * follow on it count. */
        SCRIPT(
            "events that waited while NATS was away are not listed",
            "begin asks, exact 1, store 1 +3 8, ask range, away, wait 5000, back, ask range,"
            "gone +9, lists 0, store 1 +4 9, lists 1, ask snapshot"),

        /* ---- Repair: a snapshot ---- */

        SCRIPT(
            "a late joiner shows nothing of half a snapshot",
            JOIN "flaw open, blocks +50 6 host 8, lists 0, flaw second, blocks +50, lists 1,"
                 /* until a heartbeat proves it */
                 "lists 1 host, SYNCING, beat 1 +50 1 host 1, EXACT"),
        SCRIPT("an answer of another worker is none", REFUSED("worker")),
        SCRIPT("an answer of another rank is none", REFUSED("rank")),
        SCRIPT("an answer of another epoch is none", REFUSED("epoch")),
        SCRIPT("an answer without its beginning is none", REFUSED("second")),
        SCRIPT("an answer with a barrier to come is none", REFUSED("barrier")),
        SCRIPT("a snapshot with a removal is none", REFUSED("removal")),
        SCRIPT("a snapshot with a clear is none", REFUSED("clear")),
        SCRIPT("an answer of another kind is none", REFUSED("kind")),
        SCRIPT("sums that nobody asked for are no answer", REFUSED("sums")),
        /* The rest of it arrives too late. */
        SCRIPT(
            "a snapshot that stops half way is discarded",
            JOIN "flaw open, blocks +50 6 host 8, wait 1010, failed 1, flaw second, blocks +50,"
                 "lists 0"),
        /* Part of the snapshot was walked after the event that the heartbeat describes, which does
         * not prove it either. */
        SCRIPT(
            "a heartbeat from before the end of a snapshot does not invalidate it",
            JOIN "flaw moved, blocks +50 6 host 8, beat 1 +50 3, differs 0, no-ask, SYNCING"),
        SCRIPT(
            "a busy bridge is sent no request for as long as it says",
            JOIN "busy 200, SYNCING(joined_late), wait 190, no-ask, wait 20, ask snapshot,"
                 "failed 0"),
        SCRIPT(
            "a bridge that never answers gets fewer and fewer requests",
            JOIN "beats 60, asked 7 15, PARTIAL(joined_late)"),

        /* ---- Repair: no event is missing, but the list differs ---- */

        SCRIPT(
            "differing blocks are replaced",
            DIFFERING "ask digest, sums +1 6, buckets-differ 2, ask buckets 5 6, blocks +1 6,"
                      "lists 1, repaired 1, beat 1 +1 1 digest 6, EXACT"),
        /* With the seed of another epoch, every bucket has a different sum. */
        SCRIPT(
            "sums of another seed are no answer",
            DIFFERING "ask digest, sums +1 6 43, buckets-differ 0, failed 1, SYNCING(differs)"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
