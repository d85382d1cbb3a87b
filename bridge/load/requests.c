#include "load/requests.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/id_table.h"
#include "core/limits.h"
#include "model/query.h"
#include "model/stream_table.h"

#include <stdlib.h>
#include <string.h>

enum { finished_ids = 256, streams_a_sweep = 64 };

static const uint64_t prefill_limit_ns = 60 * KVB_NS_PER_S;
static const uint64_t first_token_limit_ns = 60 * KVB_NS_PER_S;
static const uint64_t finished_limit_ns = 5 * KVB_NS_PER_S;
static const uint64_t idle_stream_ns = 600 * KVB_NS_PER_S;
static const double rate_decay = 7.0 / 8.0;

struct request {
    char id[kvb_request_id_bytes + 1];
    bool is_prefilling; /* until its first token, its deadline, or the next prefill round */
    uint32_t hash;      /* of the id */
    uint32_t stream;    /* number */
    uint32_t heap_at;   /* its position in the heap; while free: 1 + next free request */
    uint64_t blocks;
    uint64_t prefill_blocks;
    uint64_t routed_ns;
    uint64_t prefill_until_ns; /* at most until_ns */
    uint64_t until_ns;
    uint64_t load_round; /* of its stream, at the decision; the same for the next */
    uint64_t prefill_round;
    struct kvb_promise promise;
    uint32_t promise_before; /* 1 + number of another request with this block; 0: none */
    uint32_t promise_after;
    bool is_watched;   /* its deepest promised block is among the promises */
    bool is_evicted;   /* that block was removed */
    uint64_t removals; /* of its stream, at the decision */
};

/* The sums of one stream.  A round ends with a load report: requests of earlier rounds are no
 * longer in the sum, so that a report costs the same however many requests there are. */
struct stream_sums {
    size_t in_flight;
    size_t promises;   /* requests whose deepest promised block is watched */
    uint64_t removals; /* events that removed blocks */
    uint64_t in_flight_blocks;
    uint64_t routed_requests;        /* of this load round */
    uint64_t routed_blocks;          /* of this load round */
    uint64_t ended_requests;         /* of earlier load rounds, finished in this one */
    uint64_t ended_blocks;           /* of these */
    uint64_t pending_prefill_blocks; /* of this prefill round */
    uint64_t load_round;
    uint64_t prefill_round;
    uint64_t used_ns;        /* of the newest decision or first token */
    uint64_t first_token_ns; /* of the newest one; 0: none */
    double computed_blocks;  /* decaying sums, for the rate */
    double computed_s;
};

struct finished_id {
    uint64_t hash;
    uint64_t until_ns;
};

struct kvb_requests {
    struct kvb_requests_options options;
    struct kvb_id_table ids;
    struct kvb_id_table promises; /* the first request of each (stream, deepest promised block) */
    struct kvb_hash_key key;      /* of promises */
    struct request *items;        /* owned */
    size_t item_count, item_capacity;
    uint32_t first_free; /* 1 + number; 0: none */
    uint32_t *heap;      /* owned: binary min-heap of request numbers, by next deadline */
    size_t heap_count, heap_capacity;
    struct kvb_stream_table names;
    struct stream_sums *streams; /* owned; by the number of the name */
    size_t stream_capacity;
    size_t swept_stream;
    bool has_first_tokens;
    uint64_t first_token_ns;                   /* of the newest one of any stream */
    struct finished_id finished[finished_ids]; /* a ring buffer */
    size_t next_finished;
    struct kvb_request_counters counters;
};

kvb_status
kvb_requests_new(const struct kvb_requests_options *options, struct kvb_requests **out_requests)
{
    struct kvb_requests *requests = calloc(1, sizeof *requests);

    if (!requests) {
        return KVB_NO_MEMORY;
    }
    requests->options = *options;
    requests->key = kvb_hash_key_of(options->hash_key);
    kvb_stream_table_init(&requests->names, options->max_streams, options->hash_key);
    *out_requests = requests;
    return KVB_OK;
}

