#include "kvbridge/kubernetes.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/thread.h"
#include "ingest/http/fetch.h"
#include "kvbridge/endpoint.h"
#include "kvbridge/kube_access.h"
#include "kvbridge/metrics.h"
#include "pods/splitter.h"
#include "pods/table.h"
#include "pods/watch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const uint64_t renew_ns = 60 * KVB_NS_PER_S;    /* token and kubeconfig are read again */
static const uint64_t unopened_ns = 30 * KVB_NS_PER_S; /* the limit for a watch without an answer */
static const uint64_t gather_ns = 50 * KVB_NS_PER_MS;  /* changes are gathered into one list */
static const uint64_t longest_gather_ns = 5 * KVB_NS_PER_S;
/* A list of which a part was not taken is given again. */
static const uint64_t retry_ns = 10 * KVB_NS_PER_S;

enum {
    list_timeout_ms = 60000,
    dial_timeout_ms = 10000,
    max_list_bytes = 1 << 30,
    url_bytes = 16384,
    idle_ms = 1000,
    watch_s = 300, /* of a watch; each lasts up to 20 % more or less */
    http_unauthorized = 401,
    usual_block_size = 16,
    max_said = 16 /* pods that are logged in one turn */
};

/* The list and watch of one namespace, or of all namespaces. */
struct pod_source {
    struct kvb_kubernetes *kubernetes; /* borrowed */
    uint32_t number;
    char name_space[kvb_pod_namespace_bytes + 1];
    struct kvb_watch watch;
    struct kvb_pod_splitter splitter;
    struct kvb_fetch *fetch; /* under way; NULL: none */
    bool is_open;            /* the current request has been answered */
    unsigned error_code;     /* HTTP status in an ERROR event; 0: none */
    bool was_listed;         /* a list was complete at least once */
    struct kvb_detail why;   /* why the bridge ended the request; "" */
};

struct kvb_kubernetes {
    struct kvb_kubernetes_options options;
    struct kvb_fetcher *fetcher; /* owned */
    struct kvb_thread thread;
    atomic_bool is_stopping;

    /* Only the thread uses these. */
    struct kvb_kube_access access;
    uint64_t closed_ns;            /* since when `access` cannot be opened; 0: open, or not tried */
    uint64_t renewed_ns;           /* when `access` was read last; 0: never */
    struct kvb_detail not_renewed; /* why that failed; "" */
    struct kvb_buf url;
    struct pod_source *sources; /* owned */
    size_t source_count;
    struct kvb_pods pods;
    struct kvb_pod_line line; /* scratch space for one line */
    uint64_t changed_ns;      /* oldest change that the bridge has not received; 0: none */
    uint64_t newest_ns;       /* newest such change */
    uint64_t retry_at_ns;     /* when the list is given again; 0: all of it was taken */
    struct kvb_detail why;    /* why the API server is away; "" */
    struct kvb_detail not_taken;
    struct kvb_log_backoff backoff;
    enum kvb_kubernetes_state said;
    uint64_t refused[KVB_POD_REFUSAL_COUNT];
    struct kvb_detail refused_why;
    struct kvb_log_limit refused_limit;

    pthread_mutex_t lock;
    struct kvb_kubernetes_status status; /* protected by lock */
};

const char *kvb_kubernetes_state_name(enum kvb_kubernetes_state state)
{
    static const char *const names[KVB_KUBERNETES_STATE_COUNT] = {
        [KVB_KUBERNETES_STARTING] = "starting",
        [KVB_KUBERNETES_WATCHING] = "watching",
        [KVB_KUBERNETES_EMPTY] = "empty",
        [KVB_KUBERNETES_AWAY] = "away",
    };

    return (unsigned)state < KVB_KUBERNETES_STATE_COUNT ? names[state] : "";
}

/* Reads token and kubeconfig again.  On failure the old ones stay, and the reason is logged only
 * when the API server refuses them. */
static void renew_access(struct kvb_kubernetes *kubernetes, uint64_t now_ns)
{
    struct kvb_detail why = { .text = "" };

    kubernetes->renewed_ns = now_ns;
    if (kvb_kube_access_renew(&kubernetes->access, &why) == KVB_OK) {
        kubernetes->not_renewed.text[0] = '\0';
        return;
    }
    kubernetes->not_renewed = why;
    /* Without any token the API server will refuse: this says more than its answer. */
    if (kubernetes->access.token[0] == '\0') {
        kubernetes->why = why;
    }
}

/* ---- Objects ---- */

static void note_change(struct kvb_kubernetes *kubernetes, enum kvb_pod_change change)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (change == KVB_POD_RESTARTED) {
        kvb_metric_add(kubernetes->options.metrics, kvb_bridge_kubernetes_restarts, 1);
    }
    if (change != KVB_POD_SAME) {
        kubernetes->changed_ns = kubernetes->changed_ns ? kubernetes->changed_ns : now_ns;
        kubernetes->newest_ns = now_ns;
    }
}

