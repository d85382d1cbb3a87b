#include "kvbridge/echo.h"

#include "core/clock.h"

static const uint64_t patience_ns = kvb_echo_patience_ms * KVB_NS_PER_MS;

void kvb_echo_reset(struct kvb_echo *echo)
{
    *echo = (struct kvb_echo){ 0 };
}

void kvb_echo_sent(struct kvb_echo *echo, uint64_t now_ns)
{
    if (!echo->is_awaited) {
        echo->is_awaited = true;
        echo->sent_ns = now_ns;
    }
}

void kvb_echo_received(struct kvb_echo *echo)
{
    echo->is_awaited = false;
}

bool kvb_echo_is_missing(const struct kvb_echo *echo, uint64_t now_ns)
{
    return echo->is_awaited && now_ns - echo->sent_ns >= patience_ns;
}
