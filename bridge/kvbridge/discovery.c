#include "kvbridge/discovery.h"

#include "control/control.h"
#include "core/backoff.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/url_show.h"
#include "daemon/bearer_token.h"
#include "ingest/http/fetch.h"
#include "wire/engine/answers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kvb_backoff_range between_requests = { .first_ns = 500 * KVB_NS_PER_MS,
                                                           .longest_ns = 10 * KVB_NS_PER_S };

/* While the system has no thread that gives answers to the bridge. */
static const uint64_t retry_ns = 100 * KVB_NS_PER_MS;

enum { timeout_ms = 5000, url_bytes = 600 };
enum { http_unauthorized = 401, http_forbidden = 403, http_not_found = 404 };

/* The pages that list the event sockets: vLLM's first, then SGLang's. */
static const struct page {
    const char *path;
    kvb_status (*decode)(
        kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail);
} pages[] = {
    { "/kv_event_sources", kvb_event_sources_decode },
    { "/server_info", kvb_event_sources_decode_server_info },
};

/* Asked where vLLM has given its event sockets; it answers in its development mode alone. */
static const char info_path[] = "/server_info?config_format=json";

/* An answer on its way to the bridge, which takes it between two turns of its own:
 *
 *     NONE -- decoded --> READY -- work begins --> GIVEN -- work ends: its outcome --> NONE
 *
 * While answers are GIVEN, the job's turns neither add nor free a target. */
enum answer_state { ANSWER_NONE, ANSWER_READY, ANSWER_GIVEN };

struct answer {
    enum answer_state state;
    struct kvb_parts parts; /* owned while READY or GIVEN */
    uint64_t hash;          /* as target.found */
    size_t ranks;           /* 0: the engine publishes no events */
    kvb_status status;      /* of the bridge; the work writes it, and the next */
    struct kvb_detail why;
};

struct target {
    struct kvb_discovery *discovery; /* borrowed */
    struct kvb_worker_spec *spec;    /* a reference */
    uint32_t source;
    atomic_bool is_hinted; /* since the newest request began; any thread sets it, under the lock */
    size_t page;           /* index in pages[] of the next request */
    struct kvb_fetch *fetch;          /* under way; NULL: none */
    struct kvb_buf body;              /* owned */
    bool asks_info;                   /* body is complete; the request is for info_path */
    struct kvb_buf info;              /* owned: the answer to it */
    enum kvb_speculation speculation; /* by the newest of these answers */
    struct answer answer;
    struct target *next_given;   /* in the list of those whose answers are GIVEN; borrowed */
    bool is_due;                 /* a request is due, not before requests.next_ns */
    struct kvb_backoff requests; /* {0}: it has been quiet for a whole pause */
    struct kvb_detail said;      /* the error that was logged last; "": none */
    struct kvb_log_backoff backoff;
    uint64_t found; /* hash of the answer that was logged last; 0: none yet */
};

struct kvb_discovery {
    struct kvb_discovery_options options;
    struct kvb_job *job;              /* owned; NULL: stopped */
    struct kvb_fetcher *fetcher;      /* owned by the job */
    struct kvb_event_sources sources; /* scratch space for one answer */
    struct target *given;             /* borrowed; the work reads this list while it runs */

    /* Only the job uses the targets; it changes these three under the lock. */
    struct target *targets[kvb_max_workers]; /* owned */
    size_t target_count;
    struct kvb_id_table by_id; /* their indices, by source, id and number of the first rank */

    pthread_mutex_t lock;
    /* New lists that kvb_discovery_set() left for the job. */
    struct kvb_worker_list lists[kvb_discovery_max_sources];
    bool is_new[kvb_discovery_max_sources];
    bool is_stopping;
    bool was_full; /* more workers than places: logged once */
};

/* ---- Targets ---- */

static uint32_t hash_of_target(uint32_t source, const struct kvb_worker_spec *spec)
{
    const uint64_t key[2] = { kvb_worker_id_of_rank(spec, 0),
                              (uint64_t)source << 32 | spec->first_rank };

    return (uint32_t)kvb_hash64((kvb_span){ (const uint8_t *)key, sizeof key }, 0);
}

static void free_discovery_target(struct target *target)
{
    kvb_fetch_cancel(target->fetch);
    kvb_buf_done(&target->body);
    kvb_buf_done(&target->info);
    kvb_parts_done(&target->answer.parts);
    kvb_worker_spec_unref(target->spec);
    free(target);
}

