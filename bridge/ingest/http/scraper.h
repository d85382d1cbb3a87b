#pragma once

#include "core/status.h"
#include "ingest/http/fetch.h"
#include "model/load.h"
#include "model/served_names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads pages of engines periodically, their /metrics and their lists of models (/v1/models), as a
 * job of the control thread:
 *
 *     owner                          control thread
 *       add, remove   --ring-->        many GET at once; pages are parsed as they arrive
 *       take          <--ring--        one result for each page: samples or names, or the
 *                                      reason why there are none
 *
 * At most one request to each engine is under way.  A slow engine gets the next request after it
 * has answered or timed out, and does not delay the others.
 *
 * Threads: only the thread that made it.
 * Memory:  900 bytes for each rank, and 40 KiB for each page being read; the bytes of a list. */
struct kvb_control;
struct kvb_resolver;
struct kvb_scraper;

/* An engine under load was measured to take 2.5 s for a page. */
enum { kvb_scrape_timeout_ms = 5000 };

enum kvb_scrape_page { KVB_SCRAPE_METRICS, KVB_SCRAPE_MODELS };

struct kvb_scrape_target {
    uint64_t key; /* chosen by the owner; names the target */
    enum kvb_scrape_page page;
    const char *url; /* borrowed for the call, like the next */
    const char
        *key_file; /* has the engine's API key, and is read for each request; NULL or "": none */
    bool refuses_metadata; /* as in struct kvb_fetch_options */
    uint32_t period_ms;    /* from start to start */
    uint32_t timeout_ms;   /* of one page; kvb_scrape_timeout_ms */
    uint32_t block_size;   /* as for kvb_engine_page_new() */
    const char *model;     /* of either page; borrowed for the call */
};

struct kvb_scrape_result {
    uint64_t key;
    enum kvb_fetch_outcome outcome;
    unsigned code;         /* of HTTP; 0: no answer */
    bool is_foreign;       /* the page is not that of a known engine, or no list of this model */
    struct kvb_detail why; /* "" when there are samples */
    uint64_t took_ns;
    uint64_t at_ns;                /* when the page was complete */
    uint64_t refused;              /* lines and values of this page that are not valid */
    uint64_t resets;               /* counters that were reset */
    struct kvb_served_names names; /* of a list of models */
    size_t count;
    struct kvb_load_sample samples[]; /* one for each rank */
};

/* resolver: as for kvb_fetcher_new().  KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_scraper_start(
    struct kvb_control *control, struct kvb_resolver *resolver, struct kvb_scraper **out_scraper);
/* Cancels requests under way.  NULL is fine. */
void kvb_scraper_stop(struct kvb_scraper *scraper);

/* The first page is requested within the first period.  Each key has one target at a time.
 * KVB_BAD_CONFIG  invalid URL; detail says why
 * KVB_AGAIN       the ring is full of earlier changes
 * KVB_NO_MEMORY */
kvb_status kvb_scraper_add(
    struct kvb_scraper *scraper, const struct kvb_scrape_target *target, struct kvb_detail *detail);

/* Earlier results for the key may still arrive.  Errors as for kvb_scraper_add(). */
kvb_status kvb_scraper_remove(struct kvb_scraper *scraper, uint64_t key);

/* Takes a result, in no particular order; the caller frees it with free().  KVB_AGAIN: none. */
kvb_status kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result);

/* Readable while there are results.  Borrowed. */
int kvb_scraper_fd(const struct kvb_scraper *scraper);

/* The number of results lost because the ring was full or memory was out. */
uint64_t kvb_scraper_lost(const struct kvb_scraper *scraper);