void kvb_requests_free(struct kvb_requests *requests)
{
    if (!requests) {
        return;
    }
    kvb_id_table_done(&requests->ids);
    kvb_id_table_done(&requests->promises);
    kvb_stream_table_done(&requests->names);
    free(requests->items);
    free(requests->heap);
    free(requests->streams);
    free(requests);
}

/* ---- Request ids ---- */

static uint64_t id_hash(const struct kvb_requests *requests, const char *request_id)
{
    const kvb_span bytes = { .data = (const uint8_t *)request_id, .len = strlen(request_id) };

    return kvb_hash64(bytes, requests->options.hash_key);
}

static struct request *find_request(const struct kvb_requests *requests, const char *request_id)
{
    const uint32_t hash = (uint32_t)id_hash(requests, request_id);
    size_t at = kvb_id_table_start(&requests->ids, hash);

    for (uint32_t i; (i = kvb_id_table_next(&requests->ids, hash, &at)) != KVB_NO_ID;) {
        if (strcmp(requests->items[i].id, request_id) == 0) {
            return &requests->items[i];
        }
    }
    return NULL;
}

static void
remember_finished(struct kvb_requests *requests, const char *request_id, uint64_t now_ns)
{
    requests->finished[requests->next_finished++ % finished_ids] = (struct finished_id){
        .hash = id_hash(requests, request_id),
        .until_ns = now_ns + finished_limit_ns,
    };
}

static bool
is_finished(const struct kvb_requests *requests, const char *request_id, uint64_t now_ns)
{
    const uint64_t hash = id_hash(requests, request_id);

    for (size_t i = 0; i < finished_ids; i++) {
        if (requests->finished[i].hash == hash && requests->finished[i].until_ns > now_ns) {
            return true;
        }
    }
    return false;
}

/* ---- The heap of deadlines ---- */

static uint64_t next_deadline(const struct request *request)
{
    return request->is_prefilling ? request->prefill_until_ns : request->until_ns;
}

static uint64_t heap_deadline(const struct kvb_requests *requests, size_t at)
{
    return next_deadline(&requests->items[requests->heap[at]]);
}

static void put_at(struct kvb_requests *requests, size_t at, uint32_t number)
{
    requests->heap[at] = number;
    requests->items[number].heap_at = (uint32_t)at;
}

static void swap_in_heap(struct kvb_requests *requests, size_t a, size_t b)
{
    const uint32_t number = requests->heap[a];

    put_at(requests, a, requests->heap[b]);
    put_at(requests, b, number);
}