/* KVB_TOO_LARGE: there are as many as there may be. */
static kvb_status
add_target(struct kvb_discovery *discovery, uint32_t source, struct kvb_worker_spec *spec)
{
    if (discovery->target_count == kvb_max_workers) {
        return KVB_TOO_LARGE;
    }
    struct target *target = calloc(1, sizeof *target);
    if (!target) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = kvb_id_table_put(
        &discovery->by_id, hash_of_target(source, spec), (uint32_t)discovery->target_count);
    if (status != KVB_OK) {
        free(target);
        return status;
    }
    target->discovery = discovery;
    target->spec = kvb_worker_spec_ref(spec);
    target->source = source;
    target->is_due = true;
    kvb_buf_init(&target->body, kvb_max_event_sources_bytes);
    kvb_buf_init(&target->info, kvb_max_event_sources_bytes);
    discovery->targets[discovery->target_count++] = target;
    return KVB_OK;
}

/* The last target takes its index. */
static void drop_target(struct kvb_discovery *discovery, size_t at)
{
    struct target *target = discovery->targets[at];
    const size_t last = --discovery->target_count;
    struct target *moved = discovery->targets[last];

    /* By its own source and spec: these two must be those with which it was entered. */
    kvb_id_table_remove(
        &discovery->by_id, hash_of_target(target->source, target->spec), (uint32_t)at);
    if (moved != target) {
        const uint32_t hash = hash_of_target(moved->source, moved->spec);
        kvb_id_table_remove(&discovery->by_id, hash, (uint32_t)last);
        (void)kvb_id_table_put(&discovery->by_id, hash, (uint32_t)at); /* there is room */
        discovery->targets[at] = moved;
    }
    free_discovery_target(target);
}

/* The target of this worker; NULL: there is none yet. */
static struct target *find_target(
    const struct kvb_discovery *discovery, uint32_t source, const struct kvb_worker_spec *spec)
{
    const uint32_t hash = hash_of_target(source, spec);
    size_t at = kvb_id_table_start(&discovery->by_id, hash);

    for (uint32_t i; (i = kvb_id_table_next(&discovery->by_id, hash, &at)) != KVB_NO_ID;) {
        struct target *target = discovery->targets[i];
        if (target->source == source && kvb_worker_specs_are_same(target->spec, spec)) {
            return target;
        }
    }
    return NULL;
}

static void say_full(struct kvb_discovery *discovery)
{
    if (!discovery->was_full) {
        kvb_log_write(
            discovery->options.log, KVB_LOG_ERROR, "discovery",
            "more workers with a discover URL than one bridge reads: the others wait until one is "
            "removed",
            "workers", KVB_LOG_U64(kvb_max_workers), NULL);
    }
    discovery->was_full = true;
}

/* Frees the targets whose workers are no longer in the list.  The bridge has closed their ranks. */
static void
drop_targets(struct kvb_discovery *discovery, uint32_t source, const struct kvb_worker_list *list)
{
    for (size_t i = discovery->target_count;
         i-- > 0;) { /* backwards: those after it were looked at */
        const struct target *target = discovery->targets[i];
        const struct kvb_listed_worker *listed =
            target->source == source ? kvb_worker_list_find(list, target->spec) : NULL;
        /* A worker with the same id and other addresses is another one, and is asked anew. */
        if (target->source == source &&
            (!listed || !kvb_worker_specs_are_same(listed->spec, target->spec))) {
            drop_target(discovery, i);
        }
    }
}

/* The caller locks.  Without memory the list is kept for the next turn. */
static void take_target_list(struct kvb_discovery *discovery, uint32_t source)
{
    struct kvb_worker_list *list = &discovery->lists[source];
    kvb_status status = KVB_OK;

    if (!discovery->is_new[source]) {
        return;
    }
    /* First, so that the places of those that leave are free for those that come. */
    drop_targets(discovery, source, list);
    for (size_t i = 0; i < list->count && status == KVB_OK; i++) {
        struct kvb_worker_spec *spec = list->items[i].spec;
        struct target *target = find_target(discovery, source, spec);
        if (target) { /* its facts may be new */
            kvb_worker_spec_unref(target->spec);
            target->spec = kvb_worker_spec_ref(spec);
        } else {
            status = add_target(discovery, source, spec);
        }
    }
    if (status == KVB_OK) {
        kvb_worker_list_done(list);
        discovery->is_new[source] = false;
        discovery->was_full = false;
    } else if (status == KVB_TOO_LARGE) {
        say_full(discovery);
    }
}

/* ---- Answers ---- */

