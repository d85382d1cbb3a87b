#pragma once

#include "core/span.h"
#include "target.h"

/* libconfig's scanner loses its buffer when a file ends within a string.
 * NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libconfig";
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

enum { max_operations = 400 };

/* The input, read from its beginning as a program of operations. */
static struct program {
    const uint8_t *data;
    size_t size, at, operations;
} program;

static inline uint8_t next_byte(void)
{
    return program.at < program.size ? program.data[program.at++] : 0;
}

/* The next byte of the input is a length; returns so many bytes after it. */
static inline kvb_span next_span(void)
{
    const size_t wanted = next_byte();
    const size_t left = program.size - program.at;
    const kvb_span span = { program.data + program.at, wanted < left ? wanted : left };

    program.at += span.len;
    return span;
}

static inline uint64_t next_number(void)
{
    uint64_t number = 0;

    for (int i = 0; i < 8; i++) {
        number = number << 8 | next_byte();
    }
    return number;
}

/* True while the input has another operation; the next byte says which one. */
static inline bool next_operation(void)
{
    return program.at < program.size && program.operations++ < max_operations;
}
