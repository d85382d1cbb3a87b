#pragma once

#include "core/span.h"
#include "core/status.h"

/* What kvb_bus_publish() does in this program (--wrap); each suite that publishes sets it. */
extern kvb_status (*on_bus_publish)(const char *subject, kvb_span payload);
