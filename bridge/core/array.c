#include "core/array.h"

#include <stdlib.h>
#include <string.h>

enum { first_items = 16 };

/* Returns the next capacity: doubles until `need` fits, up to the ceiling. */
static size_t next_capacity(size_t capacity, size_t need, size_t ceiling)
{
    size_t next = capacity ? capacity : first_items;

    while (next < need) {
        next *= 2; /* cannot overflow: need <= ceiling, and the bytes of the ceiling were checked */
    }
    return next < ceiling ? next : ceiling;
}

kvb_status
kvb_array_grow(void *array, size_t *capacity, size_t need, size_t item_bytes, size_t ceiling)
{
    void *items = NULL;
    size_t bytes = 0;

    if (need > ceiling || __builtin_mul_overflow(ceiling, 2 * item_bytes, &bytes)) {
        return KVB_TOO_LARGE;
    }
    const size_t next = next_capacity(*capacity, need, ceiling);
    /* The pointer is read and stored as bytes, because `array` points to a pointer of any type. */
    memcpy(&items, array, sizeof items);
    items = realloc(items, next * item_bytes);
    if (!items) {
        return KVB_NO_MEMORY;
    }
    memcpy(array, &items, sizeof items);
    *capacity = next;
    return KVB_OK;
}
