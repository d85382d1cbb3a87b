#pragma once

#include "core/status.h"
#include "model/tier.h"

#include <stddef.h>
#include <stdint.h>

/* Our enums may be reordered; the numbers on the wire may not.  Each mapping is
 * a table: our constant -> number of kvbridge.proto.  Threads: any thread. */
extern const uint32_t kvb_proto_tiers[KVB_LIST_COUNT];

/* Finds the index of value in such a table.
 * KVB_BAD_INPUT  not in the table: a number of a newer version, or an invalid one */
kvb_status
kvb_proto_number_find(const uint32_t *numbers, size_t count, uint32_t value, unsigned *out_place);