static void count_pod_refusal(
    struct kvb_kubernetes *kubernetes, enum kvb_pod_refusal refusal, const struct kvb_detail *why)
{
    static const enum kvb_bridge_metric metrics[KVB_POD_REFUSAL_COUNT] = {
        [KVB_POD_TOO_LARGE] = kvb_bridge_kubernetes_too_large,
        [KVB_POD_INVALID] = kvb_bridge_kubernetes_invalid,
        [KVB_POD_OTHER] = kvb_bridge_kubernetes_other_kind,
        [KVB_POD_CEILING] = kvb_bridge_kubernetes_ceiling,
    };
    uint64_t times = 0;

    kubernetes->refused[refusal]++;
    kubernetes->refused_why = *why;
    kvb_metric_add(kubernetes->options.metrics, metrics[refusal], 1);
    if (kvb_log_limit_due(&kubernetes->refused_limit, kvb_clock_monotonic_ns(), &times)) {
        kvb_log_write(
            kubernetes->options.log, KVB_LOG_WARNING, "kubernetes",
            "objects of the API server are skipped", "why", why->text, "count", KVB_LOG_U64(times),
            NULL);
    }
}

static kvb_status put_pod(struct pod_source *source, const struct kvb_pod *pod)
{
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    enum kvb_pod_change change = KVB_POD_SAME;
    const kvb_status status = kvb_pods_put(&kubernetes->pods, source->number, pod, &change);

    /* Not an error of the list: list_for_room() lists again when there is room. */
    if (status == KVB_TOO_LARGE) {
        struct kvb_detail why;
        kvb_detail_set(&why, "there are more than %d pods: select fewer", kvb_max_workers);
        count_pod_refusal(kubernetes, KVB_POD_CEILING, &why);
        return KVB_OK;
    }
    if (change != KVB_POD_SAME) {
        struct kvb_metrics *metrics = kubernetes->options.metrics;
        kvb_metric_add(metrics, kvb_bridge_kubernetes_ports_beyond, pod->ports_beyond);
        kvb_metric_add(metrics, kvb_bridge_kubernetes_labels_refused, pod->labels_left_out);
    }
    note_change(kubernetes, change);
    return status;
}

static kvb_status take_pod_item(void *context, kvb_span object)
{
    struct pod_source *source = context;
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    struct kvb_pod *pod = &kubernetes->line.pod;
    struct kvb_detail why = { .text = "" };
    enum kvb_pod_refusal refusal = KVB_POD_INVALID;

    if (kvb_watch_item(&source->watch) != KVB_OK) {
        kvb_detail_set(&source->why, "the list of pods is too long: it is given up");
        return KVB_TOO_LARGE;
    }
    const kvb_status status =
        kvb_pod_decode(object, &kubernetes->options.config->rules, pod, &refusal, &why);
    /* One object that cannot be read does not end the list of all others. */
    if (status == KVB_BAD_INPUT) {
        count_pod_refusal(kubernetes, refusal, &why);
        return KVB_OK;
    }
    KVB_TRY(status);
    return put_pod(source, pod);
}

static void count_event(struct kvb_kubernetes *kubernetes, enum kvb_pod_event event)
{
    static const enum kvb_bridge_metric metrics[KVB_POD_EVENT_COUNT] = {
        [KVB_POD_ADDED] = kvb_bridge_kubernetes_added,
        [KVB_POD_MODIFIED] = kvb_bridge_kubernetes_modified,
        [KVB_POD_DELETED] = kvb_bridge_kubernetes_deleted,
        [KVB_POD_BOOKMARK] = kvb_bridge_kubernetes_bookmark,
        [KVB_POD_ERROR] = kvb_bridge_kubernetes_error,
        [KVB_POD_EVENT_UNKNOWN] = kvb_bridge_kubernetes_unknown,
    };

    kvb_metric_add(kubernetes->options.metrics, metrics[event], 1);
}

/* An ERROR event ends the watch. */
static kvb_status take_error_event(struct pod_source *source, const struct kvb_pod_line *line)
{
    source->error_code = line->code;
    kvb_detail_set(
        &source->why, "the watch ended with status %u: %.150s", line->code, line->message.text);
    return KVB_CLOSED;
}

