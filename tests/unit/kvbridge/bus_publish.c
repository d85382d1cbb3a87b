#include "bus_publish.h"

#include "bus/bus.h"

kvb_status (*on_bus_publish)(const char *subject, kvb_span payload);

/* The linker prescribes this name. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
kvb_status __wrap_kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload);
kvb_status __wrap_kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload)
{
    (void)bus;
    return on_bus_publish(subject, payload);
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */
