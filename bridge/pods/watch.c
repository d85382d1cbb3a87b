#include "pods/watch.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/random.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct kvb_backoff_range between_requests = { .first_ns = 500 * KVB_NS_PER_MS,
                                                           .longest_ns = 30 * KVB_NS_PER_S };
static const uint64_t away_pause_ns = KVB_NS_PER_S;
static const uint64_t silence_ns = 30 * KVB_NS_PER_S;

/* A watch that ends sooner than this without a line has failed. */
static const uint64_t shortest_watch_ns = KVB_NS_PER_S;

enum { page_items = 500, max_retry_after_s = 300 };

/* A random value from 80 to 120 per cent of the mean. */
static uint64_t jitter(struct kvb_watch *watch, uint64_t mean)
{
    return mean - mean / 5 + kvb_random_below(&watch->random, 2 * (mean / 5) + 1);
}

void kvb_watch_init(struct kvb_watch *watch, uint32_t mean_s, uint64_t seed, uint64_t now_ns)
{
    *watch = (struct kvb_watch){
        .state = KVB_WATCH_LIST_DUE, .due_ns = now_ns, .mean_s = mean_s, .random = seed
    };
}

bool kvb_watch_start(struct kvb_watch *watch, uint64_t now_ns)
{
    const bool is_list = watch->state == KVB_WATCH_LIST_DUE;

    if ((!is_list && watch->state != KVB_WATCH_WATCH_DUE) || now_ns < watch->due_ns) {
        return false;
    }
    watch->started_ns = now_ns;
    watch->state = is_list ? KVB_WATCH_LISTING : KVB_WATCH_WATCHING;
    if (!is_list) {
        watch->has_lines = false;
        watch->timeout_s = (uint32_t)jitter(watch, watch->mean_s);
        watch->silent_ns = now_ns + watch->timeout_s * KVB_NS_PER_S + silence_ns;
    }
    return true;
}

void kvb_watch_opened(struct kvb_watch *watch)
{
    watch->away_ns = 0;
}

kvb_status kvb_watch_item(struct kvb_watch *watch)
{
    if (watch->items >= (size_t)kvb_max_pod_list_pages * page_items) {
        return KVB_TOO_LARGE;
    }
    watch->items++;
    return KVB_OK;
}

void kvb_watch_line(struct kvb_watch *watch, const char *version)
{
    watch->has_lines = true;
    watch->failures = watch->gones = watch->refusals = (struct kvb_backoff){ 0 };
    watch->is_gone = false;
    watch->away_ns = 0;
    /* A line without a version leaves the newest one. */
    if (version[0] != '\0') {
        (void)snprintf(watch->page.version, sizeof watch->page.version, "%s", version);
    }
}

/* ---- Steps ---- */

/* The kind of pause before the next request. */
enum pause { pause_none, pause_failed, pause_gone, pause_refused, pause_away };

struct transition {
    enum kvb_watch_state next;
    enum pause pause;
    bool is_first_page; /* discard the pages of an unfinished list */
};

static const struct transition transitions[KVB_WATCH_STATE_COUNT][KVB_WATCH_INPUT_COUNT] = {
    [KVB_WATCH_LISTING] = {
        [KVB_WATCH_PAGE] = { KVB_WATCH_LIST_DUE, pause_none, false },
        [KVB_WATCH_LISTED] = { KVB_WATCH_WATCH_DUE, pause_none, true },
        [KVB_WATCH_ENDED] = { KVB_WATCH_LIST_DUE, pause_failed, true },
        [KVB_WATCH_GONE] = { KVB_WATCH_LIST_DUE, pause_failed, true },
        [KVB_WATCH_REFUSED] = { KVB_WATCH_LIST_DUE, pause_failed, true },
        [KVB_WATCH_FAILED] = { KVB_WATCH_LIST_DUE, pause_failed, true },
        [KVB_WATCH_AWAY] = { KVB_WATCH_LIST_DUE, pause_away, true },
    },
    [KVB_WATCH_WATCHING] = {
        [KVB_WATCH_ENDED] = { KVB_WATCH_WATCH_DUE, pause_none, true },
        [KVB_WATCH_GONE] = { KVB_WATCH_LIST_DUE, pause_gone, true },
        [KVB_WATCH_REFUSED] = { KVB_WATCH_LIST_DUE, pause_refused, true },
        [KVB_WATCH_FAILED] = { KVB_WATCH_WATCH_DUE, pause_failed, true },
        [KVB_WATCH_AWAY] = { KVB_WATCH_WATCH_DUE, pause_away, true },
    },
};

static bool fits(enum kvb_watch_state state, enum kvb_watch_input input)
{
    return state == KVB_WATCH_LISTING || (state == KVB_WATCH_WATCHING && input >= KVB_WATCH_ENDED);
}

