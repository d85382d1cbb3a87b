#pragma once

#include <stddef.h>
#include <stdint.h>

/* Reads recorded bytes, written as hex, from files below tests/data. */

/* The whole file as text, which the caller frees. Fails the test when the file is missing. */
char *read_text_file(const char *name);

/* Converts hex digits, up to the first other character, to bytes, which the caller frees. */
uint8_t *bytes_of_hex(const char *hex, size_t *out_len);
