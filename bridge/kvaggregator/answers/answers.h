#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "model/query.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the aggregator answers, as JSON (proto/README.md has every key).  The same
 * functions serve NATS and HTTP.
 *
 * Each appends to `out`; on failure what it appended is to be thrown away.
 *
 * KVB_NOT_FOUND  no such model; detail is the sentence for the requester
 * KVB_BAD_INPUT  the query leaves something open; detail names the field
 * KVB_TOO_LARGE  the answer does not fit into out
 * KVB_NO_MEMORY
 *
 * max_rows: how many streams are listed at most, the best first; what is left out
 * is counted in "more".
 *
 * What is published of a worker (model/worker_facts.h) stands in its row, of the route in that
 * of the chosen worker; the others have the address alone.  A query lists only the workers that it
 * selects.
 *
 * Threads: only the thread that owns the query context. */

/* R.kv_match: {block_size, blocks, workers:[{worker_id, dp_rank, namespace,
 * component, state, reason, blocks, percent, doubtful, tokens:{device,host,disk},
 * hit_tokens}], shared:[{worker_id, dp_rank, state, reason, tokens:{host,disk}}]}.
 * block_size and blocks are those of the device's blocks of the first worker listed, or of
 * the only block size in use; each worker's own where there are several. */
kvb_status kvb_answer_match(
    struct kvb_query_context *ctx, const struct kvb_query *query, size_t max_rows,
    struct kvb_buf *out, struct kvb_detail *detail);

/* POST /query as Dynamo's stand-alone indexer answers it, in tokens:
 *
 *     {"scores":{worker:{rank:n}}, "frequencies":[],
 *      "instances":{worker:{longest_matched, gpu, dp:{rank:n}, cpu, disk}},
 *      "hits":{worker:{rank:n}}, "shared":[...]}
 *
 * scores, gpu and dp are what lies on the device; cpu is the longer of device and
 * host, disk the longest of all tiers: each tier counts for itself, a prefix that
 * changes tiers on its way counts up to there.  The `tokens` of kv_match mean the same.
 * hits: what a request is given of the device's, which is less where it would be the whole
 * prompt; only for queries of tokens.  shared: stores that hold some of the prompt, which
 * every worker can load.  States other than EXACT are added
 * as "states":{worker:{rank:"PARTIAL(gone)"}}, and what is published of the workers listed as
 * "workers":{worker:{address, role, ...}}. */
kvb_status kvb_answer_query(
    struct kvb_query_context *ctx, const struct kvb_query *query, bool with_down,
    struct kvb_buf *out, struct kvb_detail *detail);

/* The route decision, for R.kv-hit-rate, for the books of all aggregators and for metrics. */
struct kvb_route_decision {
    char request_id[kvb_request_id_bytes + 1];
    uint64_t blocks;         /* that it adds to those in use there, 1 at least */
    uint64_t prefill_blocks; /* that are to be computed */
    uint64_t ttl_ms;
    /* Names of the prompt's blocks behind those held: predicted.  Borrowed from the query context,
     * until the next query. */
    const kvb_block_hash *names;
    size_t name_count;
    struct kvb_stream_id id;
    uint64_t isl_tokens;
    uint64_t hit_tokens;
    uint64_t isl_blocks;
    uint64_t overlap_blocks;
    bool is_dry_run; /* answered, and not decided: counts nowhere */
};

/* R.kv_route: {worker_id, dp_rank, namespace, component, policy, overlap_blocks,
 * reason, request_id, scores:[{worker_id, dp_rank, cost, overlap_blocks, predicted_blocks,
 * pending_prefill_blocks, decode_blocks, waiting}]}.  Enters the decision in the books, unless it
 * is a dry run, which has no request_id. KVB_AGAIN      workers that are wanted are known, but none
 * can be chosen now; detail counts why KVB_NOT_FOUND  no worker of the model has the label, or is a
 * candidate; detail names it KVB_BAD_INPUT  unknown policy; detail lists those that exist */
kvb_status kvb_answer_route(
    struct kvb_query_context *ctx, const struct kvb_query *query, size_t max_rows,
    struct kvb_buf *out, struct kvb_route_decision *out_decision, struct kvb_detail *detail);

/* Enters a decision in the books: requests in flight, and predicted blocks.  is_shared: another
 * aggregator's. */
void kvb_answer_enter_decision(
    struct kvb_query_context *ctx, const struct kvb_route_decision *decision, bool is_shared);

enum kvb_request_report_kind { KVB_REQUEST_FINISHED, KVB_REQUEST_FIRST_TOKEN };

/* POST /finished, POST /first_token: enters in the books what a router reports of a request, and
 * answers {request_id}.
 * KVB_NOT_FOUND  no such request is in flight; detail is the sentence for the router */
kvb_status kvb_answer_request_report(
    struct kvb_query_context *ctx, const struct kvb_query *query, enum kvb_request_report_kind kind,
    struct kvb_buf *out, struct kvb_detail *detail);

/* The same without an answer, for R.kv_finished and R.kv_first_token.  KVB_NOT_FOUND. */
kvb_status kvb_answer_take_report(
    struct kvb_query_context *ctx, const char *request_id, enum kvb_request_report_kind kind);

