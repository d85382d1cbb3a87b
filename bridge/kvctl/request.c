#include "bus/subject.h"
#include "core/clock.h"
#include "core/own.h"
#include "core/url_show.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"

#include <pthread.h>
#include <stdarg.h>
#include <time.h>

enum { answer_depth = 16, answer_values = 1 << 23, second_try_ms = 200 };

void kvctl_say(const char *format, ...)
{
    va_list arguments;

    fputs("kvctl: ", stderr);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments); /* a failure cannot be reported anywhere */
    va_end(arguments);
    fputs("\n", stderr);
}

/* ---- Connecting ------------------------------------------------------------------- */

struct kvctl_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*tell)(bool is_connected); /* called at changes; or NULL */
    bool was_connected;              /* used by the bus's thread only */
};

static void on_change(void *context, bool is_connected)
{
    struct kvctl_gate *gate = context;

    if (gate->tell && gate->was_connected) {
        gate->tell(is_connected);
    }
    gate->was_connected = gate->was_connected || is_connected;
    pthread_mutex_lock(&gate->lock);
    pthread_cond_broadcast(&gate->changed); /* the waiting thread then checks the bus */
    pthread_mutex_unlock(&gate->lock);
}

/* Until the connection is as wanted. */
static bool
wait_for_bus(struct kvb_bus *bus, struct kvctl_gate *gate, bool is_wanted, uint32_t timeout_ms)
{
    const uint64_t end_ns = kvb_clock_wall_us() * 1000 + timeout_ms * KVB_NS_PER_MS;
    const struct timespec end = { .tv_sec = (time_t)(end_ns / KVB_NS_PER_S),
                                  .tv_nsec = (long)(end_ns % KVB_NS_PER_S) };
    bool is_late = false;

    pthread_mutex_lock(&gate->lock);
    while (kvb_bus_is_connected(bus) != is_wanted && !is_late) {
        is_late = pthread_cond_timedwait(&gate->changed, &gate->lock, &end) != 0;
    }
    pthread_mutex_unlock(&gate->lock);
    return kvb_bus_is_connected(bus) == is_wanted;
}

enum kvctl_exit kvctl_connect(
    const struct kvctl_options *options, void (*tell)(bool is_connected),
    struct kvctl_line *out_line)
{
    /* Static, because the bus may call on_change() until the program ends. */
    static struct kvctl_gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                      .changed = PTHREAD_COND_INITIALIZER };
    const struct kvb_bus_options bus_options = {
        .url = options->url,
        .name = "kvctl",
        .on_change = on_change,
        .context = &gate,
    };
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = NULL;

    gate.tell = tell;
    const kvb_status status = kvb_bus_open(&bus_options, &bus, &detail);
    if (status != KVB_OK) {
        kvctl_say("%s", detail.text[0] ? detail.text : kvb_status_name(status));
        return status == KVB_BAD_CONFIG ? kvctl_usage : kvctl_failed;
    }
    if (!wait_for_bus(bus, &gate, true, options->timeout_ms)) {
        char shown[256];
        (void)kvb_urls_show(options->url, shown, sizeof shown);
        kvctl_say("nats-server at %s does not answer: is it running?  Give --nats URL", shown);
        kvb_bus_close(bus);
        return kvctl_failed;
    }
    *out_line = (struct kvctl_line){ .options = options, .bus = bus, .gate = &gate };
    return kvctl_ok;
}

void kvctl_hang_up(struct kvctl_line *line)
{
    kvb_bus_close(line->bus);
    line->bus = NULL;
}

/* ---- Requests ---------------------------------------------------------------------- */

struct taking {
    struct kvb_buf *answer;
    kvb_status status;
};

static void take_bus_answer(void *context, const struct kvb_bus_message *message)
{
    struct taking *taking = context;

    kvb_buf_reset(taking->answer);
    taking->status = kvb_buf_append(taking->answer, message->payload.data, message->payload.len);
}

kvb_status kvctl_router_subject(
    const struct kvctl_options *options, const char *tail, char out[kvb_subject_bytes])
{
    const char *name_space = options->name_space ? options->name_space : "dynamo";
    const char *component = options->component ? options->component : "Router";

    if (!kvb_name_is_valid(name_space) || !kvb_name_is_valid(component)) {
        return KVB_BAD_INPUT; /* "*" is valid in subscriptions, but not in a request */
    }
    return kvb_subject_make(out, name_space, component, tail);
}

