#include "pods/table.h"

#include "core/array.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

void kvb_pods_done(struct kvb_pods *pods)
{
    for (size_t i = 0; i < pods->count; i++) {
        free(pods->pods[i]);
    }
    free((void *)pods->pods);
    *pods = (struct kvb_pods){ 0 };
}

/* ---- Positions in the table ---- */

static int compare_pod_names(const struct kvb_pod *one, const struct kvb_pod *other)
{
    const int order = strcmp(one->facts.pod_namespace, other->facts.pod_namespace);

    return order != 0 ? order : strcmp(one->facts.pod, other->facts.pod);
}

/* The position of the pod with this name, or where it would be inserted: binary search. */
static size_t find_place(const struct kvb_pods *pods, const struct kvb_pod *pod)
{
    size_t from = 0;
    size_t to = pods->count;

    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (compare_pod_names(pods->pods[middle], pod) < 0) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

/* NULL: there is no pod of this name. */
static struct kvb_pod *find_pod(const struct kvb_pods *pods, const struct kvb_pod *pod, size_t *at)
{
    *at = find_place(pods, pod);
    return *at < pods->count && compare_pod_names(pods->pods[*at], pod) == 0 ? pods->pods[*at]
                                                                             : NULL;
}

static void remove_pod(struct kvb_pods *pods, size_t at)
{
    free(pods->pods[at]);
    pods->count--;
    memmove(
        (void *)&pods->pods[at], (const void *)&pods->pods[at + 1],
        (pods->count - at) * sizeof(struct kvb_pod *));
}

/* Makes room: a relabelled pod is kept only to be shown, so a new pod may take its place. */
static bool evict_relabelled(struct kvb_pods *pods)
{
    for (size_t i = 0; i < pods->count; i++) {
        if (pods->pods[i]->state == KVB_POD_RELABELLED) {
            remove_pod(pods, i);
            return true;
        }
    }
    return false;
}

static kvb_status add_pod(struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod)
{
    if (pods->count == kvb_max_workers && !evict_relabelled(pods)) {
        /* A watch tells of the same pod again and again: after a list one stands for all. */
        pods->refused_now[source] += !pods->is_listed[source] || pods->refused_now[source] == 0;
        return KVB_TOO_LARGE;
    }
    struct kvb_pod *copy = calloc(1, sizeof *copy);
    if (!copy) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = kvb_array_reserve(
        (void *)&pods->pods, &pods->capacity, pods->count + 1, sizeof(struct kvb_pod *),
        kvb_max_workers);
    if (status != KVB_OK) {
        free(copy);
        return status;
    }
    /* Searched only now, because an eviction moves the pods behind it. */
    const size_t at = find_place(pods, pod);
    memmove(
        (void *)&pods->pods[at + 1], (const void *)&pods->pods[at],
        (pods->count - at) * sizeof(struct kvb_pod *));
    *copy = *pod;
    pods->pods[at] = copy;
    pods->count++;
    return KVB_OK;
}

/* ---- Lists ---- */

void kvb_pods_begin_list(struct kvb_pods *pods, uint32_t source)
{
    pods->rounds[source]++;
    pods->refused_now[source] = 0;
    pods->is_listed[source] = false;
}

enum kvb_pod_change kvb_pods_end_list(struct kvb_pods *pods, uint32_t source)
{
    size_t kept = 0;
    const size_t before = pods->count;

    for (size_t i = 0; i < pods->count; i++) {
        struct kvb_pod *pod = pods->pods[i];
        if (pod->source == source && pod->listed != pods->rounds[source]) {
            free(pod);
        } else {
            pods->pods[kept++] = pod;
        }
    }
    pods->count = kept;
    pods->is_listed[source] = true;
    return kept < before ? KVB_POD_CHANGED : KVB_POD_SAME;
}

static bool is_same_pod(const struct kvb_pod *one, const struct kvb_pod *other)
{
    return strcmp(one->uid, other->uid) == 0 && strcmp(one->ip, other->ip) == 0 &&
           one->state == other->state && one->id == other->id &&
           one->events_port == other->events_port && one->replay_port == other->replay_port &&
           one->metrics_port == other->metrics_port && one->ranks == other->ranks &&
           one->block_size == other->block_size && strcmp(one->model, other->model) == 0 &&
           strcmp(one->lora, other->lora) == 0 &&
           kvb_worker_facts_are_same(&one->facts, &other->facts);
}

kvb_status kvb_pods_put(
    struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod,
    enum kvb_pod_change *out_change)
{
    struct kvb_pod new = *pod;
    size_t at = 0;
    struct kvb_pod *known = find_pod(pods, pod, &at);

    new.source = source;
    new.listed = pods->rounds[source];
    if (!known) {
        KVB_TRY(add_pod(pods, source, &new));
        *out_change = KVB_POD_CHANGED;
        return KVB_OK;
    }
    /* Another UID is another pod of this name. */
    const bool is_same_uid = strcmp(known->uid, new.uid) == 0;
    /* A restarted container is a new run of the engine, even if nothing else has changed. */
    if (is_same_uid && new.facts.restarts > known->facts.restarts) {
        *out_change = KVB_POD_RESTARTED;
    } else {
        *out_change = is_same_pod(known, &new) ? KVB_POD_SAME : KVB_POD_CHANGED;
    }
    new.verdict = known->verdict; /* until kvb_pods_settle() decides */
    new.said = is_same_uid ? known->said : KVB_POD_TAKEN;
    *known = new;
    return KVB_OK;
}

enum kvb_pod_change kvb_pods_drop(struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod)
{
    size_t at = 0;
    struct kvb_pod *known = find_pod(pods, pod, &at);

    /* It has been replaced already, or another list has it. */
    if (!known || known->source != source || strcmp(known->uid, pod->uid) != 0) {
        return KVB_POD_SAME;
    }
    /* It is deleted or has ended; else it runs on, and the selector passes it over. */
    if (pod->facts.is_draining || pod->state == KVB_POD_PHASE) {
        remove_pod(pods, at);
    } else {
        known->state = KVB_POD_RELABELLED;
    }
    return KVB_POD_CHANGED;
}

/* ---- Which pods are taken ---- */

static int compare_ages(const struct kvb_pod *one, const struct kvb_pod *other)
{
    const int order = strcmp(one->created, other->created);

    return order != 0 ? order : strcmp(one->uid, other->uid);
}

/* By id, then the oldest first. */
static int compare_pod_ids(const void *left, const void *right)
{
    const struct kvb_pod *one = *(struct kvb_pod *const *)left;
    const struct kvb_pod *other = *(struct kvb_pod *const *)right;

    if (one->id != other->id) {
        return one->id < other->id ? -1 : 1;
    }
    return compare_ages(one, other);
}

/* By address, then port, then the oldest first. */
static int compare_pod_addresses(const void *left, const void *right)
{
    const struct kvb_pod *one = *(struct kvb_pod *const *)left;
    const struct kvb_pod *other = *(struct kvb_pod *const *)right;
    const int order = strcmp(one->ip, other->ip);

    if (order != 0) {
        return order;
    }
    if (one->events_port != other->events_port) {
        return one->events_port < other->events_port ? -1 : 1;
    }
    return compare_ages(one, other);
}

/* Lists the pods whose verdict is "taken" so far; returns how many. */
static size_t list_taken(const struct kvb_pods *pods, struct kvb_pod **out)
{
    size_t count = 0;

    for (size_t i = 0; i < pods->count; i++) {
        if (pods->pods[i]->verdict == KVB_POD_TAKEN) {
            out[count++] = pods->pods[i];
        }
    }
    return count;
}

static void settle_ids(struct kvb_pod *const *taken, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (taken[i]->id == taken[i - 1]->id) {
            taken[i]->verdict = KVB_POD_ID_TAKEN;
        }
    }
}