/* What identifies an error for the log: all messages about an unreachable engine count as one. */
static const char *trouble_of(const struct kvb_fetch_end *end, const struct kvb_detail *why)
{
    switch (end->outcome) {
    case KVB_FETCH_UNREACHABLE:
    case KVB_FETCH_LATE:
        return kvb_fetch_outcome_name(KVB_FETCH_UNREACHABLE);
    default:
        return why->text;
    }
}

/* Logs each new error at once, and a lasting one at growing intervals; requests continue. */
static void say_trouble(struct target *target, const char *trouble, const struct kvb_detail *why)
{
    const bool is_other = strcmp(target->said.text, trouble) != 0;

    if (!kvb_log_backoff_due(&target->backoff, kvb_clock_monotonic_ns()) && !is_other) {
        return;
    }
    /* The URL may contain a password, which no log may show. */
    char shown[kvb_url_shown_bytes];

    kvb_detail_set(&target->said, "%s", trouble);
    kvb_log_write(
        target->discovery->options.log, KVB_LOG_WARNING, "discovery",
        "an engine does not give its event sockets: the request is repeated", "discover",
        kvb_url_show(target->spec->discover, shown, sizeof shown), "why", why->text, NULL);
}

/* The value of target.found for configured addresses.  Hashes of answers are odd, so it is not
 * one. */
enum { own_addresses_found = 2 };

static uint64_t hash_sources(const struct kvb_event_sources *sources)
{
    uint64_t hash = sources->count;

    for (size_t i = 0; i < sources->count; i++) {
        const struct kvb_event_source *source = &sources->sources[i];
        const kvb_span parts[] = {
            { (const uint8_t *)&source->dp_rank, sizeof source->dp_rank },
            { (const uint8_t *)source->endpoint, strlen(source->endpoint) + 1 },
            { (const uint8_t *)source->replay_endpoint, strlen(source->replay_endpoint) + 1 },
            { (const uint8_t *)source->topic, strlen(source->topic) + 1 },
        };
        hash = kvb_hash64_parts(parts, KVB_COUNT_OF(parts), hash);
    }
    return hash | 1;
}

/* Logs an answer only when it differs from the last one that was logged. */
static void say_found(struct target *target, uint64_t found, size_t ranks)
{
    char shown[kvb_url_shown_bytes];

    if (target->said.text[0] == '\0' && found == target->found) {
        return;
    }
    target->said.text[0] = '\0';
    target->found = found;
    kvb_log_backoff_end(&target->backoff);
    kvb_log_write(
        target->discovery->options.log, KVB_LOG_INFO, "discovery",
        found == own_addresses_found
            ? "an engine does not give its event sockets: the configured addresses are used"
            : "an engine has given its event sockets",
        "discover", kvb_url_show(target->spec->discover, shown, sizeof shown), "ranks",
        KVB_LOG_U64(ranks), NULL);
}

static kvb_status decode_sources(struct target *target, struct kvb_detail *why)
{
    struct kvb_event_sources *sources = &target->discovery->sources;
    struct answer *answer = &target->answer;

    KVB_TRY(pages[target->page].decode(kvb_buf_span(&target->body), sources, why));
    KVB_TRY(kvb_parts_of_answer(target->spec, sources, target->speculation, &answer->parts, why));
    answer->hash = hash_sources(sources);
    answer->ranks = sources->count;
    answer->state = ANSWER_READY;
    return KVB_OK;
}

/* The engine serves none of the pages: its ranks have the worker's configured addresses. */
static kvb_status use_own_addresses(struct target *target, struct kvb_detail *why)
{
    struct answer *answer = &target->answer;

    if (target->spec->events[0] == '\0') {
        kvb_detail_set(
            why, "it has neither /kv_event_sources (vLLM 0.32) nor /server_info (SGLang)");
        return KVB_AGAIN;
    }
    KVB_TRY(kvb_parts_of_own_addresses(target->spec, target->speculation, &answer->parts));
    answer->hash = own_addresses_found;
    answer->ranks = target->spec->ranks;
    answer->state = ANSWER_READY;
    return KVB_OK;
}

/* True: another page remains, and it is requested at once. */
static bool try_next_page(struct target *target, const struct kvb_fetch_end *end)
{
    if (end->outcome != KVB_FETCH_CODE || end->code != http_not_found ||
        target->page + 1 == KVB_COUNT_OF(pages)) {
        return false;
    }
    target->page++;
    target->requests.next_ns = 0;
    target->requests.pause_ns /= 2; /* the two pages count as one request */
    return true;
}

