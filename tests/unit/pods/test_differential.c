#include "kvb_test.h"

#include "core/buf.h"
#include "core/own.h"
#include "core/random.h"
#include "pods/splitter.h"
#include "pods/table.h"

#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The table of pods beside a cluster that is kept as simply as can be, through the same random
 * events.
 *
 *     test_differential [--operations N] [--seed S]
 *
 * The cluster writes what an API server would: lines of a watch, and lists in pages, cut into
 * parts of any size.  Now and then the watch misses some events, and a list makes up for them, or
 * a list that breaks off comes before it.  After each operation that both have seen, the pods that
 * are taken must be those that a walk over all of the cluster finds.
 *
 * A scenario is 2,000 operations in a new cluster; its seed is said when it fails. */

enum {
    operations_a_life = 2000,
    max_slots = 24, /* in two namespaces, so each id has two pods */
    slots_of_one = max_slots / 2,
    max_addresses = 10,
    max_items_a_page = 5,
    max_text_bytes = 64 << 10,
};

/* A pod, or no pod. */
struct slot {
    bool is_there;
    bool is_selected;
    bool is_running;
    bool is_draining;
    bool is_ready;
    unsigned uid;
    unsigned created;
    unsigned address; /* 0: no address */
    unsigned port;    /* 0: no container port has a name */
    unsigned model;   /* 0: no label */
    unsigned restarts;
};

struct cluster {
    struct slot slots[max_slots];
    uint64_t random;
    unsigned clock;
    unsigned version;
    bool has_missed; /* the watch has not reported every change */
};

struct scenario {
    struct cluster cluster;
    struct kvb_pods pods;
    struct kvb_pod_splitter splitter;
    struct kvb_pod_rules rules;
    struct kvb_buf text;
    bool is_list; /* input for the splitter */
};

static uint64_t total_operations = 40000;
static uint64_t first_seed = 1;

static unsigned below(struct cluster *cluster, unsigned count)
{
    return (unsigned)kvb_random_below(&cluster->random, count);
}

/* ---- What the API server writes ---- */

static void say_pod(struct kvb_buf *out, const struct slot *slot, unsigned at, unsigned version)
{
    assert_ok(kvb_buf_append_format(
        out, "{\"metadata\":{\"name\":\"e%u\",\"namespace\":\"n%u\",\"uid\":\"%u\",",
        at % slots_of_one, at / slots_of_one, slot->uid));
    assert_ok(kvb_buf_append_format(
        out, "\"resourceVersion\":\"%u\",\"creationTimestamp\":\"2026-01-01T%02u:%02u:%02uZ\",",
        version, slot->created / 3600, slot->created / 60 % 60, slot->created % 60));
    if (slot->is_draining) {
        assert_ok(kvb_buf_append_format(out, "\"deletionTimestamp\":\"2026-01-02T00:00:00Z\","));
    }
    assert_ok(kvb_buf_append_format(out, "\"labels\":{\"a\":\"]}\\\"{\\n\""));
    if (slot->model > 0) {
        assert_ok(kvb_buf_append_format(out, ",\"model\":\"m%u\"", slot->model));
    }
    assert_ok(kvb_buf_append_format(
        out, "}},\"spec\":{\"nodeName\":\"n\",\"containers\":[{\"name\":\"c\",\"ports\":["));
    if (slot->port > 0) {
        assert_ok(kvb_buf_append_format(
            out, "{\"name\":\"kv-events\",\"containerPort\":%u}", slot->port));
    }
    assert_ok(kvb_buf_append_format(
        out, "]}]},\"status\":{\"phase\":\"%s\",", slot->is_running ? "Running" : "Pending"));
    if (slot->address > 0) {
        assert_ok(kvb_buf_append_format(out, "\"podIP\":\"10.0.0.%u\",", slot->address));
    }
    assert_ok(kvb_buf_append_format(
        out, "\"conditions\":[{\"type\":\"Ready\",\"status\":\"%s\"}],",
        slot->is_ready ? "True" : "False"));
    assert_ok(kvb_buf_append_format(
        out, "\"containerStatuses\":[{\"restartCount\":%u}]}}", slot->restarts));
}

/* ---- The reader ---- */

static struct kvb_pod *
find_pod(const struct kvb_pods *pods, const char *name_space, const char *name)
{
    for (size_t i = 0; i < pods->count; i++) {
        struct kvb_pod *pod = pods->pods[i];
        if (strcmp(pod->facts.pod, name) == 0 &&
            strcmp(pod->facts.pod_namespace, name_space) == 0) {
            return pod;
        }
    }
    return NULL;
}