static kvb_status take_pod_event(void *context, kvb_span object)
{
    struct pod_source *source = context;
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    struct kvb_pod_line *line = &kubernetes->line;
    struct kvb_detail why = { .text = "" };
    enum kvb_pod_refusal refusal = KVB_POD_INVALID;
    const kvb_status status =
        kvb_pod_line_decode(object, &kubernetes->options.config->rules, line, &refusal, &why);

    if (status != KVB_OK && status != KVB_BAD_INPUT) {
        return status;
    }
    if (status == KVB_OK ||
        line->event != KVB_POD_EVENT_UNKNOWN) { /* else its type could not be read */
        count_event(kubernetes, line->event);
    }
    if (status == KVB_OK && line->event == KVB_POD_ERROR) {
        return take_error_event(source, line);
    }
    /* Also of a line that was refused: the next watch continues behind it. */
    kvb_watch_line(&source->watch, line->version);
    if (status == KVB_BAD_INPUT) {
        count_pod_refusal(kubernetes, refusal, &why);
    } else if (line->event == KVB_POD_DELETED) {
        note_change(kubernetes, kvb_pods_drop(&kubernetes->pods, source->number, &line->pod));
    } else if (line->event < KVB_POD_DELETED) {
        return put_pod(source, &line->pod);
    }
    return KVB_OK;
}

/* ---- Requests ---- */

static void open_answer(void *context)
{
    struct pod_source *source = context;

    source->is_open = true;
    kvb_watch_opened(&source->watch);
}

static kvb_status take_answer_bytes(void *context, kvb_span bytes)
{
    struct pod_source *source = context;
    const bool is_list = source->splitter.answer == KVB_POD_ANSWER_LIST;

    return kvb_pod_splitter_take(
        &source->splitter, bytes, is_list ? take_pod_item : take_pod_event, source);
}

/* Handles a complete answer to a list request. */
static enum kvb_watch_input take_pod_page(struct pod_source *source, struct kvb_pod_page *out_page)
{
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    kvb_span envelope;

    if (kvb_pod_splitter_envelope(&source->splitter, &envelope) != KVB_OK) {
        kvb_detail_set(&source->why, "the list of pods is not complete");
        return KVB_WATCH_FAILED;
    }
    if (kvb_pod_page_decode(envelope, out_page, &source->why) != KVB_OK) {
        return KVB_WATCH_FAILED;
    }
    /* Pods that have gone are removed only when the last page is there. */
    if (out_page->next[0] != '\0') {
        return KVB_WATCH_PAGE;
    }
    note_change(kubernetes, kvb_pods_end_list(&kubernetes->pods, source->number));
    source->was_listed = true;
    return KVB_WATCH_LISTED;
}

static enum kvb_watch_input classify_answer(
    struct pod_source *source, const struct kvb_fetch_end *end, struct kvb_pod_page *out_page)
{
    if (end->outcome == KVB_FETCH_OK) {
        return source->splitter.answer == KVB_POD_ANSWER_LIST ? take_pod_page(source, out_page)
                                                              : KVB_WATCH_ENDED;
    }
    /* Of a request that this side has stopped, the reason stands there already. */
    if (end->outcome != KVB_FETCH_STOPPED || source->why.text[0] == '\0') {
        source->why = end->why;
    }
    if (end->outcome == KVB_FETCH_UNREACHABLE) {
        return KVB_WATCH_AWAY;
    }
    /* An ERROR event has a status of its own, in an answer of status 200. */
    const unsigned code = end->outcome == KVB_FETCH_CODE ? end->code : source->error_code;
    return code != 0 ? kvb_watch_input_of_code(code) : KVB_WATCH_FAILED;
}

/* Replaces the reason by one with a remedy, for statuses that an operator can mend. */
static void
explain_code(struct kvb_detail *why, unsigned code, const struct kvb_detail *not_renewed)
{
    static const struct {
        unsigned code;
        const char *text;
    } rows[] = {
        { http_unauthorized,
          "the token or the certificate is refused (401): check that it is the right one" },
        { 403, "not permitted (403): the Role needs get, list and watch of pods" },
        { 404, "no such namespace or path (404): check that the server is an API server" },
        { 400, "the request is refused (400): check the selectors" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].code == code) {
            kvb_detail_set(why, "%s", rows[i].text);
        }
    }
    if (code == http_unauthorized && not_renewed->text[0] != '\0') {
        kvb_detail_set(why, "refused (401), and %.200s", not_renewed->text);
    }
}

static void end_pod_answer(void *context, const struct kvb_fetch_end *end)
{
    struct pod_source *source = context;
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    struct kvb_pod_page page;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    source->fetch = NULL; /* the fetcher has freed it */
    const enum kvb_watch_input input = classify_answer(source, end, &page);
    if (input >= KVB_WATCH_REFUSED) {
        if (end->outcome == KVB_FETCH_CODE) {
            explain_code(&source->why, end->code, &kubernetes->not_renewed);
        }
        kubernetes->why = source->why;
    }
    /* A token may have been replaced since it was read: not only after a minute. */
    if (end->code == http_unauthorized) {
        renew_access(kubernetes, now_ns);
    }
    kvb_watch_step(
        &source->watch, input, input <= KVB_WATCH_LISTED ? &page : NULL, end->retry_after_s,
        now_ns);
    /* These two inputs look like success, but the step has given something up: the reason is added.
     */
    if (input == KVB_WATCH_PAGE && source->watch.pages == 0) {
        kvb_detail_set(&kubernetes->why, "the list of pods is too long: it is given up");
    } else if (input == KVB_WATCH_ENDED && source->watch.failures.pause_ns > 0) {
        kvb_detail_set(&kubernetes->why, "the API server ends watches at once, without an event");
    }
}

