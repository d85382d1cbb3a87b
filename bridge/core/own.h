#pragma once

/* Runs destroy(&variable) when the variable goes out of scope:
 *
 *     KVB_OWN(drop_options) natsOptions *options = NULL;
 */
#define KVB_OWN(destroy) __attribute__((cleanup(destroy)))

/* Number of elements of an array.  Must not be used for a pointer. */
#define KVB_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
