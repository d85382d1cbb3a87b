#include "bus/server_list.h"

#include "bus/server_url.h"
#include "core/random.h"

static void swap(const char **servers, size_t a, size_t b)
{
    const char *server = servers[a];

    servers[a] = servers[b];
    servers[b] = server;
}

/* Fisher and Yates. */
static void shuffle(const char **servers, size_t count, uint64_t seed)
{
    for (size_t left = count; left > 1; left--) {
        swap(servers, left - 1, (size_t)kvb_random_below(&seed, left));
    }
}

void kvb_server_list_order(const char **servers, size_t count, const char *left, uint64_t seed)
{
    size_t rest = count;

    shuffle(servers, count, seed);
    for (size_t i = 0; left[0] && i < rest;) {
        if (kvb_server_url_is_same(servers[i], left)) {
            swap(servers, i, --rest); /* the one that took its place is looked at next */
        } else {
            i++;
        }
    }
}
