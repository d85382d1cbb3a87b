#pragma once

#include "core/span.h"
#include "ingest/http/fetch.h"

#include <stdbool.h>

/* The metrics pages of engines: the functions of ingest/http/scraper.h, in memory.  What is
 * delivered is parsed as the real one does it. */

/* One page for each target that is read just now, or another end of its request. */
void fake_pages_deliver(enum kvb_fetch_outcome outcome, kvb_span text);

bool fake_pages_are_there(void);