static kvb_status keep_bytes(void *context, kvb_span bytes)
{
    struct target *target = context;

    return kvb_buf_append(target->asks_info ? &target->info : &target->body, bytes.data, bytes.len);
}

/* What the engine says of its speculation.  An engine outside of its development mode says nothing,
 * which is no reason not to read it. */
static void take_info(struct target *target, bool is_answered)
{
    target->speculation = KVB_SPECULATION_UNKNOWN;
    if (is_answered) { /* not readable: unknown */
        (void)kvb_server_info_decode(kvb_buf_span(&target->info), &target->speculation);
    }
    kvb_buf_done(&target->info); /* an answer of hundreds of KiB, seldom asked for */
    kvb_buf_init(&target->info, kvb_max_event_sources_bytes);
}

/* vLLM before 0.32 in its development mode: it has /server_info, as SGLang does, without sockets.
 */
static bool is_info_of_vllm(struct target *target)
{
    return target->page > 0 &&
           kvb_server_info_decode(kvb_buf_span(&target->body), &target->speculation) == KVB_OK;
}

/* True: the event sockets are there, and how it speculates is asked next. */
static bool ask_info(struct target *target, const struct kvb_fetch_end *end)
{
    if (target->asks_info || target->page > 0 || end->outcome != KVB_FETCH_OK) {
        return false;
    }
    target->asks_info = true;
    target->requests.next_ns = 0;
    target->requests.pause_ns /= 2; /* both count as one request */
    return true;
}

static void end_target_fetch(void *context, const struct kvb_fetch_end *end)
{
    struct target *target = context;
    struct kvb_detail why = end->why;
    kvb_status status = KVB_IO;

    target->fetch = NULL; /* the fetcher has freed it */
    target->is_due = true;
    /* The next turn sends the further request; nothing is decided before its answer. */
    if (ask_info(target, end) || (!target->asks_info && try_next_page(target, end))) {
        return;
    }
    if (target->asks_info) {
        /* The sockets came with the first answer.  A failed second one only leaves the speculation
         * unknown. */
        target->asks_info = false;
        take_info(target, end->outcome == KVB_FETCH_OK);
        status = decode_sources(target, &why);
    } else if (end->outcome == KVB_FETCH_OK && is_info_of_vllm(target)) {
        status = use_own_addresses(target, &why);
    } else if (end->outcome == KVB_FETCH_OK) {
        target->speculation = KVB_SPECULATION_UNKNOWN; /* SGLang */
        status = decode_sources(target, &why);
        /* Neither page: an older engine, or one of another make. */
    } else if (end->code == http_not_found) {
        target->speculation = KVB_SPECULATION_UNKNOWN;
        status = use_own_addresses(target, &why);
    } else if (end->code == http_unauthorized || end->code == http_forbidden) {
        kvb_detail_set(
            &why, "it answers %u: %s", end->code,
            target->spec->discover_token_file[0] == '\0'
                ? "set discover_token_file to a file with its API key"
                : "it does not accept the key in discover_token_file");
    }
    /* From vLLM's page on again: the engine may have been replaced by a newer one. */
    target->page = 0;
    if (status != KVB_OK) {
        say_trouble(target, trouble_of(end, &why), &why);
    }
}

/* ---- Giving answers to the bridge ---- */

/* The work of the job: it waits for the bridge. */
static void give_answers(void *context)
{
    const struct kvb_discovery *discovery = context;
    const struct kvb_discovery_options *options = &discovery->options;

    for (struct target *target = discovery->given; target; target = target->next_given) {
        target->answer.status = options->take(
            options->context, target->source, target->spec, &target->answer.parts,
            &target->answer.why);
    }
}

static void end_answer(struct target *target)
{
    struct answer *answer = &target->answer;

    answer->state = ANSWER_NONE;
    kvb_parts_done(&answer->parts);
    if (answer->status == KVB_OK && answer->ranks == 0) {
        /* without a connection, only another request shows a change */
        kvb_detail_set(
            &answer->why, "the engine publishes no events: check its --kv-events-config");
        answer->status = KVB_AGAIN;
    }
    if (answer->status == KVB_NOT_FOUND) {
        return; /* a newer list is on its way, without this worker */
    }
    if (answer->status != KVB_OK) {
        say_trouble(target, answer->why.text, &answer->why);
        return;
    }
    /* Quiet from now on: only a hint, or another spec, has it asked again. */
    target->is_due = false;
    say_found(target, answer->hash, answer->ranks);
}