static void begin_pod_answer(struct pod_source *source)
{
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    const bool is_list = source->watch.state == KVB_WATCH_LISTING;

    source->is_open = false;
    source->error_code = 0;
    source->why.text[0] = '\0';
    kvb_metric_add(
        kubernetes->options.metrics,
        is_list ? kvb_bridge_kubernetes_lists : kvb_bridge_kubernetes_watches, 1);
    /* Not for further pages: the pods of the first one belong to the same list. */
    if (is_list && source->watch.pages == 0) {
        kvb_pods_begin_list(&kubernetes->pods, source->number);
        kvb_metric_add(
            kubernetes->options.metrics, kvb_bridge_kubernetes_relists, source->was_listed);
    }
    kvb_pod_splitter_begin(&source->splitter, is_list ? KVB_POD_ANSWER_LIST : KVB_POD_ANSWER_WATCH);
}

static kvb_status make_url(struct pod_source *source)
{
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    const struct kvb_kubernetes_config *config = kubernetes->options.config;
    const char *selector = config->selector[0] != '\0'
                               ? config->selector
                               : kvb_pod_preset_selector(config->rules.preset);

    kvb_buf_reset(&kubernetes->url);
    KVB_TRY(kvb_buf_append_text(&kubernetes->url, kubernetes->access.base));
    KVB_TRY(kvb_watch_path(
        &source->watch, source->name_space, selector, config->field_selector, &kubernetes->url));
    /* With its NUL: libcurl takes a string. */
    return kvb_buf_append(&kubernetes->url, "", 1);
}

static kvb_status start_pod_request(struct pod_source *source)
{
    struct kvb_kubernetes *kubernetes = source->kubernetes;
    const bool is_watch = source->watch.state == KVB_WATCH_WATCHING;

    KVB_TRY(make_url(source));
    /* A watch lasts for minutes, so only its dial has a limit here; work_source() has the
     * others. */
    struct kvb_fetch_options options = {
        .url = (const char *)kubernetes->url.data,
        .timeout_ms = is_watch ? dial_timeout_ms : list_timeout_ms,
        .max_bytes = is_watch ? SIZE_MAX : max_list_bytes,
        .is_stream = is_watch,
        .on_open = open_answer,
        .on_bytes = take_answer_bytes,
        .on_end = end_pod_answer,
        .context = source,
    };
    kvb_kube_access_show(&kubernetes->access, &options);
    return kvb_fetch_start(kubernetes->fetcher, &options, &source->fetch);
}

/* Cancels the request for the given reason. */
static void give_up(struct pod_source *source, const char *why, uint64_t now_ns)
{
    kvb_fetch_cancel(source->fetch);
    source->fetch = NULL;
    kvb_detail_set(&source->why, "%s", why);
    source->kubernetes->why = source->why;
    kvb_watch_step(&source->watch, KVB_WATCH_FAILED, NULL, 0, now_ns);
}

/* Lists again once there is room for pods that were above the ceiling. */
static void list_for_room(struct pod_source *source, uint64_t now_ns)
{
    const struct kvb_pods *pods = &source->kubernetes->pods;

    /* GONE: the watch does not repeat pods that were refused, only a list has them. */
    if (source->watch.state == KVB_WATCH_WATCHING && pods->refused_now[source->number] > 0 &&
        pods->count < kvb_max_workers) {
        kvb_fetch_cancel(source->fetch);
        source->fetch = NULL;
        kvb_watch_step(&source->watch, KVB_WATCH_GONE, NULL, 0, now_ns);
    }
}

static void work_source(struct pod_source *source, uint64_t now_ns)
{
    const bool is_watching = source->watch.state == KVB_WATCH_WATCHING;

    if (kvb_watch_is_silent(&source->watch, now_ns)) {
        give_up(source, "the watch did not end in time: it is closed", now_ns);
    } else if (
        is_watching && !source->is_open && now_ns >= source->watch.started_ns + unopened_ns) {
        give_up(source, "the watch is not answered", now_ns);
    }
    list_for_room(source, now_ns);
    if (kvb_watch_start(&source->watch, now_ns)) {
        begin_pod_answer(source);
        const kvb_status status = start_pod_request(source);
        if (status != KVB_OK) {
            give_up(source, kvb_status_name(status), now_ns);
        }
    }
}

