#include "ingest/http/scraper.h"

#include "control/control.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/ring.h"
#include "core/secret_file.h"
#include "model/stream.h"
#include "wire/engine/answers.h"
#include "wire/load/engine_page.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_waiting = 4 * kvb_max_workers,
    spread = 16, /* the first requests are spread over the period in this many steps */
    max_key_file_path = 1024,
    max_key_bytes = 257 /* with the NUL */
};

/* One page of one engine.  A metrics page is parsed by `page` as it arrives, a list of models when
 * it is whole. */
struct target {
    struct target *next;
    struct kvb_scraper *scraper;
    uint64_t key;
    uint64_t period_ns;
    uint64_t next_ns;
    uint32_t timeout_ms;
    struct kvb_engine_page *page; /* owned; NULL: a list of models */
    struct kvb_buf body;          /* owned; of a list of models */
    bool refuses_metadata;
    struct kvb_fetch *fetch; /* under way; or NULL */
    struct kvb_engine_page_counts seen;
    char url[kvb_max_page_url_bytes];
    char key_file[max_key_file_path];
    char model[kvb_model_bytes + 1];
};

/* A change by the owner.  target NULL: remove the key; else add the target. */
struct command {
    struct target *target; /* owned */
    uint64_t key;
};

struct kvb_scraper {
    struct kvb_ring *commands; /* owned, like all below */
    struct kvb_ring *results;
    struct kvb_fetcher *fetcher;
    struct kvb_job *job;
    struct target *first; /* used by the job only */
    unsigned added;       /* used by the owner only */
    _Atomic uint64_t lost;
};

static void free_scrape_target(struct target *target)
{
    if (target) {
        /* First: the fetch passes bytes to the page. */
        kvb_fetch_cancel(target->fetch);
        kvb_engine_page_free(target->page);
        kvb_buf_done(&target->body);
        free(target);
    }
}

static void free_command(void *item)
{
    struct command *command = item;

    free_scrape_target(command->target);
    free(command);
}

/* ---- One page ---- */

static void put_result(struct kvb_scraper *scraper, struct kvb_scrape_result *result)
{
    /* The ring is full when the owner has not taken results for long; newer pages follow. */
    if (!result || kvb_ring_put(scraper->results, result) != KVB_OK) {
        atomic_fetch_add_explicit(&scraper->lost, 1, memory_order_relaxed);
        free(result);
    }
}

static struct kvb_scrape_result *
make_result(struct target *target, const struct kvb_load_sample *samples, size_t count)
{
    struct kvb_scrape_result *result = calloc(1, sizeof *result + count * sizeof *samples);
    struct kvb_engine_page_counts now = { 0 };

    if (target->page) {
        now = kvb_engine_page_count(target->page);
    }
    if (!result) {
        return NULL;
    }
    result->key = target->key;
    /* The page counts since its beginning; a result has what is new. */
    result->refused = now.refused - target->seen.refused;
    result->resets = now.resets - target->seen.resets;
    result->count = count;
    if (count > 0) {
        memcpy(result->samples, samples, count * sizeof *samples);
    }
    target->seen = now;
    return result;
}

/* Stores why a page has no samples. */
static void
say_what_came(const struct kvb_fetch_end *end, kvb_status page, struct kvb_scrape_result *result)
{
    result->outcome = end->outcome;
    result->why = end->why;
    /* libcurl's end has no reason for this, because take_page_bytes() has ended it. */
    if (end->outcome == KVB_FETCH_STOPPED) {
        kvb_detail_set(&result->why, "its page cannot be kept: too many ranks, or no memory");
    } else if (page == KVB_BAD_INPUT) {
        result->is_foreign = true;
        kvb_detail_set(&result->why, "its page names no load of vLLM's or SGLang's");
    } else if (page != KVB_OK) {
        result->outcome = KVB_FETCH_STOPPED;
        kvb_detail_set(&result->why, "its page cannot be kept: no memory");
    }
}

static kvb_status take_page_bytes(void *context, kvb_span bytes)
{
    struct target *target = context;

    return target->page ? kvb_engine_page_feed(target->page, bytes)
                        : kvb_buf_append(&target->body, bytes.data, bytes.len);
}

/* The end of a list of models. */
static void take_list_end(struct target *target, const struct kvb_fetch_end *end)
{
    struct kvb_scrape_result *result = make_result(target, NULL, 0);

    if (result) {
        result->outcome = end->outcome;
        result->code = end->code;
        result->why = end->why;
        result->took_ns = end->took_ns;
        result->at_ns = kvb_clock_monotonic_ns();
        if (end->outcome == KVB_FETCH_OK) {
            result->is_foreign = kvb_model_list_decode(
                                     kvb_buf_span(&target->body), target->model, &result->names,
                                     &result->why) != KVB_OK;
        }
    }
    put_result(target->scraper, result);
}