/* Of pods with one address and overlapping port ranges, the youngest stays.  The pods are sorted by
 * their first port. */
static void settle_addresses(struct kvb_pod *const *taken, size_t count)
{
    struct kvb_pod *last = count > 0 ? taken[0] : NULL;

    for (size_t i = 1; i < count; i++) {
        struct kvb_pod *pod = taken[i];
        /* Ports of `last` end before those of this pod, or the hosts differ. */
        if (strcmp(pod->ip, last->ip) != 0 || pod->events_port >= last->events_port + last->ranks) {
            last = pod;
        } else if (compare_ages(pod, last) > 0) {
            last->verdict = KVB_POD_ADDRESS_TAKEN;
            last = pod;
        } else {
            pod->verdict = KVB_POD_ADDRESS_TAKEN;
        }
    }
}

kvb_status kvb_pods_settle(struct kvb_pods *pods)
{
    struct kvb_pod **taken = (struct kvb_pod **)calloc(pods->count + 1, sizeof(struct kvb_pod *));

    if (!taken) {
        return KVB_NO_MEMORY;
    }
    /* All over again: the pod that kept another one out may be gone. */
    for (size_t i = 0; i < pods->count; i++) {
        pods->pods[i]->verdict = pods->pods[i]->state;
    }
    /* Addresses first: a pod whose address was reused has ended, and must not keep its id. */
    size_t count = list_taken(pods, taken);
    qsort((void *)taken, count, sizeof(struct kvb_pod *), compare_pod_addresses);
    settle_addresses(taken, count);
    count = list_taken(pods, taken);
    qsort((void *)taken, count, sizeof(struct kvb_pod *), compare_pod_ids);
    settle_ids(taken, count);
    free((void *)taken);
    return KVB_OK;
}

void kvb_pods_count(const struct kvb_pods *pods, size_t out_counts[KVB_POD_STATE_COUNT])
{
    memset(out_counts, 0, KVB_POD_STATE_COUNT * sizeof *out_counts);
    for (size_t i = 0; i < pods->count; i++) {
        out_counts[pods->pods[i]->verdict]++;
    }
}

size_t kvb_pods_beyond(const struct kvb_pods *pods)
{
    size_t beyond = 0;

    for (size_t i = 0; i < kvb_max_pod_sources; i++) {
        beyond += pods->refused_now[i];
    }
    return beyond;
}
