#include "kvbridge/sync_queue.h"

#include "core/clock.h"

enum { tokens_a_second = 500, max_tokens = 1000 };

/* A requester that got BUSY requests again after 200 ms. */
static const uint64_t return_after_ns = 150 * KVB_NS_PER_MS;
static const uint64_t forget_after_ns = 60 * KVB_NS_PER_S;

/* ---- Requesters ---- */

static void fill_tokens(struct kvb_sync_requester *requester, uint64_t now_ns)
{
    const uint64_t fresh = (now_ns - requester->filled_ns) / (KVB_NS_PER_S / tokens_a_second);

    /* The time moves only with a token, or frequent requests would never earn one. */
    if (fresh > 0) {
        requester->tokens =
            requester->tokens + fresh < max_tokens ? requester->tokens + fresh : max_tokens;
        requester->filled_ns = now_ns;
    }
}

enum kvb_requester_kind
kvb_sync_requesters_note(struct kvb_sync_requesters *requesters, uint64_t key, uint64_t now_ns)
{
    struct kvb_sync_requester *requester = &requesters->places[key % kvb_sync_requesters];

    /* The place has one requester: an earlier one is forgotten, and would be new again. */
    if (requester->key != key || now_ns - requester->newest_ns >= forget_after_ns) {
        *requester = (struct kvb_sync_requester){
            .key = key, .first_ns = now_ns, .filled_ns = now_ns, .tokens = max_tokens
        };
    }
    requester->newest_ns = now_ns;
    fill_tokens(requester, now_ns);
    if (requester->tokens == 0) {
        return KVB_SYNC_TOO_OFTEN;
    }
    requester->tokens--;
    /* It asks again after a while: its inbox was not invented for one request. */
    return now_ns - requester->first_ns >= return_after_ns ? KVB_SYNC_RETURNING : KVB_SYNC_NEW;
}

/* ---- Admission ---- */

static bool
is_entry_of_stream(const struct kvb_sync_entry *left, const struct kvb_sync_entry *right)
{
    return left->worker_id == right->worker_id && left->dp_rank == right->dp_rank;
}

/* The entries that a new request competes with. */
struct scene {
    struct kvb_sync_entry *own;     /* entry of the same requester and stream */
    struct kvb_sync_entry *sibling; /* an entry of the same stream */
    struct kvb_sync_entry *free;
    struct kvb_sync_entry *new_in_all; /* entry of a requester that is not returning */
    struct kvb_sync_entry *new_in_stream;
    size_t of_stream;
    size_t of_requester;
};

static void look_at_entry(
    struct scene *scene, struct kvb_sync_entry *here, const struct kvb_sync_entry *newcomer)
{
    const bool is_stream = is_entry_of_stream(here, newcomer);

    if (is_stream) {
        scene->of_stream++;
        scene->sibling = here;
        scene->own = here->requester == newcomer->requester ? here : scene->own;
        scene->new_in_stream = here->is_returning ? scene->new_in_stream : here;
    }
    scene->of_requester += here->requester == newcomer->requester;
    scene->new_in_all = here->is_returning ? scene->new_in_all : here;
}

static struct scene
survey_queue(struct kvb_sync_queue *queue, const struct kvb_sync_entry *newcomer)
{
    struct scene scene = { 0 };

    for (size_t i = 0; i < kvb_sync_entries; i++) {
        struct kvb_sync_entry *here = &queue->entries[i];
        if (here->pending) {
            look_at_entry(&scene, here, newcomer);
        } else if (!scene.free) {
            scene.free = here;
        }
    }
    return scene;
}

static size_t count_of_requester(const struct kvb_sync_queue *queue, uint64_t requester)
{
    size_t count = 0;

    for (size_t i = 0; i < kvb_sync_entries; i++) {
        count += queue->entries[i].pending && queue->entries[i].requester == requester;
    }
    return count;
}

