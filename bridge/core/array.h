#pragma once

#include "core/status.h"

#include <stddef.h>

/* Makes room for `need` items in a growing array.  Doubles its capacity, up to a ceiling.
 *
 *     KVB_TRY(kvb_array_reserve(
 *         &batch->events, &batch->event_capacity, need, sizeof *batch->events, ceiling));
 *
 * `array` is the address of the pointer, of any object pointer type.  The caller owns and frees the
 * memory.  Nothing changes on failure.
 * Threads: the caller locks.
 *
 * KVB_TOO_LARGE  need is above ceiling
 * KVB_NO_MEMORY  allocation failed
 *
 * The check is inline, because nearly every call finds room, and each block of an engine takes
 * several calls. */
kvb_status
kvb_array_grow(void *array, size_t *capacity, size_t need, size_t item_bytes, size_t ceiling);

static inline kvb_status
kvb_array_reserve(void *array, size_t *capacity, size_t need, size_t item_bytes, size_t ceiling)
{
    return need <= *capacity ? KVB_OK : kvb_array_grow(array, capacity, need, item_bytes, ceiling);
}
