#pragma once

#include "core/status.h"
#include "stream/mirror/shown.h"
#include "stream/republish/republisher.h"
#include "wire/router/bridge_status.h"

#include <stdbool.h>
#include <stdint.h>

/* A rank's events once more, for readers of engines. */

struct kvb_bridge;
struct bridge_rank;

/* After the rank's checkpoint was restored.  Does nothing where that is not configured.  What it
 * has opened is closed with the rank, also on failure. */
kvb_status kvb_bridge_open_republish(struct kvb_bridge *bridge, struct bridge_rank *rank);

enum bridge_republish_end { BRIDGE_REPUBLISH_STOP, BRIDGE_REPUBLISH_WORKER_GONE };
void kvb_bridge_close_republish(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum bridge_republish_end end);

/* One turn of all of them, of max_ns at most.  True: there is more to do. */
bool kvb_bridge_republish(struct kvb_bridge *bridge, uint64_t max_ns);

/* A reader has sent something. */
void kvb_bridge_republish_input(struct bridge_rank *rank);

/* The bridge stops, and uses no more numbers. */
void kvb_bridge_save_numbers(struct kvb_bridge *bridge);

/* Borrowed; rank->republish is not NULL. */
const struct kvb_republish_counts *kvb_bridge_count_republish(const struct bridge_rank *rank);
/* Borrowed texts. */
void kvb_bridge_report_republish(const struct bridge_rank *rank, struct kvb_republish_report *out);
/* Why it does not listen; "": it does. */
const char *kvb_bridge_republish_trouble(const struct bridge_rank *rank);

/* Of a rank that is republished: what its readers have been shown.  Borrowed. */
struct kvb_shown *kvb_bridge_shown_of(const struct bridge_rank *rank);
