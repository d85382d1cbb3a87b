#pragma once

/* Runs destroy(&variable) when the variable goes out of scope:
 *
 *     KVB_OWN(drop_options) natsOptions *options = NULL;
 */
#define KVB_OWN(destroy) __attribute__((cleanup(destroy)))

/* Elements of a true array (not of a pointer). */
#define KVB_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
