#include "core/random.h"

uint64_t kvb_random_next(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

uint64_t kvb_random_below(uint64_t *state, uint64_t below)
{
    return kvb_random_next(state) % below;
}

double kvb_random_unit(uint64_t *state)
{
    return (double)(kvb_random_next(state) >> 11) * 0x1p-53; /* 53 bits: a double has no more */
}

bool kvb_random_chance(uint64_t *state, double probability)
{
    return kvb_random_unit(state) < probability;
}