/* Moves a request whose deadline has changed to its place in the heap. */
static void settle_in_heap(struct kvb_requests *requests, size_t at)
{
    /* Up, past all that end later; or down, past all that end sooner. */
    while (at > 0 && heap_deadline(requests, at) < heap_deadline(requests, (at - 1) / 2)) {
        swap_in_heap(requests, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t first = at;
        for (size_t child = (2 * at) + 1; child <= (2 * at) + 2; child++) {
            if (child < requests->heap_count &&
                heap_deadline(requests, child) < heap_deadline(requests, first)) {
                first = child;
            }
        }
        if (first == at) {
            return;
        }
        swap_in_heap(requests, at, first);
        at = first;
    }
}

static void leave_heap(struct kvb_requests *requests, size_t at)
{
    const uint32_t last = requests->heap[--requests->heap_count];

    /* The last one fills the gap, from where it may belong above or below. */
    if (at < requests->heap_count) {
        put_at(requests, at, last);
        settle_in_heap(requests, at);
    }
}

/* ---- Sums ---- */

static void end_prefill(struct kvb_requests *requests, struct request *request)
{
    struct stream_sums *stream = &requests->streams[request->stream];

    /* The sum is of this round: what came earlier is not in it any more. */
    if (request->is_prefilling && request->prefill_round == stream->prefill_round) {
        stream->pending_prefill_blocks -= request->prefill_blocks;
    }
    request->is_prefilling = false;
}

/* ---- Promises ---- */

static uint32_t
promise_hash(const struct kvb_requests *requests, kvb_block_hash block, uint32_t stream)
{
    return (uint32_t)kvb_hash_keyed(&requests->key, block.value, stream);
}

/* The first of the requests that were promised this block; the others are linked to it. */
static struct request *
find_promise(const struct kvb_requests *requests, kvb_block_hash block, uint32_t stream)
{
    const uint32_t hash = promise_hash(requests, block, stream);
    size_t at = kvb_id_table_start(&requests->promises, hash);

    for (uint32_t i; (i = kvb_id_table_next(&requests->promises, hash, &at)) != KVB_NO_ID;) {
        struct request *request = &requests->items[i];
        if (request->stream == stream && request->promise.block.value == block.value) {
            return request;
        }
    }
    return NULL;
}

static void link_promise(struct kvb_requests *requests, struct request *first, uint32_t number)
{
    struct request *request = &requests->items[number];

    request->promise_before = 1 + (uint32_t)(first - requests->items);
    request->promise_after = first->promise_after;
    if (first->promise_after) {
        requests->items[first->promise_after - 1].promise_before = 1 + number;
    }
    first->promise_after = 1 + number;
}

/* Without memory nothing is promised: a removal of the block would not be seen. */
static void watch_promise(struct kvb_requests *requests, uint32_t number)
{
    struct request *request = &requests->items[number];

    if (request->promise.tokens == 0 || request->promise.block.value == 0) {
        return;
    }
    struct request *first = find_promise(requests, request->promise.block, request->stream);
    if (first) {
        link_promise(requests, first, number);
    } else if (
        kvb_id_table_put(
            &requests->promises, promise_hash(requests, request->promise.block, request->stream),
            number) != KVB_OK) {
        request->promise.tokens = 0;
        return;
    }
    request->is_watched = true;
    requests->streams[request->stream].promises++;
}

static void unwatch_promise(struct kvb_requests *requests, struct request *request)
{
    const uint32_t number = (uint32_t)(request - requests->items);
    const uint32_t hash = promise_hash(requests, request->promise.block, request->stream);
    const uint32_t after = request->promise_after;

    if (!request->is_watched) {
        return;
    }
    request->is_watched = false;
    requests->streams[request->stream].promises--;
    if (after) {
        requests->items[after - 1].promise_before = request->promise_before;
    }
    if (request->promise_before) {
        requests->items[request->promise_before - 1].promise_after = after;
        return;
    }
    /* It was the first, by which the others are found: the next one takes its place. */
    kvb_id_table_remove(&requests->promises, hash, number);
    if (after) { /* takes the cell that is free now */
        (void)kvb_id_table_put(&requests->promises, hash, after - 1);
    }
}

/* Each request is visited once, because it is no longer watched then. */
static void note_removed_block(struct kvb_requests *requests, kvb_block_hash block, uint32_t stream)
{
    for (struct request *first; (first = find_promise(requests, block, stream)) != NULL;) {
        first->is_evicted = true;
        unwatch_promise(requests, first);
    }
}

void kvb_requests_blocks_removed(
    struct kvb_requests *requests, const struct kvb_stream_id *id, const kvb_block_hash *blocks,
    size_t count)
{
    uint32_t stream = 0;

    if (requests->names.count == 0 ||
        kvb_stream_table_find(&requests->names, id, &stream) != KVB_OK) {
        return;
    }
    /* Counted also where no block is watched: promises of unknown blocks compare the count. */
    requests->streams[stream].removals++;
    for (size_t i = 0; requests->streams[stream].promises > 0 && i < count; i++) {
        note_removed_block(requests, blocks[i], stream);
    }
}

static enum kvb_promise_state
promise_state(const struct kvb_requests *requests, const struct request *request)
{
    const bool is_block_known = request->promise.block.value != 0;
    const bool has_removals = request->removals != requests->streams[request->stream].removals;

    if (request->promise.tokens == 0) {
        return KVB_PROMISE_NONE;
    }
    return request->is_evicted || (!is_block_known && has_removals) ? KVB_PROMISE_EVICTED
                                                                    : KVB_PROMISE_OPEN;
}

kvb_status kvb_requests_promise(
    const struct kvb_requests *requests, const char *request_id,
    struct kvb_request_promise *out_promise)
{
    const struct request *request = find_request(requests, request_id);

    if (!request) {
        return KVB_NOT_FOUND;
    }
    *out_promise = (struct kvb_request_promise){
        .promise = request->promise,
        .id = *kvb_stream_table_id(&requests->names, request->stream),
        .state = promise_state(requests, request),
    };
    return KVB_OK;
}

static void remove_request(struct kvb_requests *requests, struct request *request)
{
    const uint32_t number = (uint32_t)(request - requests->items);
    struct stream_sums *stream = &requests->streams[request->stream];

    leave_heap(requests, request->heap_at); /* first: heap_at becomes the link of free requests */
    end_prefill(requests, request);
    unwatch_promise(requests, request);
    stream->in_flight--;
    stream->in_flight_blocks -= request->blocks;
    if (request->load_round == stream->load_round) {
        stream->routed_requests--;
        stream->routed_blocks -= request->blocks;
    }
    kvb_id_table_remove(&requests->ids, request->hash, number);
    request->heap_at = requests->first_free;
    requests->first_free = number + 1;
    requests->counters.in_flight--;
}

/* ---- Decisions ---- */

static kvb_status
find_or_add_stream(struct kvb_requests *requests, const struct kvb_stream_id *id, uint32_t *out)
{
    KVB_TRY(kvb_array_reserve(
        &requests->streams, &requests->stream_capacity, requests->names.limit + 1,
        sizeof *requests->streams, kvb_max_streams + 1));
    const size_t before = requests->names.count;
    KVB_TRY(kvb_stream_table_add(&requests->names, id, out));
    if (requests->names.count > before) {
        requests->streams[*out] = (struct stream_sums){ 0 };
    }
    return KVB_OK;
}

/* Makes room for one more request; its number is the first free one, or item_count. */
static kvb_status reserve_request(struct kvb_requests *requests)
{
    const size_t max = kvb_max_requests_in_flight;

    KVB_TRY(kvb_array_reserve(
        &requests->heap, &requests->heap_capacity, requests->heap_count + 1, sizeof *requests->heap,
        max));
    return requests->first_free ? KVB_OK
                                : kvb_array_reserve(
                                      &requests->items, &requests->item_capacity,
                                      requests->item_count + 1, sizeof *requests->items, max);
}

static void make_request_place(struct kvb_requests *requests, const char *request_id)
{
    struct request *earlier = find_request(requests, request_id);

    if (earlier) {
        requests->counters.repeated++;
        remove_request(requests, earlier);
    } else if (requests->heap_count >= requests->options.max_requests) {
        requests->counters.evicted++;
        remove_request(requests, &requests->items[requests->heap[0]]);
    }
}

static uint64_t lower_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct request request_of(
    const struct kvb_request_decision *decision, const struct stream_sums *stream, uint64_t now_ns)
{
    const uint64_t ttl_ms = lower_of(decision->ttl_ms, kvb_max_request_ttl_ms);
    const uint64_t until_ns = now_ns + (ttl_ms * KVB_NS_PER_MS);
    struct request request = {
        .is_prefilling = decision->prefill_blocks > 0,
        .blocks = lower_of(decision->blocks, kvb_max_query_tokens),
        .prefill_blocks = lower_of(decision->prefill_blocks, kvb_max_query_tokens),
        .routed_ns = now_ns,
        .prefill_until_ns = lower_of(until_ns, now_ns + prefill_limit_ns),
        .until_ns = until_ns,
        .load_round = stream->load_round,
        .prefill_round = stream->prefill_round,
        .promise = decision->promise,
        .removals = stream->removals,
    };

    memcpy(request.id, decision->request_id, strlen(decision->request_id) + 1);
    return request;
}

kvb_status kvb_requests_add(
    struct kvb_requests *requests, const struct kvb_request_decision *decision, uint64_t now_ns)
{
    const uint32_t hash = (uint32_t)id_hash(requests, decision->request_id);
    uint32_t stream_number = 0;

    /* Its end came first, so nobody would take away again what it adds. */
    if (decision->is_shared && is_finished(requests, decision->request_id, now_ns)) {
        requests->counters.finished_early++;
        return KVB_AGAIN;
    }
    /* All that may fail comes before the first sum that counts it. */
    KVB_TRY(find_or_add_stream(requests, decision->id, &stream_number));
    make_request_place(requests, decision->request_id);
    KVB_TRY(reserve_request(requests));
    const uint32_t number =
        requests->first_free ? requests->first_free - 1 : (uint32_t)requests->item_count;
    KVB_TRY(kvb_id_table_put(&requests->ids, hash, number));
    if (requests->first_free) {
        requests->first_free = requests->items[number].heap_at;
    } else {
        requests->item_count++;
    }
    struct stream_sums *stream = &requests->streams[stream_number];
    struct request *request = &requests->items[number];
    *request = request_of(decision, stream, now_ns);
    request->hash = hash;
    request->stream = stream_number;
    watch_promise(requests, number);
    stream->in_flight++;
    stream->in_flight_blocks += request->blocks;
    stream->routed_requests++;
    stream->routed_blocks += request->blocks;
    stream->pending_prefill_blocks += request->is_prefilling ? request->prefill_blocks : 0;
    stream->used_ns = now_ns;
    put_at(requests, requests->heap_count++, number);
    settle_in_heap(requests, requests->heap_count - 1);
    requests->counters.in_flight++;
    return KVB_OK;
}

/* ---- Reports of routers and engines ---- */

static void learn_rate(struct stream_sums *stream, const struct request *request, uint64_t now_ns)
{
    const uint64_t since_ns =
        stream->first_token_ns > request->routed_ns ? stream->first_token_ns : request->routed_ns;
    const uint64_t busy_ns = now_ns > since_ns ? now_ns - since_ns : 0;

    stream->computed_blocks =
        (stream->computed_blocks * rate_decay) + (double)request->prefill_blocks;
    stream->computed_s =
        (stream->computed_s * rate_decay) + ((double)busy_ns / (double)KVB_NS_PER_S);
    stream->first_token_ns = now_ns;
}

kvb_status
kvb_requests_first_token(struct kvb_requests *requests, const char *request_id, uint64_t now_ns)
{
    struct request *request = find_request(requests, request_id);

    /* Known or not: somebody reports first tokens, so prefills are ended by them. */
    requests->has_first_tokens = true;
    requests->first_token_ns = now_ns;
    if (!request) {
        requests->counters.first_tokens_unknown++;
        return KVB_NOT_FOUND;
    }
    requests->counters.first_tokens++;
    struct stream_sums *stream = &requests->streams[request->stream];
    stream->used_ns = now_ns;
    if (request->is_prefilling) {
        learn_rate(stream, request, now_ns);
        end_prefill(requests, request);
        settle_in_heap(requests, request->heap_at);
    }
    return KVB_OK;
}

kvb_status
kvb_requests_finish(struct kvb_requests *requests, const char *request_id, uint64_t now_ns)
{
    struct request *request = find_request(requests, request_id);

    if (!request) {
        requests->counters.finished_unknown++;
        remember_finished(requests, request_id, now_ns);
        return KVB_NOT_FOUND;
    }
    requests->counters.finished++;
    struct stream_sums *stream = &requests->streams[request->stream];
    if (request->load_round != stream->load_round) {
        /* The newest load report counts it among the running ones. */
        stream->ended_requests++;
        stream->ended_blocks += request->blocks;
    }
    remove_request(requests, request);
    return KVB_OK;
}

static bool expects_first_tokens(const struct kvb_requests *requests, uint64_t now_ns)
{
    return requests->has_first_tokens && now_ns < requests->first_token_ns + first_token_limit_ns;
}

void kvb_requests_load_reported(
    struct kvb_requests *requests, const struct kvb_stream_id *id, uint64_t now_ns)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&requests->names, id, &number) != KVB_OK) {
        return;
    }
    struct stream_sums *stream = &requests->streams[number];
    /* The report contains what was routed before it.  A new round empties the sums, whatever the
     * number of requests; of the blocks to compute only where nobody says when each is done. */
    stream->load_round++;
    stream->routed_requests = 0;
    stream->routed_blocks = 0;
    stream->ended_requests = 0;
    stream->ended_blocks = 0;
    if (!expects_first_tokens(requests, now_ns)) {
        stream->prefill_round++;
        stream->pending_prefill_blocks = 0;
    }
}