/* ---- The list for the bridge ---- */

/* Adds a worker: what the pod says comes first, and then the defaults. */
static kvb_status add_pod(
    struct kvb_worker_list *list, const struct kvb_worker_spec *defaults, const struct kvb_pod *pod)
{
    const struct kvb_host_ports ports = { .events = pod->events_port,
                                          .replay = pod->replay_port,
                                          .metrics = pod->metrics_port,
                                          .http = pod->http_port };
    struct kvb_worker_spec worker = *defaults;

    worker.id = pod->id;
    worker.ranks = pod->ranks;
    worker.model = pod->model;
    worker.model_rule = pod->model_rule;
    worker.lora = pod->lora[0] != '\0' ? pod->lora : worker.lora;
    worker.pod_uid = pod->uid;
    worker.facts = kvb_spec_facts_of(&pod->facts);
    /* The rule of the operator; kvb_worker_list_add_at() makes the address of it. */
    worker.facts.tokenize = defaults->facts.tokenize;
    if (pod->block_size != 0) {
        worker.block_size = pod->block_size;
    } else if (worker.block_size == UINT32_MAX) {
        worker.block_size = usual_block_size;
    }
    return kvb_worker_list_add_at(list, &worker, pod->ip, &ports);
}

/* Copies the bridge's verdicts to the pods that were offered, in their order. */
static void take_verdicts(struct kvb_pods *pods, const enum kvb_verdict *verdicts)
{
    static const enum kvb_pod_state states[] = {
        [KVB_VERDICT_TAKEN] = KVB_POD_TAKEN,
        [KVB_VERDICT_ID_TAKEN] = KVB_POD_OTHER_LIST,
        [KVB_VERDICT_ADDRESS_TAKEN] = KVB_POD_OTHER_LIST,
        [KVB_VERDICT_FULL] = KVB_POD_FULL,
    };
    size_t at = 0;

    for (size_t i = 0; i < pods->count; i++) {
        /* Only these were offered, so only these have a verdict. */
        if (pods->pods[i]->verdict == KVB_POD_TAKEN) {
            pods->pods[i]->verdict = states[verdicts[at++]];
        }
    }
}

static void drop_verdicts(enum kvb_verdict **verdicts)
{
    free(*verdicts);
}

/* Gives the bridge the list of the pods that are workers. */
static kvb_status offer_list(struct kvb_kubernetes *kubernetes)
{
    const struct kvb_kubernetes_options *options = &kubernetes->options;
    struct kvb_pods *pods = &kubernetes->pods;
    struct kvb_membership_result answer = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list workers = { 0 };
    KVB_OWN(drop_verdicts)
    enum kvb_verdict *verdicts = calloc(pods->count + 1, sizeof *verdicts);

    if (!verdicts) {
        return KVB_NO_MEMORY;
    }
    /* Of pods with one id or address only one is offered: the bridge would refuse the others.
     * NOLINTNEXTLINE(clang-analyzer-unix.Malloc): KVB_OWN frees the verdicts */
    KVB_TRY(kvb_pods_settle(pods));
    for (size_t i = 0; i < pods->count; i++) {
        if (pods->pods[i]->verdict == KVB_POD_TAKEN) {
            KVB_TRY(add_pod(&workers, options->defaults->spec, pods->pods[i]));
        }
    }
    const kvb_status status = options->take(options->context, &workers, verdicts, &answer);
    /* Also "" of success, which removes an earlier reason. */
    kubernetes->not_taken = answer.why;
    /* KVB_IO: the list was taken, and some of it could not be opened. */
    if (status != KVB_OK && status != KVB_IO) {
        return status;
    }
    take_verdicts(pods, verdicts);
    return answer.left_out + answer.failed > 0 ? KVB_AGAIN : KVB_OK;
}

/* Logs each pod that should be a worker and is not, once for each reason. */
static void say_not_taken(struct kvb_kubernetes *kubernetes)
{
    size_t said = 0;

    for (size_t i = 0; i < kubernetes->pods.count && said < max_said; i++) {
        struct kvb_pod *pod = kubernetes->pods.pods[i];
        if (pod->verdict == pod->said) {
            continue;
        }
        /* Also of a pod that is taken: if it is left out later, that is said again. */
        pod->said = pod->verdict;
        if (pod->verdict >= KVB_POD_NO_PORT) {
            said++;
            kvb_log_write(
                kubernetes->options.log, KVB_LOG_WARNING, "kubernetes", "a pod is not taken",
                "reason", kvb_pod_state_name(pod->verdict), "pod", pod->facts.pod, "namespace",
                pod->facts.pod_namespace, "why", kvb_pod_state_remedy(pod->verdict), NULL);
        }
    }
}

