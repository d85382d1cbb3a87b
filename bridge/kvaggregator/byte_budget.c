#include "kvaggregator/byte_budget.h"

void kvb_byte_budget_init(struct kvb_byte_budget *budget, size_t limit_bytes)
{
    *budget = (struct kvb_byte_budget){ .limit_bytes = limit_bytes };
    (void)pthread_mutex_init(&budget->lock, NULL); /* with glibc and no attributes */
    (void)pthread_cond_init(&budget->given, NULL); /* these two cannot fail */
}

void kvb_byte_budget_done(struct kvb_byte_budget *budget)
{
    (void)pthread_cond_destroy(&budget->given);
    (void)pthread_mutex_destroy(&budget->lock);
}

static bool budget_has_room(const struct kvb_byte_budget *budget, size_t bytes)
{
    return budget->taken_bytes == 0 ||
           (bytes <= budget->limit_bytes && budget->taken_bytes <= budget->limit_bytes - bytes);
}

/* The caller holds the lock. */
static kvb_status take_locked(struct kvb_byte_budget *budget, size_t bytes)
{
    if (budget->is_closed) {
        return KVB_CLOSED;
    }
    if (!budget_has_room(budget, bytes)) {
        return KVB_AGAIN;
    }
    budget->taken_bytes += bytes;
    return KVB_OK;
}

kvb_status kvb_byte_budget_take(struct kvb_byte_budget *budget, size_t bytes)
{
    (void)pthread_mutex_lock(&budget->lock);
    kvb_status status = take_locked(budget, bytes);
    while (status == KVB_AGAIN) {
        (void)pthread_cond_wait(&budget->given, &budget->lock);
        status = take_locked(budget, bytes);
    }
    (void)pthread_mutex_unlock(&budget->lock);
    return status;
}

kvb_status kvb_byte_budget_try(struct kvb_byte_budget *budget, size_t bytes)
{
    (void)pthread_mutex_lock(&budget->lock);
    const kvb_status status = take_locked(budget, bytes);
    (void)pthread_mutex_unlock(&budget->lock);
    return status;
}

void kvb_byte_budget_give(struct kvb_byte_budget *budget, size_t bytes)
{
    (void)pthread_mutex_lock(&budget->lock);
    budget->taken_bytes -= bytes;
    (void)pthread_cond_broadcast(&budget->given);
    (void)pthread_mutex_unlock(&budget->lock);
}

void kvb_byte_budget_close(struct kvb_byte_budget *budget)
{
    (void)pthread_mutex_lock(&budget->lock);
    budget->is_closed = true;
    (void)pthread_cond_broadcast(&budget->given);
    (void)pthread_mutex_unlock(&budget->lock);
}
