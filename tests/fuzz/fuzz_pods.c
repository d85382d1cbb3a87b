#include "core/own.h"
#include "pods/splitter.h"
#include "pods/table.h"
#include "pods/watch.h"
#include "target.h"

#include <stdlib.h>
#include <string.h>

/* An answer of the API server, taken in parts of so many bytes. */
struct answer {
    const struct kvb_pod_rules *rules;
    enum kvb_pod_answer kind;
    struct kvb_pods pods;
    struct kvb_watch watch;
    size_t objects;
    size_t refused;
    uint64_t hash;
};

static void check_pod(const struct kvb_pod *pod)
{
    const bool is_complete = pod->ip[0] != '\0' && pod->model[0] != '\0' && pod->events_port > 0 &&
                             pod->events_port + pod->ranks - 1 <= UINT16_MAX;

    check(
        pod->uid[0] != '\0' && pod->facts.pod[0] != '\0' &&
        (pod->state != KVB_POD_TAKEN || is_complete) && pod->ranks != 0);
}

static void note_bytes(struct answer *answer, kvb_span bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        answer->hash = (answer->hash ^ bytes.data[i]) * UINT64_C(1099511628211);
    }
}

static void put_pod(struct answer *answer, const struct kvb_pod *pod, enum kvb_pod_event event)
{
    enum kvb_pod_change change = KVB_POD_SAME;

    check_pod(pod);
    if (event == KVB_POD_DELETED) {
        (void)kvb_pods_drop(&answer->pods, 0, pod);
    } else if (kvb_pods_put(&answer->pods, 0, pod, &change) != KVB_OK) {
        abort(); /* neither memory nor room for pods can be short: an input has fewer than 8,192 */
    }
}

static kvb_status take_object(void *context, kvb_span object)
{
    static struct kvb_pod_line line;
    struct answer *answer = context;
    struct kvb_detail why = { "" };
    enum kvb_pod_refusal refusal = KVB_POD_REFUSAL_COUNT;
    const bool is_list = answer->kind == KVB_POD_ANSWER_LIST;

    answer->objects++;
    note_bytes(answer, object);
    line.event = KVB_POD_ADDED;
    const kvb_status status =
        is_list ? kvb_pod_decode(object, answer->rules, &line.pod, &refusal, &why)
                : kvb_pod_line_decode(object, answer->rules, &line, &refusal, &why);
    if (status != KVB_OK) {
        answer->refused++;
        check(why.text[0] != '\0' && refusal != KVB_POD_REFUSAL_COUNT);
        return KVB_OK;
    }
    if (!is_list) {
        kvb_watch_line(&answer->watch, line.version);
    }
    if (line.event <= KVB_POD_DELETED) {
        put_pod(answer, &line.pod, line.event);
    }
    return KVB_OK;
}

static void take_answer(struct answer *answer, kvb_span bytes, size_t part)
{
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    struct kvb_pod_page page;
    struct kvb_detail why;
    kvb_span envelope;

    kvb_pod_splitter_init(&splitter, answer->kind);
    for (size_t at = 0; at < bytes.len; at += part) {
        const size_t len = bytes.len - at < part ? bytes.len - at : part;
        if (kvb_pod_splitter_take(
                &splitter, (kvb_span){ bytes.data + at, len }, take_object, answer) != KVB_OK) {
            abort();
        }
    }
    if (answer->kind == KVB_POD_ANSWER_LIST &&
        kvb_pod_splitter_envelope(&splitter, &envelope) == KVB_OK) {
        note_bytes(answer, envelope);
        if (kvb_pod_page_decode(envelope, &page, &why) == KVB_OK) {
            kvb_watch_step(
                &answer->watch, page.next[0] ? KVB_WATCH_PAGE : KVB_WATCH_LISTED, &page, 0, 1);
        }
    }
    check(kvb_pods_settle(&answer->pods) == KVB_OK);
}

static void check_table(const struct kvb_pods *pods)
{
    for (size_t i = 0; i < pods->count; i++) {
        for (size_t j = i + 1; j < pods->count; j++) {
            const bool are_taken =
                pods->pods[i]->verdict == KVB_POD_TAKEN && pods->pods[j]->verdict == KVB_POD_TAKEN;
            check(!are_taken || pods->pods[i]->id != pods->pods[j]->id);
        }
    }
}

/* However an answer is cut into parts, the same objects are found in it, and the same pods are made
 * of them.  No two accepted pods have the same id.  For each refusal there is a sentence.
 *
 *     byte 0: list or watch, and the preset    byte 1: the size of the parts    the answer */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_pod_rules rules = { .events_port = KVB_POD_PORT_OF_PRESET,
                                   .replay_port = KVB_POD_PORT_OF_PRESET,
                                   .metrics_port = KVB_POD_PORT_OF_PRESET,
                                   .ranks = 1,
                                   .model = "m",
                                   .role_label = "role" };
    const struct answer nothing = { .rules = &rules };
    struct answer whole = nothing;
    struct answer cut = nothing;

    if (size < 2) {
        return 0;
    }
    rules.preset = (enum kvb_pod_preset)((data[0] >> 1) % KVB_POD_PRESET_COUNT);
    whole.kind = cut.kind = (data[0] & 1) ? KVB_POD_ANSWER_WATCH : KVB_POD_ANSWER_LIST;
    kvb_watch_init(&whole.watch, 300, 1, 0);
    (void)kvb_watch_start(&whole.watch, 0);
    cut.watch = whole.watch;
    const kvb_span bytes = { data + 2, size - 2 };
    take_answer(&whole, bytes, size);
    take_answer(&cut, bytes, (size_t)data[1] + 1);
    check(
        whole.objects == cut.objects && whole.refused == cut.refused && whole.hash == cut.hash &&
        whole.pods.count == cut.pods.count && whole.watch.state == cut.watch.state);
    check_table(&whole.pods);
    kvb_pods_done(&whole.pods);
    kvb_pods_done(&cut.pods);
    return 0;
}