static bool is_listing(const struct kvb_kubernetes *kubernetes)
{
    bool is_one_listing = false;

    for (size_t i = 0; i < kubernetes->source_count; i++) {
        const enum kvb_watch_state state = kubernetes->sources[i].watch.state;
        is_one_listing |= state == KVB_WATCH_LISTING ||
                          (state == KVB_WATCH_LIST_DUE && kubernetes->sources[i].watch.pages > 0);
    }
    return is_one_listing;
}

/* When the next list is given to the bridge; UINT64_MAX: it has the newest.  While a list is read,
 * only after the longest wait: of two pods with one id, the first that is read is not always the
 * older one. */
static uint64_t offer_due_ns(const struct kvb_kubernetes *kubernetes)
{
    const uint64_t gathered_ns = kubernetes->newest_ns + gather_ns;
    const uint64_t latest_ns = kubernetes->changed_ns + longest_gather_ns;

    if (kubernetes->changed_ns == 0) {
        return kubernetes->retry_at_ns != 0 ? kubernetes->retry_at_ns : UINT64_MAX;
    }
    return is_listing(kubernetes) || latest_ns < gathered_ns ? latest_ns : gathered_ns;
}

static void offer_pods(struct kvb_kubernetes *kubernetes, uint64_t now_ns)
{
    if (now_ns < offer_due_ns(kubernetes)) {
        return;
    }
    const kvb_status status = offer_list(kubernetes);
    /* No change is lost: they come on this thread, which has waited for the bridge. */
    kubernetes->changed_ns = 0;
    kubernetes->retry_at_ns = status == KVB_OK ? 0 : now_ns + retry_ns;
    say_not_taken(kubernetes);
}

/* ---- State ---- */

static enum kvb_kubernetes_state kubernetes_state_of(const struct kvb_kubernetes *kubernetes)
{
    bool was_listed = kubernetes->source_count > 0;
    bool is_away = kubernetes->source_count == 0;

    for (size_t i = 0; i < kubernetes->source_count; i++) {
        was_listed &= kubernetes->sources[i].was_listed;
        is_away |= kubernetes->sources[i].watch.away_ns != 0;
    }
    if (is_away) {
        return KVB_KUBERNETES_AWAY;
    }
    if (!was_listed) {
        return KVB_KUBERNETES_STARTING;
    }
    return kubernetes->pods.count == 0 ? KVB_KUBERNETES_EMPTY : KVB_KUBERNETES_WATCHING;
}

static uint64_t away_since(const struct kvb_kubernetes *kubernetes)
{
    uint64_t since_ns = kubernetes->closed_ns;

    for (size_t i = 0; i < kubernetes->source_count; i++) {
        const uint64_t away_ns = kubernetes->sources[i].watch.away_ns;
        since_ns = away_ns != 0 && (since_ns == 0 || away_ns < since_ns) ? away_ns : since_ns;
    }
    return since_ns;
}

static void say_state(struct kvb_kubernetes *kubernetes, enum kvb_kubernetes_state state)
{
    static const struct {
        enum kvb_log_level level;
        const char *text;
    } rows[KVB_KUBERNETES_STATE_COUNT] = {
        [KVB_KUBERNETES_STARTING] = { KVB_LOG_INFO, "listing pods" },
        [KVB_KUBERNETES_WATCHING] = { KVB_LOG_INFO, "watching pods" },
        [KVB_KUBERNETES_EMPTY] = { KVB_LOG_WARNING,
                                   "no pod matches: check kubernetes.selector, field_selector "
                                   "and namespaces" },
        [KVB_KUBERNETES_AWAY] = { KVB_LOG_WARNING,
                                  "the API server is unreachable or refuses: all workers stay" },
    };
    const bool is_away = state == KVB_KUBERNETES_AWAY;
    const bool is_due =
        is_away && kvb_log_backoff_due(&kubernetes->backoff, kvb_clock_monotonic_ns());

    if (state == kubernetes->said && !is_due) {
        return;
    }
    /* The next absence is logged at once. */
    if (!is_away) {
        kvb_log_backoff_end(&kubernetes->backoff);
    }
    kubernetes->said = state;
    kvb_log_write(
        kubernetes->options.log, rows[state].level, "kubernetes", rows[state].text, "api",
        kubernetes->access.base, is_away ? "why" : NULL, kubernetes->why.text, NULL);
}

static void show_pods(const struct kvb_pods *pods, struct kvb_kubernetes_status *status)
{
    kvb_pods_count(pods, status->counts);
    for (size_t i = 0; i < pods->count && status->shown_count < kvb_max_pods_shown; i++) {
        const struct kvb_pod *pod = pods->pods[i];
        if (pod->verdict != KVB_POD_TAKEN) {
            struct kvb_pod_shown *shown = &status->shown[status->shown_count++];
            memcpy(shown->name, pod->facts.pod, sizeof shown->name);
            memcpy(shown->name_space, pod->facts.pod_namespace, sizeof shown->name_space);
            shown->state = pod->verdict;
        }
    }
}

