#include "kvaggregator/registrars.h"

#include "core/clock.h"

#include <string.h>

static bool has_offer_of(const struct kvb_registrars *registrars, const char *bridge)
{
    for (size_t i = 0; i < registrars->count; i++) {
        if (strcmp(registrars->offers[i].bridge, bridge) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_preferred(const struct kvb_forward_offer *a, const struct kvb_forward_offer *b)
{
    if (a->held != b->held) {
        return a->held > b->held;
    }
    if (a->ranks != b->ranks) {
        return a->ranks < b->ranks;
    }
    return strcmp(a->bridge, b->bridge) < 0;
}

static struct kvb_forward_offer *find_last_choice(struct kvb_registrars *registrars)
{
    struct kvb_forward_offer *last = &registrars->offers[0];

    for (size_t i = 1; i < registrars->count; i++) {
        if (is_preferred(last, &registrars->offers[i])) {
            last = &registrars->offers[i];
        }
    }
    return last;
}

void kvb_registrars_add(
    struct kvb_registrars *registrars, const struct kvb_forward_offer *offer, uint64_t now_ns)
{
    if (has_offer_of(registrars, offer->bridge)) {
        return;
    }
    struct kvb_forward_offer *place = &registrars->offers[registrars->count];
    if (registrars->count == kvb_max_registrars) {
        registrars->left_out++;
        place = find_last_choice(registrars);
        if (!is_preferred(offer, place)) {
            return;
        }
    } else {
        registrars->count++;
    }
    *place = *offer;
    registrars->newest_ns = now_ns;
    registrars->has_holder |= offer->held > 0;
}

uint64_t kvb_registrars_until_ns(const struct kvb_registrars *registrars)
{
    const uint64_t last_ns = registrars->asked_ns + kvb_registrars_first_ms * KVB_NS_PER_MS;
    const uint64_t next_ns = registrars->newest_ns + kvb_registrars_next_ms * KVB_NS_PER_MS;

    if (registrars->has_nobody) {
        return registrars->asked_ns;
    }
    return registrars->has_holder && next_ns < last_ns ? next_ns : last_ns;
}

const struct kvb_forward_offer *kvb_registrars_choose(const struct kvb_registrars *registrars)
{
    const struct kvb_forward_offer *best = NULL;

    for (size_t i = 0; i < registrars->count; i++) {
        if (!best || is_preferred(&registrars->offers[i], best)) {
            best = &registrars->offers[i];
        }
    }
    return best;
}

const struct kvb_forward_offer *
kvb_registrars_next_holder(const struct kvb_registrars *registrars, size_t *at)
{
    while (*at < registrars->count) {
        const struct kvb_forward_offer *offer = &registrars->offers[(*at)++];
        if (offer->held > 0) {
            return offer;
        }
    }
    return NULL;
}
