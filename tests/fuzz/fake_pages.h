#pragma once

#include "core/span.h"
#include "ingest/http/fetch.h"

#include <stdbool.h>

/* The metrics pages of engines: the functions of ingest/http/scraper.h, in memory.  A delivered
 * text is parsed as the real scraper parses it. */

/* Ends the request of each target that is being read: with this page, or with another outcome. */
void fake_pages_deliver(enum kvb_fetch_outcome outcome, kvb_span text);

bool fake_pages_are_there(void);