/* Checks the reported kind of change: on it depends whether the bridge looks at its workers at all.
 */
static kvb_status put(struct scenario *scenario, const struct kvb_pod *pod)
{
    const struct kvb_pod *known =
        find_pod(&scenario->pods, pod->facts.pod_namespace, pod->facts.pod);
    const bool is_other = !known || strcmp(known->uid, pod->uid) != 0 ||
                          strcmp(known->ip, pod->ip) != 0 || known->state != pod->state;
    const bool has_restarted =
        known && strcmp(known->uid, pod->uid) == 0 && pod->facts.restarts > known->facts.restarts;
    enum kvb_pod_change change = KVB_POD_SAME;

    KVB_TRY(kvb_pods_put(&scenario->pods, 0, pod, &change));
    assert_int_equal(change == KVB_POD_RESTARTED, has_restarted);
    assert_true(!is_other || change != KVB_POD_SAME);
    return KVB_OK;
}

static kvb_status take_object(void *context, kvb_span object)
{
    struct scenario *scenario = context;
    enum kvb_pod_refusal refusal;
    struct kvb_detail detail;
    struct kvb_pod_line line;

    if (scenario->is_list) {
        assert_ok(kvb_pod_decode(object, &scenario->rules, &line.pod, &refusal, &detail));
        return put(scenario, &line.pod);
    }
    assert_ok(kvb_pod_line_decode(object, &scenario->rules, &line, &refusal, &detail));
    if (line.event == KVB_POD_DELETED) {
        (void)kvb_pods_drop(&scenario->pods, 0, &line.pod);
        return KVB_OK;
    }
    assert_true(line.event == KVB_POD_ADDED || line.event == KVB_POD_MODIFIED);
    return put(scenario, &line.pod);
}

/* Feeds the bytes in parts of random size. */
static void hand_over(struct scenario *scenario, bool is_list)
{
    kvb_span left = kvb_buf_span(&scenario->text);

    scenario->is_list = is_list;
    if (is_list) {
        kvb_pod_splitter_begin(&scenario->splitter, KVB_POD_ANSWER_LIST);
    }
    while (left.len > 0) {
        const size_t most = left.len < 200 ? left.len : 200;
        const size_t len = 1 + below(&scenario->cluster, (unsigned)most);
        const kvb_span part = { left.data, len < left.len ? len : left.len };
        assert_ok(kvb_pod_splitter_take(&scenario->splitter, part, take_object, scenario));
        left.data += part.len;
        left.len -= part.len;
    }
    kvb_buf_reset(&scenario->text);
}

static void
hand_over_event(struct scenario *scenario, const char *type, const struct slot *slot, unsigned at)
{
    assert_ok(kvb_buf_append_format(&scenario->text, "{\"type\":\"%s\",\"object\":", type));
    say_pod(&scenario->text, slot, at, scenario->cluster.version);
    assert_ok(kvb_buf_append_format(&scenario->text, "}\n"));
    hand_over(scenario, false);
}

/* Lists all pods, or only the first pages of them. */
static void list(struct scenario *scenario, bool breaks_off)
{
    struct cluster *cluster = &scenario->cluster;
    unsigned on_page = 0;
    bool is_page_open = false;

    kvb_pods_begin_list(&scenario->pods, 0);
    for (unsigned at = 0; at < max_slots; at++) {
        if (!cluster->slots[at].is_there || !cluster->slots[at].is_selected) {
            continue;
        }
        if (breaks_off && below(cluster, 6) == 0) {
            return;
        }
        assert_ok(kvb_buf_append_format(
            &scenario->text, is_page_open ? "," : "{\"kind\":\"PodList\",\"items\":["));
        say_pod(&scenario->text, &cluster->slots[at], at, cluster->version);
        is_page_open = ++on_page < max_items_a_page;
        if (!is_page_open) {
            assert_ok(kvb_buf_append_format(
                &scenario->text, "],\"metadata\":{\"resourceVersion\":\"%u\"}}", cluster->version));
            hand_over(scenario, true);
            on_page = 0;
        }
    }
    if (is_page_open) {
        assert_ok(kvb_buf_append_format(&scenario->text, "]}"));
        hand_over(scenario, true);
    }
    (void)kvb_pods_end_list(&scenario->pods, 0);
}

/* ---- What happens in the cluster ---- */

static bool is_address_free(const struct cluster *cluster, unsigned address)
{
    for (unsigned at = 0; at < max_slots; at++) {
        if (cluster->slots[at].is_there && cluster->slots[at].address == address) {
            return false;
        }
    }
    return true;
}

/* Two pods may have one address for a while, when the API server learns late that the first one has
 * ended. */
