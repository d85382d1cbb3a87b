#pragma once

#include "core/status.h"
#include "model/event_batch.h"

#include <stddef.h>

/* Writes a batch as one line of text: its events separated by ';', then the rank. */

/* "stored host after 5 7 size 2 tokens 1 2; removed disk 2a; rank 0"; good until the
 * next call. */
const char *line_of(const struct kvb_event_batch *batch);

/* Decodes hex (spaces allowed). */
kvb_status decode_hex(const char *spaced, struct kvb_event_batch *batch);

struct case_of_hex {
    const char *hex;
    const char *want; /* the expected line */
};

void check_cases(const struct case_of_hex *cases, size_t count);

#define CHECK_CASES(cases) check_cases(cases, sizeof(cases) / sizeof(cases)[0])

/* The tags of events in array form, as hex. */
#define STORED "ab 426c6f636b53746f726564 "
#define REMOVED "ac 426c6f636b52656d6f766564 "
