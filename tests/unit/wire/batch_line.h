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

/* The tags of events in array form, as hex. */
#define STORED "ab 426c6f636b53746f726564 "
#define REMOVED "ac 426c6f636b52656d6f766564 "