/* Gives all answers that are READY.  KVB_IO: the system has no thread for it, they stay so. */
static kvb_status begin_to_give(struct kvb_discovery *discovery)
{
    for (size_t i = 0; i < discovery->target_count; i++) {
        struct target *target = discovery->targets[i];
        if (target->answer.state == ANSWER_READY) {
            target->answer.state = ANSWER_GIVEN;
            target->next_given = discovery->given;
            discovery->given = target;
        }
    }
    if (!discovery->given || kvb_job_work(discovery->job, give_answers) == KVB_OK) {
        return KVB_OK;
    }
    /* No thread: they wait as they were, or nothing would ever end them. */
    for (; discovery->given; discovery->given = discovery->given->next_given) {
        discovery->given->answer.state = ANSWER_READY;
    }
    return KVB_IO;
}

/* ---- Turns ---- */

/* Reads the key for each request, so that a rotated one is used.  False: the file has none. */
static bool read_api_key(struct target *target, char out_key[kvb_bearer_token_bytes])
{
    const char *path = target->spec->discover_token_file;
    struct kvb_detail why = { .text = "" };

    if (path[0] == '\0' || kvb_api_key_read(path, out_key, &why) == KVB_OK) {
        return true;
    }
    say_trouble(target, why.text, &why);
    return false;
}

static void start_target_fetch(struct target *target, uint64_t now_ns)
{
    const size_t len = strlen(target->spec->discover);
    const bool has_slash = len > 0 && target->spec->discover[len - 1] == '/';
    char url[url_bytes];
    char key[kvb_bearer_token_bytes] = "";
    const struct kvb_fetch_options options = { .url = url,
                                               .token = key,
                                               .timeout_ms = timeout_ms,
                                               .max_bytes = kvb_max_event_sources_bytes,
                                               .refuses_metadata = true,
                                               .on_bytes = keep_bytes,
                                               .on_end = end_target_fetch,
                                               .context = target };

    (void)snprintf(
        url, sizeof url, "%.*s%s", (int)(len - has_slash), target->spec->discover,
        target->asks_info ? info_path : pages[target->page].path);
    /* Before it is known whether it can be started at all: else a failure would repeat at once. */
    (void)kvb_backoff_fail(&target->requests, &between_requests, now_ns); /* until it answers */
    target->is_due = false;
    /* A hint that comes from now on may be of a later process than the answer, so it stays until
     * the first page is requested again. */
    if (target->page == 0 && !target->asks_info) {
        atomic_store(&target->is_hinted, false);
    }
    kvb_buf_reset(target->asks_info ? &target->info : &target->body);
    if (!read_api_key(target, key)) {
        target->is_due = true; /* the file may be right after the pause */
        return;
    }
    if (kvb_fetch_start(target->discovery->fetcher, &options, &target->fetch) != KVB_OK) {
        target->is_due = true; /* out of memory: try after the pause */
    }
    explicit_bzero(key, sizeof key);
}

/* Returns when it is looked at again; UINT64_MAX: after its fetch, its answer or a hint. */
static uint64_t look_at_target(struct target *target, uint64_t now_ns)
{
    if (target->fetch || target->answer.state != ANSWER_NONE) {
        return UINT64_MAX;
    }
    if (!kvb_backoff_is_due(&target->requests, now_ns)) {
        return target->requests.next_ns;
    }
    if (!target->is_due && !atomic_load(&target->is_hinted)) {
        target->requests = (struct kvb_backoff){ 0 }; /* it has been quiet for a whole pause */
        return UINT64_MAX;
    }
    start_target_fetch(target, now_ns);
    return target->fetch ? UINT64_MAX : target->requests.next_ns;
}

static uint64_t discovery_turn(void *context, uint64_t now_ns)
{
    struct kvb_discovery *discovery = context;
    uint64_t due_ns = kvb_fetcher_work(discovery->fetcher, now_ns);

    if (!kvb_job_is_working(discovery->job)) { /* else its end brings another turn */
        /* First the outcomes of the answers that were given: from then on targets may be freed. */
        while (discovery->given) {
            struct target *target = discovery->given;
            discovery->given = target->next_given;
            end_answer(target);
        }
        (void)pthread_mutex_lock(&discovery->lock);
        for (uint32_t source = 0; source < discovery->options.sources; source++) {
            take_target_list(discovery, source);
        }
        (void)pthread_mutex_unlock(&discovery->lock);
        /* After the lists: of a worker that has left no answer is given. */
        if (begin_to_give(discovery) != KVB_OK) {
            due_ns = now_ns + retry_ns;
        }
    }
    for (size_t i = 0; i < discovery->target_count; i++) {
        const uint64_t look_ns = look_at_target(discovery->targets[i], now_ns);
        due_ns = look_ns < due_ns ? look_ns : due_ns;
    }
    return due_ns;
}

