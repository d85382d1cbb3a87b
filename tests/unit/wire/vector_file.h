#pragma once

#include <stddef.h>
#include <stdint.h>

/* Reads the hex of recorded bytes below tests/data. */

/* The whole file as text; the caller frees it.  Fails the test when it is not there. */
char *read_text_file(const char *name);

/* Turns hex digits up to the first other character into bytes; the caller frees
 * them. */
uint8_t *bytes_of_hex(const char *hex, size_t *out_len);
