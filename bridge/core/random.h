#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Random numbers by splitmix64: one seed gives the same sequence on every machine.  A sequence
 * is nothing but its state, which the caller keeps and seeds with any number.  Threads: the caller
 * locks. */
uint64_t kvb_random_next(uint64_t *state);

/* 0 .. below-1; below is not 0.  The bias of the remainder does not matter here. */
uint64_t kvb_random_below(uint64_t *state, uint64_t below);

/* 0 .. 1, without 1. */
double kvb_random_unit(uint64_t *state);

/* True with this probability, 0 .. 1. */
bool kvb_random_chance(uint64_t *state, double probability);
