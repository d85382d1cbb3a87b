#pragma once

#include "index/chain.h"

#include <stdint.h>

/* A conversation of one worker: a shared system prompt, earlier turns below it, and the user's next
 * turn, which no worker holds. */
enum talk_part { talk_system, talk_said, talk_next, talk_parts };

struct talk {
    struct chain parts[talk_parts];
};

void talk_init(struct talk *talk);
void talk_done(struct talk *talk);

/* Conversation `number` of the worker. */
void talk_make(struct talk *talk, uint32_t worker, uint32_t number);
