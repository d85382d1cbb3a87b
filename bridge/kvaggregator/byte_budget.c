#include "kvaggregator/byte_budget.h"

#include <stdbool.h>

void kvb_byte_budget_init(struct kvb_byte_budget *budget, size_t limit_bytes)
{
    *budget = (struct kvb_byte_budget){ .limit_bytes = limit_bytes };
    (void)pthread_mutex_init(&budget->lock, NULL); /* cannot fail with glibc and no attributes */
}

void kvb_byte_budget_done(struct kvb_byte_budget *budget)
{
    (void)pthread_mutex_destroy(&budget->lock);
}

kvb_status kvb_byte_budget_try(struct kvb_byte_budget *budget, size_t bytes)
{
    (void)pthread_mutex_lock(&budget->lock);
    /* Alone it passes whatever its size, or it never would. */
    const bool has_room =
        budget->taken_bytes == 0 ||
        (bytes <= budget->limit_bytes && budget->taken_bytes <= budget->limit_bytes - bytes);
    budget->taken_bytes += has_room ? bytes : 0;
    (void)pthread_mutex_unlock(&budget->lock);
    return has_room ? KVB_OK : KVB_AGAIN;
}

void kvb_byte_budget_give(struct kvb_byte_budget *budget, size_t bytes)
{
    (void)pthread_mutex_lock(&budget->lock);
    budget->taken_bytes -= bytes;
    (void)pthread_mutex_unlock(&budget->lock);
}
