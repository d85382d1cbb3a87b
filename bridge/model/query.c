#include "model/query.h"

#include <stdlib.h>

void kvb_query_done(struct kvb_query *query)
{
    free(query->tokens);
    free(query->hashes);
    *query = (struct kvb_query){ 0 };
}
