#include "kvbridge/challenges.h"

#include "core/clock.h"

#include <stdio.h>
#include <string.h>

static const uint64_t good_for_ns = 10 * KVB_NS_PER_S;

void kvb_challenges_give(
    struct kvb_challenges *challenges, const uint8_t random[16], uint64_t now_ns,
    char out_text[kvb_forward_challenge_bytes])
{
    for (size_t i = 0; i < 16; i++) {
        (void)snprintf(out_text + 2 * i, 3, "%02x", random[i]); /* fits */
    }
    memcpy(challenges->items[challenges->next].text, out_text, kvb_forward_challenge_bytes);
    challenges->items[challenges->next].until_ns = now_ns + good_for_ns;
    challenges->next = (challenges->next + 1) % kvb_challenges_max;
}

bool kvb_challenges_use(struct kvb_challenges *challenges, const char *text, uint64_t now_ns)
{
    for (size_t i = 0; text[0] != '\0' && i < kvb_challenges_max; i++) {
        if (strcmp(challenges->items[i].text, text) == 0) {
            challenges->items[i].text[0] = '\0';
            return now_ns < challenges->items[i].until_ns;
        }
    }
    return false;
}
