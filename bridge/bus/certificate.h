#pragma once

#include "core/status.h"

#include <stdint.h>

/* Until when the first certificate of a PEM file is valid, in seconds since 1970.
 * Threads: any thread.
 * KVB_BAD_CONFIG  it cannot be read or contains no certificate; detail names the file
 * KVB_NO_MEMORY */
kvb_status kvb_certificate_end(const char *path, int64_t *out_unix_s, struct kvb_detail *detail);
