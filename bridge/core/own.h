#pragma once

#include <stdlib.h>
#include <string.h>

/* Runs destroy(&variable) when the variable goes out of scope:
 *
 *     KVB_OWN(drop_options) natsOptions *options = NULL;
 */
#define KVB_OWN(destroy) __attribute__((cleanup(destroy)))

/* For KVB_OWN: frees the memory to which the variable points, of any type. */
static inline void kvb_own_free(const void *variable)
{
    void *memory;
    memcpy(&memory, variable, sizeof memory); /* no (void **): it may not alias the variable */
    free(memory);
}

/* Number of elements of an array.  Must not be used for a pointer. */
#define KVB_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
