#include "bus/subject.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/url_show.h"
#include "core/utf8.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { second_try_ms = 200, place_bytes = 256 };

void kvctl_say(const char *format, ...)
{
    va_list arguments;

    fputs("kvctl: ", stderr);
    va_start(arguments, format);
    kvctl_print_list(stderr, format, arguments);
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

/* Waits until the connection is up, or down, as wanted. */
static bool
wait_for_bus(struct kvb_bus *bus, struct kvctl_gate *gate, bool is_wanted, uint32_t timeout_ms)
{
    const uint64_t end_ns = kvb_clock_wall_us() * 1000 + timeout_ms * KVB_NS_PER_MS;
    const struct timespec end = { .tv_sec = (time_t)(end_ns / KVB_NS_PER_S),
                                  .tv_nsec = (long)(end_ns % KVB_NS_PER_S) };
    bool is_late = false;

    pthread_mutex_lock(&gate->lock);
    /* on_change() may be called for other changes, too. */
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
    struct kvctl_login login;
    const struct kvb_bus_options bus_options = {
        .url = login.url,
        .login = &login.login,
        .name = "kvctl",
        .on_change = on_change,
        .context = &gate,
    };
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = NULL;

    char shown[256];

    gate.tell = tell;
    kvb_status status = kvctl_login_make(options, &login, &detail);
    if (status == KVB_OK) {
        status = kvb_bus_open(&bus_options, &bus, &detail);
    }
    (void)kvb_urls_show(login.url, shown, sizeof shown);
    /* The bus has its own copy by now. */
    explicit_bzero(login.url, sizeof login.url);
    if (status != KVB_OK) {
        kvctl_say("%s", detail.text[0] ? detail.text : kvb_status_name(status));
        return status == KVB_BAD_CONFIG || status == KVB_BAD_INPUT ? kvctl_usage : kvctl_failed;
    }
    if (!wait_for_bus(bus, &gate, true, options->timeout_ms)) {
        kvb_bus_dial_failure(bus, &detail);
        kvctl_say(
            "nats-server at %s does not answer: is it running?  Give --nats URL%s%s", shown,
            detail.text[0] ? ": " : "", detail.text);
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
        (void)wait_for_bus(line->bus, line->gate, false, second_try_ms); /* a loss ends the wait */
        status = send_query_once(line, subject, query, &taking, detail);
    }
    KVB_TRY(status);
    /* The answer came, so another request would not help. */
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

/* Of a peer or of the user: bounded. */
static kvb_status parse_any(kvb_span text, struct json_object **out_root)
{
    enum { max_depth = 16, max_values = 1 << 23 };
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_values,
                                      .values = max_values };

    return kvb_json_parse(text, &budget, out_root);
}

kvb_status kvctl_parse(kvb_span text, struct json_object **out_root)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(parse_any(text, &root));
    if (!json_object_is_type(root, json_type_object)) {
        return KVB_BAD_INPUT;
    }
    *out_root = root;
    root = NULL;
    return KVB_OK;
}

enum kvctl_exit kvctl_read_answer(const struct kvb_buf *answer, struct json_object **out_root)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    char text[512];

    if (kvctl_parse(kvb_buf_span(answer), &root) != KVB_OK) {
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

/* Writes the query for the next page, {"stream":3,"row":100}; false after the last page. */
static bool write_next_query(struct json_object *page, struct kvb_buf *query)
{
    static const struct {
        const char *said;   /* member of the answer */
        const char *member; /* of the next page's query */
    } places[] = { { "next", "from" }, { "stream", "stream" }, { "row", "row" } };
    struct kvb_json_writer json = kvb_json_writer_of(query);
    bool has_next = false;

    kvb_buf_reset(query);
    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < KVB_COUNT_OF(places); i++) {
        struct json_object *place = kvb_json_member(page, places[i].said);
        /* An answer that names no place is the last page. */
        if (place) {
            kvb_json_write_pair_u64(&json, places[i].member, json_object_get_uint64(place));
            has_next = true;
        }
    }
    kvb_json_write_end(&json, '}');
    return has_next && json.status == KVB_OK;
}

enum kvctl_exit kvctl_request_pages(
    const struct kvctl_line *line, const char *tail, kvb_span query, kvctl_page_taker *take,
    void *context)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf next = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    struct kvctl_line one = *line; /* positions of pages are valid only at one aggregator */
    bool has_next = true;

    kvb_buf_init(&next, place_bytes);
    kvb_buf_init(&answer, kvb_max_answer_bytes);
    while (has_next) {
        KVB_OWN(kvb_json_drop) struct json_object *page = NULL;
        const enum kvctl_exit asked = kvctl_request_answer(&one, tail, query, &answer);
        const enum kvctl_exit taken = asked == kvctl_ok ? take(context, &answer, &page) : asked;
        if (taken != kvctl_ok) {
            return taken;
        }
        has_next = write_next_query(page, &next);
        /* Only the first page is asked for with the caller's query. */
        query = kvb_buf_span(&next);
        kvctl_stay_with(&one, page);
    }
    return kvctl_ok;
}

/* ---- A query about a prompt --------------------------------------------------------- */

static void drop_tokens_file(FILE **file)
{
    if (*file && *file != stdin) {
        fclose(*file);
    }
}