static unsigned draw_address(struct cluster *cluster)
{
    for (unsigned tries = 0; tries < 8; tries++) {
        const unsigned address = 1 + below(cluster, max_addresses);
        if (is_address_free(cluster, address) || below(cluster, 4) == 0) {
            return address;
        }
    }
    return 0;
}

static void begin_pod(struct cluster *cluster, struct slot *slot)
{
    *slot = (struct slot){ .is_there = true,
                           .is_selected = below(cluster, 5) > 0,
                           .uid = ++cluster->version,
                           .created = cluster->clock,
                           .port = below(cluster, 3) == 0 ? 0 : 5000 + below(cluster, 2),
                           .model = below(cluster, 4) };
}

enum happening {
    RUNS,
    MOVES,
    DRAINS,
    IS_READY,
    IS_RELABELLED,
    HAS_A_MODEL,
    RESTARTS,
    IS_REBORN,
    ENDS,
    HAPPENING_COUNT
};

static void change_pod(struct cluster *cluster, struct slot *slot)
{
    switch ((enum happening)below(cluster, HAPPENING_COUNT)) {
    case RUNS:
        slot->is_running = true;
        slot->address = slot->address ? slot->address : draw_address(cluster);
        break;
    case MOVES: /* the address arrives before the phase, or the pod has lost it */
        slot->address = slot->is_running ? slot->address : draw_address(cluster);
        break;
    case DRAINS:
        slot->is_draining = true;
        break;
    case IS_READY:
        slot->is_ready = !slot->is_ready;
        break;
    case IS_RELABELLED:
        slot->is_selected = !slot->is_selected;
        break;
    case HAS_A_MODEL:
        slot->model = below(cluster, 4);
        break;
    case RESTARTS:
        slot->restarts++;
        break;
    case IS_REBORN: /* only its UID distinguishes it from the one before */
        slot->uid = cluster->version;
        slot->created = cluster->clock;
        break;
    case ENDS:
    case HAPPENING_COUNT:
        slot->is_there = false;
        break;
    }
}

/* The line that a watch with the selector gets for the pod, or none. */
static void tell(struct scenario *scenario, const struct slot *before, unsigned at)
{
    const struct slot *now = &scenario->cluster.slots[at];
    const bool was = before->is_there && before->is_selected;
    const bool is = now->is_there && now->is_selected;

    const bool is_other = now->uid != before->uid;

    if (was && (!is || is_other)) {
        struct slot last = *before;
        last.is_draining = last.is_draining || !now->is_there || is_other;
        hand_over_event(scenario, "DELETED", &last, at);
    }
    if (is) {
        hand_over_event(scenario, was && !is_other ? "MODIFIED" : "ADDED", now, at);
    }
}

static void happen(struct scenario *scenario, bool is_watched)
{
    struct cluster *cluster = &scenario->cluster;
    const unsigned at = below(cluster, max_slots);
    struct slot *slot = &cluster->slots[at];
    const struct slot before = *slot;

    cluster->version++;
    /* few different times, so that some pods have the same age */
    cluster->clock += below(cluster, 3) == 0;
    if (!slot->is_there) {
        begin_pod(cluster, slot);
    } else {
        change_pod(cluster, slot);
    }
    if (is_watched && !cluster->has_missed) {
        tell(scenario, &before, at);
    } else {
        cluster->has_missed = true;
    }
}

/* ---- Which pods should be taken ---- */

static unsigned port_of(const struct slot *slot)
{
    return slot->port ? slot->port : 5001;
}

static bool can_be_taken(const struct slot *slot)
{
    return slot->is_there && slot->is_selected && slot->is_running && slot->address > 0 &&
           slot->model > 0;
}

static bool is_older(const struct slot *one, const struct slot *other)
{
    char one_uid[16];
    char other_uid[16];

    if (one->created != other->created) {
        return one->created < other->created;
    }
    (void)snprintf(one_uid, sizeof one_uid, "%u", one->uid);
    (void)snprintf(other_uid, sizeof other_uid, "%u", other->uid);
    return strcmp(one_uid, other_uid) < 0;
}

static bool loses_its_address(const struct cluster *cluster, const struct slot *slot)
{
    for (unsigned at = 0; at < max_slots; at++) {
        const struct slot *other = &cluster->slots[at];
        if (other != slot && can_be_taken(other) && other->address == slot->address &&
            port_of(other) == port_of(slot) && is_older(slot, other)) {
            return true;
        }
    }
    return false;
}

static bool is_candidate(const struct cluster *cluster, unsigned at)
{
    return can_be_taken(&cluster->slots[at]) && !loses_its_address(cluster, &cluster->slots[at]);
}