/* ---- Time ---- */

/* Forgets streams that had no requests for long, some of them at a time.  A stream keeps its
 * measured rate during short pauses. */
static void sweep_streams(struct kvb_requests *requests, uint64_t now_ns)
{
    for (size_t i = 0; i < streams_a_sweep && requests->names.limit > 0; i++) {
        const uint32_t number = (uint32_t)(requests->swept_stream++ % requests->names.limit);
        const struct stream_sums *stream = &requests->streams[number];
        if (kvb_stream_table_id(&requests->names, number) && stream->in_flight == 0 &&
            now_ns >= stream->used_ns + idle_stream_ns) {
            kvb_stream_table_remove(&requests->names, number);
        }
    }
}

bool kvb_requests_expire(struct kvb_requests *requests, uint64_t now_ns, size_t max)
{
    sweep_streams(requests, now_ns);
    while (requests->heap_count > 0 && heap_deadline(requests, 0) <= now_ns) {
        struct request *request = &requests->items[requests->heap[0]];
        if (max-- == 0) {
            return true;
        }
        /* The deadline that is over may be that of its prefill alone. */
        if (request->is_prefilling && request->until_ns > now_ns) {
            end_prefill(requests, request);
            settle_in_heap(requests, request->heap_at);
        } else {
            requests->counters.expired++;
            remove_request(requests, request);
        }
    }
    return false;
}

