#pragma once

#include "replica/follower.h"
#include "stream/script.h"

/* What an aggregator hears of a stream, and what must hold then, as a script.
 *
 *     begin, exact 1, store 1 +2 6, beat 1 +2 2, EXACT, lists 2
 *
 * The stream is worker 7's.  E is an epoch, a small number, or json: events in that format, which
 * name no epoch.  The next word is an event's id: +2 is the second one after the first, which is
 * 1000; +2^27+1 is that number, 5000 just this one, max the largest.
 *
 *     beginnings   begin [asks] [streams N] [nodes N]   a replica without streams; asks: it asks
 *                               bridges for what is missing
 *                  exact E      the stream is EXACT at +1, and lists block 5
 *                  world        the same, with the aggregator's turns; NATS works
 *     events       clear E ID;  store E ID BLOCK [TIER];  remove E ID BLOCK [TIER]
 *     heartbeats   beat E ID BLOCKS [FACT VALUE]...   EXACT at ID, so many blocks on the device
 *                  bye E ID BLOCKS
 *                  again [FACT VALUE]...  the newest heartbeat, with these changes
 *                  facts: begins ID, host BLOCKS, window BLOCKS, period MS, formats json|both,
 *                  says STATE, digest BLOCK (that the device holds); those of traits: see the code
 *     other streams   as WORKER  whose the next messages are
 *                  crowd W...   each stores a block, in JSON
 *                  bridges W... each has a heartbeat
 *                  refuse       the next message is refused
 *     time         pass MS;  wait MS  with a tick at its end
 *                  beats N      so many seconds with the newest heartbeat, a tick every 100 ms;
 *                               all requests are taken
 *     NATS         away, back, lose (messages), lag, no-lag
 *     the audit    doubt, trust
 *     memory       fill N       others take all of the index but N nodes
 *                  give-back
 *     requests     ask range|snapshot|digest  the next one is that
 *                  ask buckets BLOCK...       of just these blocks' buckets
 *                  no-ask
 *     answers      blocks ID BLOCK... [host|window BLOCK...]
 *                  events ID [ID BLOCK]...;  sums ID BLOCK [SEED];  gone ID;  busy MS
 *                  flaw NAME    of the next answer; see the code
 *                  stale        the next one is an answer to the request before the newest
 *     turns        turn MS [N]  N turns, each after so many ms
 *                  facts of them: echo well|lost|refused, unread, read, connect, disconnect,
 *                  reconnect, drop N, late MS, messages N
 *     what holds   EXACT, PARTIAL(gone), ...
 *                  lists N [TIER], streams N, follows W..., format NAME, last ID, freed
 *                  claim, same-claim, other-claim (than at the last look), claimed, unclaimed
 *                  same-traits, other-traits
 *                  asked MIN MAX  in all beats
 *                  current, outdated, lagging, prompt, there
 *                  log LETTERS  what turns did since the last look: m(essage), q(ueries),
 * r(equest), t(ick) missed N, old N, ...: the counters at the end of the code */
void play_follower_script(void **state);
int end_follower_script(void **state);

#define SCRIPT(name, text) SCRIPT_OF(name, play_follower_script, end_follower_script, text)

/* For what is no script: plays on, and who is played with. */
void follower_script(const char *text);
struct kvb_followers *script_followers(void);
extern const struct kvb_stream_id script_stream;