static uint64_t
wait_of(struct kvb_watch *watch, enum pause pause, uint32_t retry_after_s, uint64_t now_ns)
{
    const uint32_t at_least_s =
        retry_after_s < max_retry_after_s ? retry_after_s : max_retry_after_s;
    uint64_t wait_ns = 0;

    if (pause == pause_failed) {
        wait_ns = jitter(watch, kvb_backoff_fail(&watch->failures, &between_requests, now_ns));
    } else if (pause == pause_gone) {
        /* A version may expire at any time: only one after another costs a pause. */
        wait_ns = watch->is_gone
                      ? jitter(watch, kvb_backoff_fail(&watch->gones, &between_requests, now_ns))
                      : 0;
        watch->is_gone = true;
    } else if (pause == pause_refused) {
        wait_ns = jitter(watch, kvb_backoff_fail(&watch->refusals, &between_requests, now_ns));
    } else if (pause == pause_away) {
        wait_ns = jitter(watch, away_pause_ns);
    }
    return wait_ns > at_least_s * KVB_NS_PER_S ? wait_ns : at_least_s * KVB_NS_PER_S;
}

static enum kvb_watch_input
classify_end(const struct kvb_watch *watch, enum kvb_watch_input input, uint64_t now_ns)
{
    if (watch->state != KVB_WATCH_WATCHING || input != KVB_WATCH_ENDED || watch->has_lines) {
        return input;
    }
    /* A watch that ends at once counts as failed; otherwise it would be requested again for ever
     * without a pause. */
    return now_ns - watch->started_ns < shortest_watch_ns ? KVB_WATCH_FAILED : KVB_WATCH_GONE;
}

enum kvb_watch_input kvb_watch_input_of_code(unsigned code)
{
    static const struct {
        unsigned code;
        enum kvb_watch_input input;
    } rows[] = {
        { 401, KVB_WATCH_FAILED }, { 403, KVB_WATCH_FAILED }, { 410, KVB_WATCH_GONE },
        { 429, KVB_WATCH_FAILED }, { 503, KVB_WATCH_FAILED },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].code == code) {
            return rows[i].input;
        }
    }
    return KVB_WATCH_REFUSED;
}

void kvb_watch_step(
    struct kvb_watch *watch, enum kvb_watch_input input, const struct kvb_pod_page *page,
    uint32_t retry_after_s, uint64_t now_ns)
{
    if (!fits(watch->state, input)) {
        return;
    }
    input = classify_end(watch, input, now_ns);
    /* A list without an end is given up, like one that breaks off. */
    if (input == KVB_WATCH_PAGE && ++watch->pages >= kvb_max_pod_list_pages) {
        input = KVB_WATCH_FAILED;
    }
    const struct transition *transition = &transitions[watch->state][input];
    if (input <= KVB_WATCH_LISTED) {
        watch->page = *page;
        watch->away_ns = watch->refusals.pause_ns == 0
                             ? 0
                             : watch->away_ns; /* else: watches are still refused */
        watch->failures = (struct kvb_backoff){ 0 };
    } else if (input == KVB_WATCH_ENDED && watch->state == KVB_WATCH_WATCHING) {
        /* It has brought lines, so the server accepts watches. */
        watch->failures = watch->refusals = (struct kvb_backoff){ 0 };
    } else if (input != KVB_WATCH_GONE && watch->away_ns == 0) {
        watch->away_ns = now_ns;
    }
    if (transition->is_first_page) {
        /* The token is of one list: the next one begins with its first page. */
        watch->page.next[0] = '\0';
        watch->pages = 0;
        watch->items = 0;
    }
    watch->due_ns = now_ns + wait_of(watch, transition->pause, retry_after_s, now_ns);
    watch->state = transition->next;
}

bool kvb_watch_is_silent(const struct kvb_watch *watch, uint64_t now_ns)
{
    return watch->state == KVB_WATCH_WATCHING && now_ns >= watch->silent_ns;
}

/* ---- Paths ---- */

static kvb_status append_encoded(struct kvb_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (isalnum((unsigned char)*text) || strchr("-._~", *text)) {
            KVB_TRY(kvb_buf_append(out, text, 1));
        } else {
            KVB_TRY(kvb_buf_append_format(out, "%%%02X", (unsigned char)*text));
        }
    }
    return KVB_OK;
}

static kvb_status append_query(struct kvb_buf *out, const char *name, const char *value)
{
    if (value[0] == '\0') {
        return KVB_OK;
    }
    KVB_TRY(kvb_buf_append_format(out, "&%s=", name));
    return append_encoded(out, value);
}

kvb_status kvb_watch_path(
    const struct kvb_watch *watch, const char *name_space, const char *selector,
    const char *field_selector, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "/api/v1/"));
    if (name_space[0] != '\0') {
        KVB_TRY(kvb_buf_append_text(out, "namespaces/"));
        KVB_TRY(append_encoded(out, name_space));
        KVB_TRY(kvb_buf_append_text(out, "/"));
    }
    if (watch->state == KVB_WATCH_LISTING) {
        KVB_TRY(kvb_buf_append_format(out, "pods?limit=%d", page_items));
        KVB_TRY(append_query(out, "continue", watch->page.next));
    } else {
        KVB_TRY(kvb_buf_append_format(
            out, "pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=%u", watch->timeout_s));
        KVB_TRY(append_query(out, "resourceVersion", watch->page.version));
    }
    KVB_TRY(append_query(out, "labelSelector", selector));
    return append_query(out, "fieldSelector", field_selector);
}