/* Pods with one name in both namespaces have one id. */
static bool should_be_taken(const struct cluster *cluster, unsigned at)
{
    const unsigned twin = (at + slots_of_one) % max_slots;

    return is_candidate(cluster, at) &&
           (!is_candidate(cluster, twin) || is_older(&cluster->slots[at], &cluster->slots[twin]));
}

static const struct kvb_pod *taken_pod(const struct kvb_pods *pods, unsigned at)
{
    char name[16];
    char name_space[16];

    (void)snprintf(name, sizeof name, "e%u", at % slots_of_one);
    (void)snprintf(name_space, sizeof name_space, "n%u", at / slots_of_one);
    const struct kvb_pod *pod = find_pod(pods, name_space, name);
    return pod && pod->verdict == KVB_POD_TAKEN ? pod : NULL;
}

static void compare_pod(const struct kvb_pod *pod, const struct slot *slot)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%u", slot->uid);
    assert_string_equal(pod->uid, text);
    (void)snprintf(text, sizeof text, "10.0.0.%u", slot->address);
    assert_string_equal(pod->ip, text);
    (void)snprintf(text, sizeof text, "m%u", slot->model);
    assert_string_equal(pod->model, text);
    assert_int_equal(pod->events_port, port_of(slot));
    assert_int_equal(pod->facts.restarts, slot->restarts);
    assert_int_equal(pod->facts.is_draining, slot->is_draining);
    assert_int_equal(pod->facts.ready, slot->is_ready ? KVB_READY_YES : KVB_READY_NO);
}

static void compare(struct scenario *scenario)
{
    size_t counts[KVB_POD_STATE_COUNT];
    size_t expected = 0;

    assert_ok(kvb_pods_settle(&scenario->pods));
    for (unsigned at = 0; at < max_slots; at++) {
        if (should_be_taken(&scenario->cluster, at)) {
            const struct kvb_pod *pod = taken_pod(&scenario->pods, at);
            assert_non_null(pod);
            compare_pod(pod, &scenario->cluster.slots[at]);
            expected++;
        }
    }
    kvb_pods_count(&scenario->pods, counts);
    assert_int_equal(counts[KVB_POD_TAKEN], expected);
}

/* ---- Scenarios ---- */

static void live(uint64_t seed, uint64_t operations)
{
    struct scenario scenario = { .cluster = { .random = seed },
                                 .rules = { .model_label = "model", .events_port = 5001 } };

    kvb_buf_init(&scenario.text, max_text_bytes);
    kvb_pod_splitter_init(&scenario.splitter, KVB_POD_ANSWER_WATCH);
    for (uint64_t i = 0; i < operations; i++) {
        happen(&scenario, below(&scenario.cluster, 40) > 0);
        if (scenario.cluster.has_missed && below(&scenario.cluster, 4) == 0) {
            if (below(&scenario.cluster, 3) == 0) {
                list(&scenario, true);
                kvb_buf_reset(&scenario.text);
            }
            list(&scenario, false);
            scenario.cluster.has_missed = false;
            kvb_pod_splitter_begin(&scenario.splitter, KVB_POD_ANSWER_WATCH);
        }
        if (!scenario.cluster.has_missed) {
            compare(&scenario);
        }
    }
    kvb_pod_splitter_done(&scenario.splitter);
    kvb_pods_done(&scenario.pods);
    kvb_buf_done(&scenario.text);
}

static void agrees_with_a_simple_cluster(void **state)
{
    (void)state;
    for (uint64_t done = 0, seed = first_seed; done < total_operations; seed++) {
        const uint64_t left = total_operations - done;
        const uint64_t operations = left < operations_a_life ? left : operations_a_life;
        (void)printf("seed %llu\n", (unsigned long long)seed);
        live(seed, operations);
        done += operations;
    }
}

/* ---- Options ---- */

/* NOLINTBEGIN(concurrency-mt-unsafe): argp runs before any thread starts. */
static error_t take_option(int key, char *text, struct argp_state *state)
{
    switch (key) {
    case 'n':
        total_operations = strtoull(text, NULL, 10);
        return 0;
    case 's':
        first_seed = strtoull(text, NULL, 10);
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    { "operations", 'n', "N", 0, "Number of operations in all (40000)", 0 },
    { "seed", 's', "S", 0, "Seed of the first scenario (1)", 0 },
    { 0 },
};

SUITE(differential)
{
    static const struct argp argp = { options, take_option, NULL, NULL, NULL, NULL, NULL };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_simple_cluster),
    };

    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
/* NOLINTEND(concurrency-mt-unsafe) */