/* ---- Reading ---- */

void kvb_requests_sums(
    const struct kvb_requests *requests, const struct kvb_stream_key *key, bool has_load,
    uint64_t now_ns, struct kvb_request_sums *out_sums)
{
    uint32_t number = 0;

    *out_sums = (struct kvb_request_sums){ 0 };
    if (kvb_stream_table_find_key(&requests->names, key, &number) != KVB_OK) {
        return;
    }
    const struct stream_sums *stream = &requests->streams[number];
    /* Where neither loads nor first tokens are reported, no prefill would end before its limit. */
    const bool has_end = has_load || expects_first_tokens(requests, now_ns);
    *out_sums = (struct kvb_request_sums){
        .in_flight = stream->in_flight,
        .routed_requests = stream->routed_requests,
        .routed_blocks = stream->routed_blocks,
        .ended_requests = stream->ended_requests,
        .ended_blocks = stream->ended_blocks,
        .in_flight_blocks = stream->in_flight_blocks,
        .pending_prefill_blocks = has_end ? stream->pending_prefill_blocks : 0,
        .prefill_blocks_per_s =
            stream->computed_s > 0 ? stream->computed_blocks / stream->computed_s : 0,
    };
}

void kvb_requests_count(
    const struct kvb_requests *requests, struct kvb_request_counters *out_counters)
{
    *out_counters = requests->counters;
}