/* KVHitRateEvent: {worker_id, isl_tokens, hit_tokens, isl_blocks, overlap_blocks}. */
kvb_status kvb_answer_hit_rate(const struct kvb_route_decision *decision, struct kvb_buf *out);

/* R.load_stats, GET /load: ProcessedEndpoints {endpoints, worker_ids, load_avg,
 * load_std, stale}. */
kvb_status kvb_answer_load(struct kvb_query_context *ctx, size_t max_rows, struct kvb_buf *out);

/* GET /streams: {streams:[{worker_id, dp_rank, namespace, component, model,
 * block_size, state, reason, blocks, doubtful, missing_at_most, last_event_id,
 * load}]}.  first: streams to pass over; "next" says where to go on when more
 * are left. */
kvb_status kvb_answer_streams(
    struct kvb_query_context *ctx, size_t first, size_t max_rows, struct kvb_buf *out);

/* One of those streams. */
kvb_status kvb_answer_stream(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower, struct kvb_buf *out);

/* GET /workers: an array with the keys of Dynamo's indexer, source "nats". */
kvb_status kvb_answer_workers(struct kvb_query_context *ctx, struct kvb_buf *out);

/* R.kv_get.state: {version, streams:{EXACT:n,...}, index:{...}, followed:{...}, load}. */
kvb_status kvb_answer_state(struct kvb_query_context *ctx, struct kvb_buf *out);

/* Why a dump as RouterEvents leaves a stream out.  A router that recovers from the dump credits a
 * worker with whatever it lists, so nothing doubtful may be in it. */
enum kvb_dump_reason {
    KVB_DUMP_STATE,      /* neither EXACT nor PARTIAL */
    KVB_DUMP_STORE,      /* no worker */
    KVB_DUMP_MODEL_NAME, /* empty, or with a colon: Dynamo ends the name in "model:group" there */
    KVB_DUMP_BLOCK_SIZE, /* another one than that of the first stream of its model */
    KVB_DUMP_REASON_COUNT
};

/* A dump in the making, a part at a time, so that other queries need not wait for the end
 * of it.  Each part is shown as it is at one moment; one that comes after the beginning is
 * not shown, and a block that moves between two parts may be shown twice or not.
 * {0} to begin with. */
struct kvb_dump {
    uint32_t *numbers; /* owned: of the streams, by id; NULL: not begun */
    size_t count;
    size_t at;                   /* the stream at hand, of the model that is being shown */
    uint64_t place;              /* in that stream: a row, or a tier */
    struct kvb_index_walk *walk; /* owned: through that tier; NULL: not begun */
    kvb_slot_ref walked;         /* its slot */
    struct kvb_dump_model {
        char name[kvb_model_bytes + 1];
        uint32_t block_size;
    } * models; /* owned; NULL: as rows, whatever the model */
    size_t model_count;
    size_t model;
    uint32_t left_out[KVB_DUMP_REASON_COUNT]; /* streams, by reason */
    uint64_t event_id;                        /* counts through all of a model */
    bool is_begun;
    bool is_in_model;
    bool is_after_value;
};

void kvb_dump_done(struct kvb_dump *dump);

struct kvb_dump_options {
    const char *model, *name_space, *component; /* "": all */
    bool engine_names;                          /* blocks must have their engine's names */
    uint64_t max_blocks;                        /* KVB_TOO_LARGE above */
};

/* GET /dump: {"model:default":{block_size, events:[RouterEvent...]}}, as Dynamo's stand-alone
 * indexer reads it from a peer when it starts.
 *
 * KVB_BAD_INPUT  engine_names, but a stream has canonical names; or a worker of one model is in
 *                two components, which Dynamo would mix.  detail names it
 * KVB_TOO_LARGE  more blocks than such a peer waits for, or too many models; detail says so
 * KVB_NO_MEMORY */
kvb_status kvb_dump_begin(
    struct kvb_dump *dump, struct kvb_query_context *ctx, const struct kvb_dump_options *options,
    struct kvb_detail *detail);

/* GET /dump?format=rows: one line a held block, "worker_id dp_rank tier block_hash". */
kvb_status kvb_dump_begin_rows(struct kvb_dump *dump, struct kvb_query_context *ctx);

/* Appends the next part, at most some 64 KiB; it may be empty.  KVB_AGAIN: there is more. */
kvb_status kvb_dump_step(struct kvb_dump *dump, struct kvb_query_context *ctx, struct kvb_buf *out);

/* Where the next page of rows begins. */
struct kvb_dump_place {
    size_t stream; /* follower number */
    uint64_t row;  /* in that stream; 0: its beginning, else as a page said */
    bool is_end;
};

/* Rows as above, from *place on until about max_bytes are written, or none if there are too
 * many streams without a block.  It costs what is shown, wherever *place is; pages of an
 * index that moves meanwhile are not one moment's truth. */
kvb_status kvb_answer_dump_rows(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place *place,
    struct kvb_buf *out);

/* R.kv_get.dump: a page as JSON, {"rows":"...", "stream":n, "row":n}; without the
 * last two when it was the last. */
kvb_status kvb_answer_dump_page(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place place,
    struct kvb_buf *out);