kvb_status
kvctl_read_file(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail)
{
    enum { piece_bytes = 1 << 16 };
    KVB_OWN(drop_tokens_file) FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t got = 0;

    if (!file) {
        kvb_detail_set(detail, "%s: cannot read %s: %s", what, path, strerrordesc_np(errno));
        return KVB_BAD_INPUT;
    }
    do {
        const kvb_status status = kvb_buf_reserve(out, piece_bytes);
        if (status != KVB_OK) {
            kvb_detail_set(detail, "%s: %s: %s", what, path, kvb_status_name(status));
            return status;
        }
        got = fread(out->data + out->len, 1, piece_bytes, file);
        out->len += got;
    } while (got > 0);
    if (ferror(file)) { /* a directory can be opened but not read */
        kvb_detail_set(detail, "%s: cannot read %s: %s", what, path, strerrordesc_np(errno));
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

/* Reads the file as a text, which it ends with a NUL.  KVB_BAD_INPUT: the file contains a NUL. */
static kvb_status
read_text_file(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail)
{
    KVB_TRY(kvctl_read_file(what, path, out, detail));
    if (out->len > 0 && memchr(out->data, '\0', out->len)) {
        kvb_detail_set(detail, "%s: %s is no text", what, path);
        return KVB_BAD_INPUT;
    }
    return kvb_buf_append(out, "", 1);
}

/* Numbers between blanks and commas, with or without brackets around them all. */
static kvb_status
write_prompt_tokens(const char *text, struct kvb_json_writer *json, struct kvb_detail *detail)
{
    static const char between[] = " \t\r\n,[]";
    size_t count = 0;

    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end = NULL;
        errno = 0;
        const unsigned long token = strtoul(text, &end, 10);
        /* A number that goes on as something else, such as 12a, is none. */
        const bool is_whole = *end == '\0' || strchr(between, *end);
        if (text[0] < '0' || text[0] > '9' || !is_whole || errno != 0 || token > UINT32_MAX) {
            const int len = (int)strcspn(text, between);
            kvb_detail_set(
                detail, "token %zu: expected a number from 0 to 4294967295, got \"%.*s\"",
                count + 1, len > 40 ? 40 : len, text);
            return KVB_BAD_INPUT;
        }
        if (++count > kvb_max_query_tokens) {
            kvb_detail_set(detail, "more than %d tokens", kvb_max_query_tokens);
            return KVB_TOO_LARGE;
        }
        kvb_json_write_u64(json, token);
        text = end;
    }
    return KVB_OK;
}

/* The messages are passed on byte for byte, once they are known to be an array. */
static kvb_status
write_messages(kvb_span messages, struct kvb_json_writer *json, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    const kvb_status status = parse_any(messages, &root);
    if (status != KVB_OK || kvb_json_list_len(root) == 0) {
        kvb_detail_set(
            detail, "--messages: expected a JSON array of messages, such as "
                    "[{\"role\":\"user\",\"content\":\"Hello\"}]");
        return status == KVB_NO_MEMORY ? status : KVB_BAD_INPUT;
    }
    kvb_json_write_key(json, "messages");
    /* Not parsed and written anew: the engine's template may depend on every byte. */
    char *at = kvb_json_write_open(json, messages.len);
    if (at) {
        memcpy(at, messages.data, messages.len);
        kvb_json_write_close(json, at + messages.len);
    }
    return json->status;
}

/* The option that has the prompt, and whether its value is the prompt itself: else it is a file. */
static const char *
find_prompt(const struct kvctl_options *options, const char **out_value, bool *out_is_inline)
{
    const struct {
        const char *name;
        const char *value;
    } given[] = {
        { "--tokens", options->tokens },
        { "--text", options->text },
        { "--messages", options->messages },
        { "--tokens-file", options->tokens_file },
    };
    size_t i = 0;

    while (i + 1 < KVB_COUNT_OF(given) && !given[i].value) {
        i++;
    }
    const char *value = given[i].value;
    *out_value = value;
    *out_is_inline = options->tokens || (!options->tokens_file && value && strcmp(value, "-") != 0);
    return given[i].name;
}

/* Writes the member that has the prompt. */
static kvb_status write_prompt(
    const struct kvctl_options *options, struct kvb_json_writer *json, struct kvb_detail *detail)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf file = { 0 };
    const char *given = NULL;
    bool is_inline = false;
    const char *name = find_prompt(options, &given, &is_inline);

    /* Whatever the form, it may come from a file or stdin. */
    if (!is_inline) {
        kvb_buf_init(&file, kvb_max_query_body_bytes);
        KVB_TRY(read_text_file(name, given, &file, detail));
        given = (const char *)file.data;
    }
    const kvb_span text = { (const uint8_t *)given, strlen(given) };
    if (options->messages) {
        return write_messages(text, json, detail);
    }
    if (options->text) {
        /* The writer of JSON would replace other bytes, and the prompt with them. */
        if (!kvb_utf8_is_whole(text)) {
            kvb_detail_set(detail, "--text: not UTF-8");
            return KVB_BAD_INPUT;
        }
        kvb_json_write_pair_text(json, "text", given);
        return json->status;
    }
    kvb_json_write_pair_begin(json, "token_ids", '[');
    KVB_TRY(write_prompt_tokens(given, json, detail));
    kvb_json_write_end(json, ']');
    return json->status;
}

static void write_given_text(struct kvb_json_writer *json, const char *key, const char *text)
{
    if (text) {
        kvb_json_write_pair_text(json, key, text);
    }
}

kvb_status kvctl_write_query(
    const struct kvctl_options *options, struct kvb_buf *out, struct kvb_detail *detail)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    KVB_TRY(write_prompt(options, &json, detail));
    write_given_text(&json, "model", options->model);
    write_given_text(&json, "lora_name", options->lora);
    write_given_text(&json, "cache_salt", options->salt);
    kvb_json_write_end(&json, '}');
    return json.status;
}
