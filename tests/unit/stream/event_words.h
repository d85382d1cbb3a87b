#pragma once

#include "model/event_batch.h"
#include "script.h"

/* An engine's events in the words of a script, for streams and for mirrors alone; events stand
 * between ; and
 *
 *     stored HASH [COUNT] [size N] [tokens FIRST]   blocks HASH, HASH + 1 ... whose tokens are
 * FIRST, FIRST + 1 ..., or begin with the hash removed HASH..., cleared, skipped KIND
 *
 *     [parent HASH] [no-tokens] [sized N] [lookahead N] [paired] [key N]
 *     [group N] [window N] [sparse] [chunked] [odd-kind] [connector]
 *     [device|host|disk|external]   a clear is then one of this tier
 *
 * sized: a block of so many tokens, without them. */
void add_events_of_words(struct kvb_event_batch *batch, size_t at);

/* device, host, disk, external */
enum kvb_tier tier_of_word(size_t at);
