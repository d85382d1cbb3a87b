#pragma once

#include "core/buf.h"
#include "core/status.h"

#include <stdint.h>

/* A bridge's /metrics, fetched once and read as often as one likes. */

/* Appends head and body, NUL-terminated, to an empty page.  KVB_IO, KVB_NO_MEMORY, KVB_TOO_LARGE */
kvb_status bridge_page_fetch(uint16_t http_port, struct kvb_buf *page);

/* "kvb_gaps_total", with its labels where it has some; 0 when it is not there. */
uint64_t bridge_page_value(const struct kvb_buf *page, const char *metric);
