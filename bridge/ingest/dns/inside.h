#pragma once

#include "ingest/dns/entry.h"

#include <stdbool.h>

/* What resolver.c and lookup.c share; for these two only. */

/* c-ares is initialised. */
bool kvb_dns_is_library_ready(void);

/* Of a status of c-ares; ARES_SUCCESS means that there was no address in the answer. */
enum kvb_dns_result kvb_dns_result_of(int status);
