#include "kvb_test.h"

#include "kvbridge/refresh.h"

#include <stdlib.h>
#include <string.h>

enum { waiting = 64, sent = 1000 };

static void a_flood_of_requests_is_dropped_and_counted(void **state)
{
    struct bridge_refresh refresh = { 0 };
    const struct kvb_bus_message message = { .subject = "namespace.a.component.b.kv_refresh",
                                             .reply = "_INBOX.x.1" };
    void *item = NULL;
    uint64_t taken = 0;

    (void)state;
    assert_ok(kvb_ring_new(waiting, free, &refresh.requests));
    for (int i = 0; i < sent; i++) {
        kvb_bridge_refresh_receive(&refresh, &message);
    }
    for (; kvb_ring_take(refresh.requests, &item) == KVB_OK; taken++) {
        free(item);
    }
    assert_true(taken > 0 && taken < sent);
    assert_int_equal(refresh.refused, sent - taken);
    kvb_ring_free(refresh.requests);
}

SUITE(refresh)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_of_requests_is_dropped_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
