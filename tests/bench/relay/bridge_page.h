#pragma once

#include "core/buf.h"
#include "core/status.h"

#include <stdint.h>

/* The /metrics page of a bridge, fetched once and read any number of times. */

/* Appends head and body, NUL-terminated, to an empty page.  KVB_IO, KVB_NO_MEMORY, KVB_TOO_LARGE */
kvb_status bridge_page_fetch(uint16_t http_port, struct kvb_buf *page);

/* "kvb_gaps_total", with its labels if it has some; 0 when it is not on the page. */
uint64_t bridge_page_value(const struct kvb_buf *page, const char *metric);
