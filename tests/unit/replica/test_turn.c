#include "kvb_test.h"

#include "follower_script.h"

/* The turns of an aggregator; the steps are those of follower_script.h. */
SUITE(turn)
{
    const struct CMUnitTest tests[] = {
        /* Each takes 0.1 ms, and they have 0.2 ms. */
        SCRIPT(
            "queries wait for few messages however many there are",
            "world, messages 10, turn 0, waiting 8, log mmq"),

        /* ---- Between two turns ---- */

        /* The thread was asleep: anything may have happened. */
        SCRIPT(
            "a turn is current until its tick is a period late",
            "world, turn 1000, current, pass 199, current, pass 1, outdated, turn 0, current"),
        SCRIPT(
            "a turn is not current when the connection has changed",
            "world, disconnect, outdated, turn 0, outdated, connect, outdated, turn 0, current,"
            "reconnect, outdated"),

        /* ---- NATS ---- */

        SCRIPT(
            "a connection replaced between two turns counts once as a loss",
            "world, reconnect, turn 0, STALE(nats_away), beat 1 +1 1, EXACT, turn 0, EXACT"),
        /* One echo that comes back is enough. */
        SCRIPT(
            "a server that delivers nothing is away after one and a half seconds",
            "world, echo lost, turn 500, turn 100 14, EXACT, turn 100, STALE(nats_away), turn 100,"
            "silences 1, echo well, turn 500, turn 0, there"),
        SCRIPT(
            "echoes of a lost connection are not awaited",
            "world, echo lost, turn 500, turn 1400, reconnect, turn 0, turn 200, there, silences "
            "0"),
        SCRIPT(
            "an echo that cannot be sent is not awaited and tried again",
            "world, echo refused, turn 100 40, there, echoes 0, echo well, turn 500, echoes 1"),

        /* ---- Lag and drops ---- */

        SCRIPT(
            "lag begins at a second and ends below a quarter",
            "world, late 999, turn 0, EXACT, late 1000, turn 0, STALE(lagging), late 250, turn 0,"
            "lagging, late 249, turn 0, prompt"),
        SCRIPT(
            "dropped messages make lists stale until they are proven",
            "world, drop 3, turn 100, STALE(lagging), beat 1 +1 1, turn 100, EXACT"),

        /* ---- Pauses of the process ---- */

        SCRIPT(
            "after a pause no query is answered from what was known before",
            /* it was stopped: nothing was read, so nothing waits here */
            "world, echo lost, turn 4000, STALE(lagging), outdated, turn 499, log tt,"
            /* they wait no longer, and the answer says STALE */
            "turn 1, log q,"
            /* the echo is back, and all before it waits here */
            "echo well, unread, turn 500, turn 0, STALE(lagging),"
            /* one that waited */
            "beat 1 +1 1, turn 50, STALE(lagging), read, turn 0, EXACT"),
        /* Too short to be a pause, but meanwhile the echo should have returned.  NATS may have gone
         * on in it: what it brought is not read yet. */
        SCRIPT(
            "an echo that became late in a short pause is noticed before any answer",
            "world, echo lost, turn 500, turn 999, EXACT, log qtqt, turn 999, behind 0,"
            "STALE(nats_away), log qt, silences 1"),
        /* A thread that gets hardly any time, or messages that take seconds. */
        SCRIPT(
            "pauses in each turn do not hold queries for ever",
            "world, unread, turn 1000, log t, turn 1000, turn 1000, log qtqt"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