kvb_status
kvctl_line_subject(const struct kvctl_line *line, const char *tail, char out[kvb_subject_bytes])
{
    char whole[kvb_subject_bytes];

    (void)snprintf(/* fits: a tail is short */
                   whole, sizeof whole, "%s%s%s", tail, line->aggregator[0] ? "." : "",
                   line->aggregator);
    return kvctl_router_subject(line->options, whole, out);
}

void kvctl_stay_with(struct kvctl_line *line, struct json_object *answer)
{
    struct json_object *id = kvb_json_member(answer, "aggregator");
    const char *text = id ? json_object_get_string(id) : "";

    if (text && kvb_name_is_valid(text)) {
        (void)snprintf(line->aggregator, sizeof line->aggregator, "%s", text);
    }
}

static kvb_status send_query_once(
    const struct kvctl_line *line, const char *subject, kvb_span query, struct taking *taking,
    struct kvb_detail *detail)
{
    return kvb_bus_request(
        line->bus, subject, query, line->options->timeout_ms, take_bus_answer, taking, detail);
}

kvb_status kvctl_request(
    const struct kvctl_line *line, const char *subject, kvb_span query, struct kvb_buf *answer,
    struct kvb_detail *detail)
{
    struct taking taking = { .answer = answer, .status = KVB_OK };

    kvb_status status = send_query_once(line, subject, query, &taking, detail);
    if (status == KVB_NOT_FOUND) {
        (void)wait_for_bus(line->bus, line->gate, false, second_try_ms); /* a loss ends it early */
        status = send_query_once(line, subject, query, &taking, detail);
    }
    KVB_TRY(status);
    if (taking.status != KVB_OK) {
        kvb_detail_set(detail, "the answer does not fit: %s", kvb_status_name(taking.status));
    }
    return taking.status == KVB_OK ? KVB_OK : KVB_NO_MEMORY;
}

static void explain_failure(
    const struct kvctl_options *options, kvb_status status, const char *subject,
    const struct kvb_detail *detail)
{
    switch (status) {
    case KVB_NOT_FOUND:
        kvctl_say(
            "nobody answers %s, asked twice: is kvaggregator running with router.namespace = "
            "\"%s\" "
            "and router.component = \"%s\", and ready?  Give --namespace and --component",
            subject, options->name_space ? options->name_space : "dynamo",
            options->component ? options->component : "Router");
        break;
    case KVB_TOO_LARGE:
        kvctl_say("the query to %s is larger than nats-server's max_payload", subject);
        break;
    case KVB_IO:
        kvctl_say("%s: is kvaggregator stuck?  Give --timeout MS", detail->text);
        break;
    default:
        kvctl_say("%s", detail->text[0] ? detail->text : kvb_status_name(status));
        break;
    }
}

enum kvctl_exit kvctl_request_answer(
    const struct kvctl_line *line, const char *tail, kvb_span query, struct kvb_buf *answer)
{
    struct kvb_detail detail = { 0 };
    char subject[kvb_subject_bytes];

    if (kvctl_line_subject(line, tail, subject) != KVB_OK) {
        kvctl_say("--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -");
        return kvctl_usage;
    }
    const kvb_status status = kvctl_request(line, subject, query, answer, &detail);
    if (status != KVB_OK) {
        explain_failure(line->options, status, subject, &detail);
        return kvctl_failed;
    }
    return kvctl_ok;
}

enum kvctl_exit kvctl_read_answer(const struct kvb_buf *answer, struct json_object **out_root)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = {
        .depth = answer_depth,
        .containers = answer_values,
        .values = answer_values,
    };
    char text[512];

    const kvb_status status = kvb_json_parse(kvb_buf_span(answer), &budget, &root);
    if (status != KVB_OK || !json_object_is_type(root, json_type_object)) {
        kvctl_say("the answer is no JSON object: is there another program on this subject?");
        return kvctl_failed;
    }
    if (kvb_json_member(root, "error")) {
        kvctl_text_at(root, "error", text, sizeof text);
        kvctl_say("%s", text);
        return kvctl_failed;
    }
    *out_root = root;
    root = NULL;
    return kvctl_ok;
}
