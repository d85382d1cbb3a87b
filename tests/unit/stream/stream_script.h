#pragma once

#include "script.h"

/* The life of a stream as a script: what happens to it, and what must hold then.
 *
 *     begin, up, ask 0, reply 0-1, confirm, live 1, EXACT, lists 2
 *
 * Batch N of an engine stores one prompt of one token.  N' is batch N of the engine's next
 * incarnation, with another prompt.
 *
 *     beginnings   begin        a stream that is not connected, with these options:
 *                                 [drop N] [total N] [store yes]
 *                                 [removals detect|complete|incomplete], of which all tiers are
 *                                 published
 *                  alone        the same, without a replay endpoint
 *                  idle N       connected, N batches came in a replay
 *                  exact N      the same, and the newest came live
 *                  new [salts]  an engine that has published nothing; its requests may have salts
 *                  pool TIER [N]  a store, without replays, of which this tier is published; its
 *                               blocks have N tokens
 *                  sliced [alone]  connected and asked; a batch of more than five prompts is
 *                               applied in slices of five
 *     events       up, down, pause, end, cut, tick
 *                  live N..., reply N...
 *                  clear N, clear-reply N      the batch clears the list
 *                  garbled N, garbled-reply N  it cannot be decoded
 *                  orphan N, orphan-gone N     it stores a block without its parent, or removes it
 *                  large N, large-reply N      it stores 20 prompts
 *                  batch N EVENTS, batch-reply N EVENTS  it has these events (event_words.h)
 *                  next EVENTS  the same in the live batch behind the newest one
 *                  bytes N EVENTS, bytes-reply N EVENTS  it has the bytes of these events
 *                               (event_bytes.h); the first live one is looked for in the replay
 *     time         ms N         in ticks of 50 ms
 *                  leap N       in one tick
 *                  wait N       until a replay is wanted, at most so many ms
 *                  finish       ticks until no slice is left
 *                  parts N      the same; the batch takes N or N + 1 slices
 *     replays      ask [N]      a replay is wanted, from N on, and starts
 *                  no-ask       none is wanted
 *                  need probe|history|missing|proof
 *                  confirm      end; if the engine is asked once more, it sends the same and ends.
 *                               confirm' does so for the next incarnation
 *                  find N       a moment later batch N is asked for, and comes
 *                  topics yes|no  the engine's replies have topics
 *                  suspect      the engine may have restarted
 *     processes    restart      the stream is saved, and a new process restores it
 *                  restart anew ... and needs a new epoch
 *     the page     shows NAME VALUE...   of the page of metrics, from now on: sleep, started,
 *                       smaller, resets, hidden, speculation; total, sure, waiting, running, used,
 *                       counts-running, caching; of SGLang locked, evictable
 *                  page NAME VALUE...   the same, and it is read
 *                  second       1 s; a probe is answered
 *                  answer       the same at once
 *                  signs S...   what the page has shown: asleep, awake, restart, occupancy,
 *                               reset, hidden, none
 *                  watch N [S...]   N times page and second; all that it has shown meanwhile
 *     what holds   EXACT, UNVERIFIED(no_base), ...
 *                  lists N; has N...; lacks N...
 *                  holds T..., misses T...  the block at the end of a prompt of these tokens
 *                  beat NAME N...  a heartbeat says so: paired, store, drop, window, in-window,
 *                               blocks, block-size, lookahead, shapes, missing
 *                  tier TIER REASON|fine
 *                  cleared, uncleared  in the event before
 *                  drops        the replay under way is not needed any more
 *                  changed, unchanged  a heartbeat is due, or not
 *                  more, no-more       slices
 *                  publishes N  so many events
 *                  newest N|none  the newest batch
 *                  kept-epoch   as before the restart
 *                  discarded, kept  the engine's cache
 *                  why TEXT     is in the sentence of the state's reason
 *                  replaying
 *                  gaps N, missed N, clears N, duplicates N, restarts N, poison N  so far
 *                  aliases N, doubtful N, names-refused N, no-tokens N, proven N, self-parents N,
 *                  shapes N, unknown-removed N, unmatchable N, unplaced N */
void play_stream_script(void **state);
int end_stream_script(void **state);

#define SCRIPT(name, text) SCRIPT_OF(name, play_stream_script, end_stream_script, text)
