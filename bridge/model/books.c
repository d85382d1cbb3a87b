#include "model/books.h"

#include <stdlib.h>

void kvb_shared_decision_done(struct kvb_shared_decision *decision)
{
    free(decision->storage);
    *decision = (struct kvb_shared_decision){ 0 };
}
