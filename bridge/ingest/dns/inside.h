#pragma once

#include "ingest/dns/entry.h"

#include <stdbool.h>

/* Internal to resolver.c and lookup.c. */

/* True: c-ares is initialised. */
bool kvb_dns_is_library_ready(void);

/* The result for a status of c-ares.  ARES_SUCCESS here means that the answer had no address. */
enum kvb_dns_result kvb_dns_result_of(int status);