static void show_metrics(struct kvb_metrics *metrics, const struct kvb_kubernetes_status *status)
{
    static const enum kvb_bridge_metric pods[KVB_POD_STATE_COUNT] = {
        [KVB_POD_TAKEN] = kvb_bridge_kubernetes_pods_taken,
        [KVB_POD_PHASE] = kvb_bridge_kubernetes_pods_phase,
        [KVB_POD_NO_IP] = kvb_bridge_kubernetes_pods_no_ip,
        [KVB_POD_NO_PORT] = kvb_bridge_kubernetes_pods_no_port,
        [KVB_POD_NO_MODEL] = kvb_bridge_kubernetes_pods_no_model,
        [KVB_POD_NO_ID] = kvb_bridge_kubernetes_pods_no_id,
        [KVB_POD_RELABELLED] = kvb_bridge_kubernetes_pods_relabelled,
        [KVB_POD_ID_TAKEN] = kvb_bridge_kubernetes_pods_id_taken,
        [KVB_POD_ADDRESS_TAKEN] = kvb_bridge_kubernetes_pods_address_taken,
        [KVB_POD_OTHER_LIST] = kvb_bridge_kubernetes_pods_other_list,
        [KVB_POD_FULL] = kvb_bridge_kubernetes_pods_full,
    };

    for (size_t i = 0; i < KVB_POD_STATE_COUNT; i++) {
        kvb_metric_set(metrics, pods[i], status->counts[i]);
    }
    kvb_metric_set(
        metrics, kvb_bridge_kubernetes_connected,
        status->state == KVB_KUBERNETES_WATCHING || status->state == KVB_KUBERNETES_EMPTY);
}

static void show(struct kvb_kubernetes *kubernetes)
{
    struct kvb_kubernetes_status status = { .state = kubernetes_state_of(kubernetes),
                                            .away_ns = away_since(kubernetes),
                                            .why = kubernetes->not_taken,
                                            .refused_why = kubernetes->refused_why };

    /* The older list still runs: why nothing newer comes matters more. */
    if (status.state == KVB_KUBERNETES_AWAY) {
        status.why = kubernetes->why;
    }
    memcpy(status.refused, kubernetes->refused, sizeof status.refused);
    status.refused[KVB_POD_CEILING] = kvb_pods_beyond(&kubernetes->pods);
    show_pods(&kubernetes->pods, &status);
    show_metrics(kubernetes->options.metrics, &status);
    say_state(kubernetes, status.state);
    (void)pthread_mutex_lock(&kubernetes->lock);
    kubernetes->status = status;
    (void)pthread_mutex_unlock(&kubernetes->lock);
}

void kvb_kubernetes_read_status(
    struct kvb_kubernetes *kubernetes, struct kvb_kubernetes_status *out_status)
{
    (void)pthread_mutex_lock(&kubernetes->lock);
    *out_status = kubernetes->status;
    (void)pthread_mutex_unlock(&kubernetes->lock);
}

/* ---- The thread ---- */

static void
add_pod_source(struct kvb_kubernetes *kubernetes, const char *name_space, uint64_t now_ns)
{
    struct pod_source *source = &kubernetes->sources[kubernetes->source_count];
    uint64_t seed = now_ns;

    (void)!getrandom(&seed, sizeof seed, 0); /* on failure the clock is the seed */
    *source = (struct pod_source){ .kubernetes = kubernetes,
                                   .number = (uint32_t)kubernetes->source_count };
    (void)snprintf(source->name_space, sizeof source->name_space, "%s", name_space);
    kvb_watch_init(&source->watch, watch_s, seed, now_ns);
    kvb_pod_splitter_init(&source->splitter, KVB_POD_ANSWER_LIST);
    kubernetes->source_count++;
}

/* Opens the sources.  Without a service account a later turn tries again. */
static void open_sources(struct kvb_kubernetes *kubernetes, uint64_t now_ns)
{
    const struct kvb_kubernetes_namespaces *names = &kubernetes->options.config->namespaces;
    char own[kvb_pod_namespace_bytes + 1];

    if (kvb_kube_access_open(&kubernetes->access, kubernetes->options.config, &kubernetes->why) !=
        KVB_OK) {
        return;
    }
    if (names->count > 0) {
        for (size_t i = 0; i < names->count; i++) {
            add_pod_source(kubernetes, names->names[i], now_ns);
        }
        return;
    }
    /* Without a namespace there is no source yet, and the next turn opens the access again. */
    if (kvb_kube_access_namespace(&kubernetes->access, own, &kubernetes->why) == KVB_OK) {
        add_pod_source(kubernetes, own, now_ns);
    }
}

