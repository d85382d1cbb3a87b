#pragma once

#include "core/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* A counting semaphore for bytes: bounds the memory of the items between two threads, where a ring
 * bounds only their number.  take() waits until enough bytes were given back.  An item larger than
 * the whole budget passes when no other bytes are taken.
 *
 * Threads: any thread. */
struct kvb_byte_budget {
    pthread_mutex_t lock;
    pthread_cond_t given;
    size_t limit_bytes;
    size_t taken_bytes;
    bool is_closed;
};

void kvb_byte_budget_init(struct kvb_byte_budget *budget, size_t limit_bytes);
void kvb_byte_budget_done(struct kvb_byte_budget *budget);

/* KVB_CLOSED: nothing was taken. */
kvb_status kvb_byte_budget_take(struct kvb_byte_budget *budget, size_t bytes);

/* The same without waiting.  KVB_AGAIN: there is no room, nothing was taken. */
kvb_status kvb_byte_budget_try(struct kvb_byte_budget *budget, size_t bytes);
void kvb_byte_budget_give(struct kvb_byte_budget *budget, size_t bytes);

/* Wakes all waiting threads; later calls of take are refused. */
void kvb_byte_budget_close(struct kvb_byte_budget *budget);