static void take_end(void *context, const struct kvb_fetch_end *end)
{
    struct target *target = context;
    const struct kvb_load_sample *samples = NULL;
    kvb_status status = KVB_OK;
    size_t count = 0;

    target->fetch = NULL; /* freed by the fetcher */
    if (!target->page) {
        take_list_end(target, end);
        return;
    }
    /* A page that broke off has no samples: half of its ranks would look like all. */
    if (end->outcome == KVB_FETCH_OK) {
        status = kvb_engine_page_end(target->page, &samples, &count);
    }
    struct kvb_scrape_result *result = make_result(target, samples, count);
    if (result) {
        say_what_came(end, status, result);
        result->code = end->code;
        result->took_ns = end->took_ns;
        result->at_ns = kvb_clock_monotonic_ns();
    }
    put_result(target->scraper, result);
}

/* The file is read for each request, so that a rotated key is used.  False: it has none, which is
 * the result. */
static bool read_key(struct target *target, char out_key[max_key_bytes])
{
    struct kvb_detail why = { .text = "" };

    if (target->key_file[0] == '\0' ||
        kvb_secret_file_read_line(
            target->key_file, KVB_FILE_PRIVATE, out_key, max_key_bytes, &why) == KVB_OK) {
        return true;
    }
    take_end(target, &(struct kvb_fetch_end){ .outcome = KVB_FETCH_CODE, .why = why });
    return false;
}

static void start_scrape(struct target *target, uint64_t now_ns)
{
    char key[max_key_bytes] = "";
    const struct kvb_fetch_options options = { .url = target->url,
                                               .token = key,
                                               .timeout_ms = target->timeout_ms,
                                               .max_bytes = target->page ? kvb_max_page_bytes
                                                                         : kvb_max_model_list_bytes,
                                               .refuses_metadata = target->refuses_metadata,
                                               .on_bytes = take_page_bytes,
                                               .on_end = take_end,
                                               .context = target };

    /* From start to start: how long an engine takes does not shift the period. */
    target->next_ns = now_ns + target->period_ns;
    /* What an earlier request left, which may have broken off, is dropped. */
    if (target->page) {
        kvb_engine_page_begin(target->page);
    }
    kvb_buf_reset(&target->body);
    if (read_key(target, key) &&
        kvb_fetch_start(target->scraper->fetcher, &options, &target->fetch) != KVB_OK) {
        put_result(target->scraper, NULL); /* out of memory: tried again after a period */
    }
    explicit_bzero(key, sizeof key);
}

/* ---- The job ---- */

static void drop_key(struct kvb_scraper *scraper, uint64_t key)
{
    for (struct target **at = &scraper->first; *at; at = &(*at)->next) {
        if ((*at)->key == key) {
            struct target *gone = *at;
            *at = gone->next;
            free_scrape_target(gone);
            return;
        }
    }
}

static void take_commands(struct kvb_scraper *scraper)
{
    void *item = NULL;

    while (kvb_ring_take(scraper->commands, &item) == KVB_OK) {
        struct command *command = item;
        if (command->target) {
            command->target->next = scraper->first;
            scraper->first = command->target;
        } else {
            drop_key(scraper, command->key);
        }
        /* It is in the list now, or there was none. */
        command->target = NULL;
        free_command(command);
    }
}

/* Starts the fetches that are due; returns when the next one is. */
static uint64_t start_due(struct kvb_scraper *scraper, uint64_t now_ns)
{
    uint64_t due_ns = UINT64_MAX;

    for (struct target *target = scraper->first; target; target = target->next) {
        if (!target->fetch && now_ns >= target->next_ns) {
            start_scrape(target, now_ns);
        }
        if (!target->fetch && target->next_ns < due_ns) { /* else its end brings a turn */
            due_ns = target->next_ns;
        }
    }
    return due_ns;
}

static uint64_t scraper_turn(void *context, uint64_t now_ns)
{
    struct kvb_scraper *scraper = context;

    take_commands(scraper);
    /* Before new ones start: a target whose fetch has ended may be due. */
    const uint64_t fetches_ns = kvb_fetcher_work(scraper->fetcher, now_ns);
    const uint64_t due_ns = start_due(scraper, now_ns);
    return due_ns < fetches_ns ? due_ns : fetches_ns;
}