static void end_discovery(void *context)
{
    struct kvb_discovery *discovery = context;

    /* Here, because libcurl belongs to the control thread; the targets are freed later. */
    for (size_t i = 0; i < discovery->target_count; i++) {
        kvb_fetch_cancel(discovery->targets[i]->fetch);
        discovery->targets[i]->fetch = NULL;
    }
    kvb_fetcher_free(discovery->fetcher);
    discovery->fetcher = NULL;
}

/* ---- Start, stop, requests of other threads ---- */

kvb_status
kvb_discovery_start(const struct kvb_discovery_options *options, struct kvb_discovery **out)
{
    struct kvb_discovery *discovery = calloc(1, sizeof *discovery);
    const struct kvb_job_options job = { .turn = discovery_turn,
                                         .end = end_discovery,
                                         .context = discovery };

    if (!discovery) {
        return KVB_NO_MEMORY;
    }
    discovery->options = *options;
    (void)pthread_mutex_init(&discovery->lock, NULL); /* cannot fail without attributes */
    kvb_status status = kvb_job_add(options->control, &job, &discovery->job);
    if (status == KVB_OK) {
        status = kvb_fetcher_new(discovery->job, options->resolver, &discovery->fetcher);
    }
    if (status != KVB_OK) {
        kvb_discovery_free(discovery);
        return status;
    }
    *out = discovery;
    return KVB_OK;
}

void kvb_discovery_stop(struct kvb_discovery *discovery)
{
    if (!discovery) {
        return;
    }
    (void)pthread_mutex_lock(&discovery->lock);
    struct kvb_job *job = discovery->job;
    /* The ingest thread still gives hints: they must not wake a job that is being removed. */
    discovery->is_stopping = true; /* nobody wakes it any more */
    (void)pthread_mutex_unlock(&discovery->lock);
    kvb_job_remove(job);
    discovery->job = NULL;
}

void kvb_discovery_free(struct kvb_discovery *discovery)
{
    if (!discovery) {
        return;
    }
    kvb_discovery_stop(discovery);
    for (size_t i = 0; i < discovery->target_count; i++) {
        free_discovery_target(discovery->targets[i]);
    }
    kvb_id_table_done(&discovery->by_id);
    for (size_t source = 0; source < kvb_discovery_max_sources; source++) {
        kvb_worker_list_done(&discovery->lists[source]);
    }
    (void)pthread_mutex_destroy(&discovery->lock);
    free(discovery);
}

/* The lock is held. */
static void wake(struct kvb_discovery *discovery)
{
    if (!discovery->is_stopping) {
        kvb_job_wake(discovery->job);
    }
}

kvb_status
kvb_discovery_choose(const struct kvb_worker_list *list, struct kvb_worker_list *out_targets)
{
    struct kvb_worker_list targets = { 0 };

    for (size_t i = 0; i < list->count; i++) {
        const kvb_status status = list->items[i].spec->discover[0] != '\0'
                                      ? kvb_worker_list_add_listed(&targets, &list->items[i])
                                      : KVB_OK;
        if (status != KVB_OK) {
            kvb_worker_list_done(&targets);
            return status;
        }
    }
    *out_targets = targets;
    return KVB_OK;
}

void kvb_discovery_set(
    struct kvb_discovery *discovery, uint32_t source, struct kvb_worker_list *targets)
{
    (void)pthread_mutex_lock(&discovery->lock);
    const struct kvb_worker_list former = discovery->lists[source];
    discovery->lists[source] = *targets;
    discovery->is_new[source] = true;
    wake(discovery);
    (void)pthread_mutex_unlock(&discovery->lock);
    /* Not freed under the lock: it may be long, and the ingest thread takes the lock for a hint. */
    *targets = former;
}

void kvb_discovery_retry(
    struct kvb_discovery *discovery, uint32_t source, const struct kvb_worker_spec *spec)
{
    (void)pthread_mutex_lock(&discovery->lock);
    struct target *target = find_target(discovery, source, spec);
    if (target) {
        atomic_store(&target->is_hinted, true);
        wake(discovery);
    }
    (void)pthread_mutex_unlock(&discovery->lock);
}
