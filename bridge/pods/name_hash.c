#include "pods/name_hash.h"

/* SipHash-1-3: one round for each word of eight bytes, three rounds at the end.
 *
 *     name n bytes | 0xff | zeros | length mod 256        the length is the last byte of a word
 */

struct sip_state {
    uint64_t v0;
    uint64_t v1;
    uint64_t v2;
    uint64_t v3;
};

static uint64_t rotate_left(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static void sip_round(struct sip_state *state)
{
    state->v0 += state->v1;
    state->v1 = rotate_left(state->v1, 13) ^ state->v0;
    state->v0 = rotate_left(state->v0, 32);
    state->v2 += state->v3;
    state->v3 = rotate_left(state->v3, 16) ^ state->v2;
    state->v0 += state->v3;
    state->v3 = rotate_left(state->v3, 21) ^ state->v0;
    state->v2 += state->v1;
    state->v1 = rotate_left(state->v1, 17) ^ state->v2;
    state->v2 = rotate_left(state->v2, 32);
}

static void sip_take_word(struct sip_state *state, uint64_t word)
{
    state->v3 ^= word;
    sip_round(state);
    state->v0 ^= word;
}

uint64_t kvb_pod_name_hash(kvb_span name)
{
    static const uint64_t below_2_53 = (UINT64_C(1) << 53) - 1;
    /* the initial state of SipHash for a key of zeros: "somepseudorandomlygeneratedbytes" */
    struct sip_state state = { .v0 = UINT64_C(0x736f6d6570736575),
                               .v1 = UINT64_C(0x646f72616e646f6d),
                               .v2 = UINT64_C(0x6c7967656e657261),
                               .v3 = UINT64_C(0x7465646279746573) };
    uint64_t word = 0;

    for (size_t at = 0; at <= name.len; at++) {
        const uint64_t byte = at < name.len ? name.data[at] : 0xff;
        word |= byte << (8 * (at % 8));
        if (at % 8 == 7) {
            sip_take_word(&state, word);
            word = 0;
        }
    }
    sip_take_word(&state, word | (uint64_t)((name.len + 1) & 0xff) << 56);
    state.v2 ^= 0xff;
    for (int i = 0; i < 3; i++) {
        sip_round(&state);
    }
    return (state.v0 ^ state.v1 ^ state.v2 ^ state.v3) & below_2_53;
}
