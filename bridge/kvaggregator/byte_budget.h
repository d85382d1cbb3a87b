#pragma once

#include "core/status.h"

#include <pthread.h>
#include <stddef.h>

/* Bounds the memory of the items between two threads, where a ring bounds only their number.  An
 * item larger than the whole budget passes when no other bytes are taken.
 *
 * Threads: any thread. */
struct kvb_byte_budget {
    pthread_mutex_t lock;
    size_t limit_bytes;
    size_t taken_bytes;
};

void kvb_byte_budget_init(struct kvb_byte_budget *budget, size_t limit_bytes);
void kvb_byte_budget_done(struct kvb_byte_budget *budget);

/* KVB_AGAIN: there is no room, nothing was taken. */
kvb_status kvb_byte_budget_try(struct kvb_byte_budget *budget, size_t bytes);
void kvb_byte_budget_give(struct kvb_byte_budget *budget, size_t bytes);