static void kubernetes_turn(struct kvb_kubernetes *kubernetes)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (kubernetes->source_count == 0) {
        const uint64_t since_ns = kubernetes->closed_ns != 0 ? kubernetes->closed_ns : now_ns;
        open_sources(kubernetes, now_ns);
        kubernetes->closed_ns = kubernetes->source_count == 0 ? since_ns : 0;
    }
    if (kubernetes->renewed_ns == 0 || now_ns >= kubernetes->renewed_ns + renew_ns) {
        renew_access(kubernetes, now_ns);
    }
    for (size_t i = 0; i < kubernetes->source_count; i++) {
        work_source(&kubernetes->sources[i], now_ns);
    }
    /* It waits for the ingest thread; answers of the API server wait in their sockets meanwhile. */
    offer_pods(kubernetes, now_ns);
    show(kubernetes);
}

static int until_ms(uint64_t due_ns, uint64_t now_ns, int otherwise_ms)
{
    const uint64_t left_ms = due_ns > now_ns ? (due_ns - now_ns) / KVB_NS_PER_MS + 1 : 0;

    return left_ms < (uint64_t)otherwise_ms ? (int)left_ms : otherwise_ms;
}

/* How many ms until a request or a list for the bridge is due.  Data from the server ends the wait
 * early. */
static int wait_of_turn(const struct kvb_kubernetes *kubernetes)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    int wait_ms = idle_ms;

    for (size_t i = 0; i < kubernetes->source_count; i++) {
        const struct kvb_watch *watch = &kubernetes->sources[i].watch;
        if (watch->state == KVB_WATCH_LIST_DUE || watch->state == KVB_WATCH_WATCH_DUE) {
            wait_ms = until_ms(watch->due_ns, now_ns, wait_ms);
        }
    }
    return until_ms(offer_due_ns(kubernetes), now_ns, wait_ms);
}

static void *run_kubernetes(void *context)
{
    struct kvb_kubernetes *kubernetes = context;

    (void)pthread_setname_np(pthread_self(), "kvb-kubernetes"); /* for top -H; may fail */
    while (!atomic_load(&kubernetes->is_stopping)) {
        kubernetes_turn(kubernetes);
        kvb_fetcher_run(kubernetes->fetcher, wait_of_turn(kubernetes));
    }
    return NULL;
}

kvb_status
kvb_kubernetes_new(const struct kvb_kubernetes_options *options, struct kvb_kubernetes **out)
{
    struct kvb_kubernetes *kubernetes = calloc(1, sizeof *kubernetes);

    if (!kubernetes) {
        return KVB_NO_MEMORY;
    }
    kubernetes->options = *options;
    kubernetes->said = KVB_KUBERNETES_STARTING;
    (void)pthread_mutex_init(&kubernetes->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(&kubernetes->url, url_bytes);
    kubernetes->sources = calloc(kvb_max_pod_sources, sizeof *kubernetes->sources);
    const kvb_status status = kubernetes->sources
                                  ? kvb_fetcher_new(NULL, options->resolver, &kubernetes->fetcher)
                                  : KVB_NO_MEMORY;
    if (status != KVB_OK) {
        kvb_kubernetes_free(kubernetes);
        return status;
    }
    *out = kubernetes;
    return KVB_OK;
}

kvb_status kvb_kubernetes_start(struct kvb_kubernetes *kubernetes)
{
    return kvb_thread_start(&kubernetes->thread, run_kubernetes, kubernetes);
}

void kvb_kubernetes_stop(struct kvb_kubernetes *kubernetes)
{
    if (!kubernetes || !kubernetes->thread.is_running) {
        return;
    }
    atomic_store(&kubernetes->is_stopping, true);
    /* It may be waiting for the API server. */
    kvb_fetcher_wake(kubernetes->fetcher);
    kvb_thread_join(&kubernetes->thread);
}

void kvb_kubernetes_free(struct kvb_kubernetes *kubernetes)
{
    if (!kubernetes) {
        return;
    }
    kvb_kubernetes_stop(kubernetes);
    for (size_t i = 0; kubernetes->sources && i < kubernetes->source_count; i++) {
        kvb_fetch_cancel(kubernetes->sources[i].fetch);
        kvb_pod_splitter_done(&kubernetes->sources[i].splitter);
    }
    kvb_fetcher_free(kubernetes->fetcher);
    free(kubernetes->sources);
    kvb_pods_done(&kubernetes->pods);
    kvb_buf_done(&kubernetes->url);
    kvb_kube_access_close(&kubernetes->access);
    (void)pthread_mutex_destroy(&kubernetes->lock);
    free(kubernetes);
}
