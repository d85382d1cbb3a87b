#include "fake_pages.h"

#include "core/clock.h"
#include "ingest/http/scraper.h"
#include "model/stream.h"
#include "wire/engine/answers.h"
#include "wire/load/engine_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_targets = 8, max_results = 16, fake_pages_fd = 1000 };

struct target {
    uint64_t key;                 /* 0: free */
    struct kvb_engine_page *page; /* owned; NULL: a list of models */
    struct kvb_engine_page_counts seen;
    char model[kvb_model_bytes + 1];
};

struct kvb_scraper {
    struct target targets[max_targets];
    struct kvb_scrape_result *results[max_results]; /* owned */
    size_t count;
    uint64_t lost;
};

static struct kvb_scraper *the_scraper; /* NULL: none runs */

static struct kvb_scrape_result *
read_fake_page(struct target *target, enum kvb_fetch_outcome outcome, kvb_span text)
{
    const struct kvb_load_sample *samples = NULL;
    size_t count = 0;
    kvb_status status = KVB_OK;

    kvb_engine_page_begin(target->page);
    status = kvb_engine_page_feed(target->page, text);
    if (status == KVB_OK && outcome == KVB_FETCH_OK) {
        status = kvb_engine_page_end(target->page, &samples, &count);
    }
    struct kvb_scrape_result *result = calloc(1, sizeof *result + count * sizeof *samples);
    if (!result) {
        abort();
    }
    const struct kvb_engine_page_counts now = kvb_engine_page_count(target->page);
    result->key = target->key;
    result->outcome = status == KVB_OK || status == KVB_BAD_INPUT ? outcome : KVB_FETCH_STOPPED;
    result->is_foreign = status == KVB_BAD_INPUT;
    result->at_ns = kvb_clock_monotonic_ns();
    result->refused = now.refused - target->seen.refused;
    result->resets = now.resets - target->seen.resets;
    result->count = count;
    if (count > 0) {
        memcpy(result->samples, samples, count * sizeof *samples);
    }
    target->seen = now;
    return result;
}

static struct kvb_scrape_result *
read_fake_list(const struct target *target, enum kvb_fetch_outcome outcome, kvb_span text)
{
    struct kvb_scrape_result *result = calloc(1, sizeof *result);

    if (!result) {
        abort();
    }
    result->key = target->key;
    result->outcome = outcome;
    result->at_ns = kvb_clock_monotonic_ns();
    result->is_foreign =
        outcome == KVB_FETCH_OK &&
        kvb_model_list_decode(text, target->model, &result->names, &result->why) != KVB_OK;
    return result;
}

void fake_pages_deliver(enum kvb_fetch_outcome outcome, kvb_span text)
{
    for (size_t i = 0; the_scraper && i < max_targets; i++) {
        struct target *target = &the_scraper->targets[i];
        if (target->key == 0) {
            continue;
        }
        if (the_scraper->count == max_results) {
            the_scraper->lost++;
        } else {
            the_scraper->results[the_scraper->count++] =
                target->page ? read_fake_page(target, outcome, text)
                             : read_fake_list(target, outcome, text);
        }
    }
}

bool fake_pages_are_there(void)
{
    return the_scraper && the_scraper->count > 0;
}

/* ---- ingest/http/scraper.h ---- */

kvb_status kvb_scraper_start(
    struct kvb_control *control, struct kvb_resolver *resolver, struct kvb_scraper **out_scraper)
{
    (void)control;
    (void)resolver;
    the_scraper = calloc(1, sizeof *the_scraper);
    *out_scraper = the_scraper;
    return the_scraper ? KVB_OK : KVB_NO_MEMORY;
}

static void drop_fake_target(struct target *target)
{
    kvb_engine_page_free(target->page);
    *target = (struct target){ .key = 0 };
}

void kvb_scraper_stop(struct kvb_scraper *scraper)
{
    if (!scraper) {
        return;
    }
    for (size_t i = 0; i < max_targets; i++) {
        drop_fake_target(&scraper->targets[i]);
    }
    for (size_t i = 0; i < scraper->count; i++) {
        free(scraper->results[i]);
    }
    free(scraper);
    the_scraper = NULL;
}

kvb_status kvb_scraper_add(
    struct kvb_scraper *scraper, const struct kvb_scrape_target *target, struct kvb_detail *detail)
{
    KVB_TRY(kvb_fetch_check_url(target->url, detail));
    for (size_t i = 0; i < max_targets; i++) {
        struct target *one = &scraper->targets[i];
        if (one->key == 0) {
            if (target->page == KVB_SCRAPE_METRICS) {
                KVB_TRY(kvb_engine_page_new(target->block_size, target->model, &one->page));
            }
            (void)snprintf(one->model, sizeof one->model, "%s", target->model);
            one->key = target->key;
            return KVB_OK;
        }
    }
    kvb_detail_set(detail, "no room here for one more");
    return KVB_AGAIN;
}

kvb_status kvb_scraper_remove(struct kvb_scraper *scraper, uint64_t key)
{
    for (size_t i = 0; i < max_targets; i++) {
        if (scraper->targets[i].key == key) {
            drop_fake_target(&scraper->targets[i]);
        }
    }
    return KVB_OK;
}

kvb_status kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result)
{
    if (scraper->count == 0) {
        return KVB_AGAIN;
    }
    *out_result = scraper->results[--scraper->count];
    return KVB_OK;
}

int kvb_scraper_fd(const struct kvb_scraper *scraper)
{
    (void)scraper;
    return fake_pages_fd;
}

uint64_t kvb_scraper_lost(const struct kvb_scraper *scraper)
{
    return scraper->lost;
}