static void end_scraper(void *context)
{
    struct kvb_scraper *scraper = context;

    /* Targets before the fetcher: each cancels its fetch. */
    while (scraper->first) {
        drop_key(scraper, scraper->first->key);
    }
    kvb_fetcher_free(scraper->fetcher);
}

/* ---- The owner ---- */

static kvb_status
open_all(struct kvb_scraper *scraper, struct kvb_control *control, struct kvb_resolver *resolver)
{
    const struct kvb_job_options options = { .turn = scraper_turn,
                                             .end = end_scraper,
                                             .context = scraper };

    KVB_TRY(kvb_ring_new(max_waiting, free_command, &scraper->commands));
    KVB_TRY(kvb_ring_new(max_waiting, free, &scraper->results));
    /* The job has no turn before the first command wakes it, so the fetcher may come later. */
    KVB_TRY(kvb_job_add(control, &options, &scraper->job));
    return kvb_fetcher_new(scraper->job, resolver, &scraper->fetcher);
}

kvb_status kvb_scraper_start(
    struct kvb_control *control, struct kvb_resolver *resolver, struct kvb_scraper **out_scraper)
{
    struct kvb_scraper *scraper = calloc(1, sizeof *scraper);

    if (!scraper) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = open_all(scraper, control, resolver);
    if (status != KVB_OK) {
        kvb_scraper_stop(scraper);
        return status;
    }
    *out_scraper = scraper;
    return KVB_OK;
}

void kvb_scraper_stop(struct kvb_scraper *scraper)
{
    if (!scraper) {
        return;
    }
    /* The job first: it puts results and takes commands until it has ended. */
    kvb_job_remove(scraper->job);
    kvb_ring_free(scraper->commands);
    kvb_ring_free(scraper->results);
    free(scraper);
}

/* Takes ownership of target, on failure too. */
static kvb_status send_command(struct kvb_scraper *scraper, struct target *target, uint64_t key)
{
    struct command *command = calloc(1, sizeof *command);

    if (!command) {
        free_scrape_target(target);
        return KVB_NO_MEMORY;
    }
    *command = (struct command){ .target = target, .key = key };
    const kvb_status status = kvb_ring_put(scraper->commands, command);
    if (status != KVB_OK) {
        free_command(command);
        return status;
    }
    /* The job reads commands in its turns only. */
    kvb_job_wake(scraper->job);
    return KVB_OK;
}

kvb_status kvb_scraper_add(
    struct kvb_scraper *scraper, const struct kvb_scrape_target *target, struct kvb_detail *detail)
{
    KVB_TRY(kvb_fetch_check_url(target->url, detail));
    if (strlen(target->url) >= kvb_max_page_url_bytes) {
        kvb_detail_set(detail, "has more than %d bytes", kvb_max_page_url_bytes - 1);
        return KVB_BAD_CONFIG;
    }
    struct target *added = calloc(1, sizeof *added);
    if (!added) {
        return KVB_NO_MEMORY;
    }
    added->scraper = scraper;
    added->key = target->key;
    added->timeout_ms = target->timeout_ms;
    added->period_ns = target->period_ms * KVB_NS_PER_MS;
    /* Engines that are added together are not asked in the same moment. */
    added->next_ns =
        kvb_clock_monotonic_ns() + added->period_ns * (scraper->added++ % spread) / spread;
    (void)snprintf(added->url, sizeof added->url, "%s", target->url);
    (void)snprintf(/* fits: a path of the configuration */
                   added->key_file, sizeof added->key_file, "%s",
                   target->key_file ? target->key_file : "");
    (void)snprintf(added->model, sizeof added->model, "%s", target->model);
    added->refuses_metadata = target->refuses_metadata;
    kvb_buf_init(&added->body, kvb_max_model_list_bytes);
    if (target->page == KVB_SCRAPE_METRICS &&
        kvb_engine_page_new(target->block_size, target->model, &added->page) != KVB_OK) {
        free_scrape_target(added);
        return KVB_NO_MEMORY;
    }
    return send_command(scraper, added, added->key);
}

kvb_status kvb_scraper_remove(struct kvb_scraper *scraper, uint64_t key)
{
    return send_command(scraper, NULL, key);
}

kvb_status kvb_scraper_take(struct kvb_scraper *scraper, struct kvb_scrape_result **out_result)
{
    void *item = NULL;

    KVB_TRY(kvb_ring_take(scraper->results, &item));
    *out_result = item;
    return KVB_OK;
}

int kvb_scraper_fd(const struct kvb_scraper *scraper)
{
    return kvb_ring_fd(scraper->results);
}

uint64_t kvb_scraper_lost(const struct kvb_scraper *scraper)
{
    return atomic_load_explicit(&scraper->lost, memory_order_relaxed);
}
