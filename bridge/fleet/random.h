#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The fleet's dice: splitmix64, so that one seed gives one run on every machine.
 * A sequence is nothing but its state, which the caller keeps and seeds with any
 * number.  Threads: the caller locks. */
uint64_t kvb_random_next(uint64_t *state);

/* 0 .. below-1; below is not 0.  The bias of the remainder does not matter here. */
uint64_t kvb_random_below(uint64_t *state, uint64_t below);

/* True with this probability, 0 .. 1. */
bool kvb_random_chance(uint64_t *state, double probability);
