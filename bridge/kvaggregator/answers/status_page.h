#pragma once

#include <stddef.h>

/* status_page.html, as status_page.cmake puts it into the program.
 * Threads: constant. */
extern const char kvb_status_page[];
extern const size_t kvb_status_page_bytes;

/* Its Content-Security-Policy: allows the one script and the one style in it, by the
 * hash of their bytes, and queries to the address it came from. */
extern const char kvb_status_page_policy[];

/* Quoted; another page has another one. */
extern const char kvb_status_page_etag[];
