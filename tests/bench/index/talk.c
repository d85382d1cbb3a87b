#include "index/talk.h"

#include "parts/bench.h"

static const size_t blocks[talk_parts] = { 32, 64, 8 };

void talk_init(struct talk *talk)
{
    for (size_t i = 0; i < talk_parts; i++) {
        chain_init(&talk->parts[i], blocks[i]);
    }
}

void talk_done(struct talk *talk)
{
    for (size_t i = 0; i < talk_parts; i++) {
        chain_done(&talk->parts[i]);
    }
}

void talk_make(struct talk *talk, uint32_t worker, uint32_t number)
{
    enum { system_prompts = 16 };
    const uint64_t content = (uint64_t)(worker + 1) << 32 | number;
    struct chain *parts = talk->parts;

    chain_make(&parts[talk_system], bench_mix(content) % system_prompts, NULL);
    chain_make(&parts[talk_said], content, &parts[talk_system].blocks[blocks[talk_system] - 1]);
    chain_make(&parts[talk_next], ~content, &parts[talk_said].blocks[blocks[talk_said] - 1]);
}
