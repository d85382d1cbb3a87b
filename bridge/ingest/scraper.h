#pragma once

#include "core/detail.h"
#include "core/status.h"
#include "ingest/http_fetch.h"
#include "model/load.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the /metrics pages of engines, each in its period, all in one thread of its own:
 *
 *     owner                          scrape thread
 *       add, remove   --ring-->        GET, GET, GET at once; pages are parsed as they come
 *       take          <--ring--        one result for each page, or why there is none
 *
 * One engine has one page under way at a time: a slow one is asked again when it has
 * answered, or was given up; the others do not notice.
 *
 * Threads: only the thread that made it.
 * Memory:  250 bytes a rank and 40 KiB a target while it is read. */
struct kvb_scraper;

/* Under load a page has taken 2.5 s. */
enum { kvb_scrape_timeout_ms = 5000 };

struct kvb_scrape_target {
    uint64_t key;        /* the owner's name for it */
    const char *url;     /* borrowed for the call */
    uint32_t period_ms;  /* from start to start */
    uint32_t timeout_ms; /* of one page; kvb_scrape_timeout_ms */
    uint32_t block_size; /* as kvb_engine_page_new() */
};

struct kvb_scrape_result {
    uint64_t key;
    enum kvb_fetch_outcome outcome;
    bool is_foreign;       /* it came, and is no page of an engine's */
    struct kvb_detail why; /* "" when there are samples */
    uint64_t took_ns;
    uint64_t at_ns;   /* when it had come */
    uint64_t refused; /* lines and figures of this page that cannot be */
    uint64_t resets;  /* counters that began again */
    size_t count;
    struct kvb_load_sample samples[]; /* one a rank */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_scraper_start(struct kvb_scraper **out_scraper);
/* Ends what is under way.  NULL is fine. */
void kvb_scraper_stop(struct kvb_scraper *scraper);

/* The first page is asked for within the first period.  A key is used once at a time.
 * KVB_BAD_CONFIG  no URL; detail says
 * KVB_NO_MEMORY, KVB_AGAIN  more changes wait than the ring holds */
kvb_status kvb_scraper_add(
    struct kvb_scraper *scraper, const struct kvb_scrape_target *target, struct kvb_detail *detail);

/* Results that were made before may still come.  As kvb_scraper_add(). */
kvb_status kvb_scraper_remove(struct kvb_scraper *scraper, uint64_t key);

/* The next result, in no order; the caller frees it with free().  KVB_AGAIN: none. */
kvb_status kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result);

/* Readable while there are results.  Borrowed. */
int kvb_scraper_fd(const struct kvb_scraper *scraper);

/* Results that nobody took in time, or for which there was no memory. */
uint64_t kvb_scraper_lost(const struct kvb_scraper *scraper);
