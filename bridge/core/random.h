#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Random numbers by splitmix64.  One seed gives the same sequence on every machine.  The caller
 * keeps the state and seeds it with any number.  Threads: the caller locks. */
uint64_t kvb_random_next(uint64_t *state);

/* Returns 0 .. below-1.  `below` must not be 0.  The remainder has a small bias. */
uint64_t kvb_random_below(uint64_t *state, uint64_t below);

/* Returns a number from 0 up to, but not including, 1. */
double kvb_random_unit(uint64_t *state);

/* Returns true with this probability, 0 .. 1.  Only simulated engines and tests draw so. */
bool kvb_random_chance(uint64_t *state, double probability);