/* An entry of the requester with the most entries, if these exceed its share and those of the new
 * requester. */
static struct kvb_sync_entry *find_extra_copies(struct kvb_sync_queue *queue, size_t of_requester)
{
    struct kvb_sync_entry *extra_copies = NULL;
    size_t max = of_requester + 1 > kvb_sync_requester_entries ? of_requester + 1
                                                               : kvb_sync_requester_entries;

    for (size_t i = 0; i < kvb_sync_entries; i++) {
        const size_t count = count_of_requester(queue, queue->entries[i].requester);
        if (count > max) {
            max = count;
            extra_copies = &queue->entries[i];
        }
    }
    return extra_copies;
}

/* The entry for a new request: a free one, or one that may be displaced; NULL: none. */
static struct kvb_sync_entry *find_entry_place(
    struct kvb_sync_queue *queue, const struct scene *scene, const struct kvb_sync_entry *newcomer)
{
    /* A requester has one request for each stream: the newer one counts. */
    if (scene->own) {
        return scene->own;
    }
    /* The stream has its share: what is free is for other streams. */
    if (scene->of_stream >= kvb_sync_stream_entries) {
        return newcomer->is_returning ? scene->new_in_stream : NULL;
    }
    /* A requester that is not returning displaces nobody. */
    if (scene->free || !newcomer->is_returning) {
        return scene->free;
    }
    return scene->new_in_all ? scene->new_in_all : find_extra_copies(queue, scene->of_requester);
}

kvb_status kvb_sync_queue_put(
    struct kvb_sync_queue *queue, const struct kvb_sync_entry *entry,
    struct kvb_sync_displaced *out_displaced)
{
    const struct scene scene = survey_queue(queue, entry);
    struct kvb_sync_entry *place = find_entry_place(queue, &scene, entry);
    /* A repeated request keeps the turn of its stream and of its requester.  A new one begins as
     * if it had just been served: nobody gains a turn by asking anew. */
    const uint64_t stream_turn = scene.sibling ? scene.sibling->stream_turn : queue->turns;
    const uint64_t turn = scene.own ? scene.own->turn : queue->turns;

    *out_displaced = (struct kvb_sync_displaced){ 0 };
    if (!place) {
        return KVB_AGAIN;
    }
    *out_displaced =
        (struct kvb_sync_displaced){ .pending = place->pending, .is_replaced = place == scene.own };
    queue->count += !place->pending;
    *place = *entry;
    place->turn = turn;
    place->stream_turn = stream_turn;
    return KVB_OK;
}

/* ---- Turns ---- */

static bool is_entry_before(const struct kvb_sync_entry *left, const struct kvb_sync_entry *right)
{
    if (left->is_returning != right->is_returning) {
        return left->is_returning;
    }
    return left->stream_turn != right->stream_turn ? left->stream_turn < right->stream_turn
                                                   : left->turn < right->turn;
}

struct kvb_sync_entry *kvb_sync_queue_next(struct kvb_sync_queue *queue)
{
    struct kvb_sync_entry *next = NULL;

    if (queue->count == 0) {
        return NULL;
    }
    for (size_t i = 0; i < kvb_sync_entries; i++) {
        struct kvb_sync_entry *here = &queue->entries[i];
        if (here->pending && (!next || is_entry_before(here, next))) {
            next = here;
        }
    }
    queue->turns++;
    /* All requests for the stream go behind those for others. */
    for (size_t i = 0; i < kvb_sync_entries; i++) {
        if (queue->entries[i].pending && is_entry_of_stream(&queue->entries[i], next)) {
            queue->entries[i].stream_turn = queue->turns;
        }
    }
    next->turn = queue->turns;
    return next;
}

void *kvb_sync_queue_drop(struct kvb_sync_queue *queue, struct kvb_sync_entry *entry)
{
    void *pending = entry->pending;

    *entry = (struct kvb_sync_entry){ 0 };
    queue->count--;
    return pending;
}
