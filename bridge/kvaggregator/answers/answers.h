#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "model/books.h"
#include "model/query.h"
#include "wire/json/writer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The answers of the aggregator: JSON, whose keys proto/openapi.yaml lists, and for gRPC protobuf.
 * The same functions serve NATS and HTTP.
 *
 * Each function appends to `out`; after a failure the caller discards what was appended.
 *
 * KVB_NOT_FOUND  there is no such model; detail is the error text of the answer
 * KVB_BAD_INPUT  the query lacks a field that it needs here; detail names the field
 * KVB_TOO_LARGE  the answer does not fit into `out`
 * KVB_NO_MEMORY
 *
 * max_rows: at most how many streams are listed, the best first; "more" counts those left out.
 *
 * A row has the published facts of its worker (model/worker_facts.h).  The answer to a route
 * request has all facts of the chosen worker, and only the address of the others.  Only workers
 * that the query selects are listed.
 *
 * The answer to a query of text has prompt_tokens, tokens and tokens_reason: how many of its tokens
 * are known, from the first one on, whether that is all, and why not.
 *
 * Threads: only the thread that owns the query context. */

/* R.kv_match: {block_size, blocks, workers:[{worker_id, dp_rank, namespace,
 * component, state, reason, blocks, percent, doubtful, tokens:{device,host,disk},
 * hit_tokens}], shared:[{worker_id, dp_rank, state, reason, tokens:{host,disk}}]}.
 * block_size and blocks refer to the device blocks of the first worker in the list, or of the first
 * one that was searched when the list is empty.  Each row has its own block_size when the workers
 * have several. */
kvb_status kvb_answer_match(
    struct kvb_query_context *ctx, struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_detail *detail);

/* POST /query, in the format of Dynamo's stand-alone indexer, in tokens:
 *
 *     {"scores":{worker:{rank:n}}, "frequencies":[],
 *      "instances":{worker:{longest_matched, gpu, dp:{rank:n}, cpu, disk}},
 *      "hits":{worker:{rank:n}}, "shared":[...]}
 *
 * scores, gpu and dp give the prefix on the device; cpu is the longer of device and host, disk the
 * longest of all tiers.  Each tier is measured alone: a prefix that continues in another tier
 * counts only up to that point.  The `tokens` of kv_match mean the same.  hits: how much of the
 * device's prefix an engine would use for this prompt, which is always less than the whole prompt;
 * only for queries of tokens.  shared: stores that hold part of the prompt, which every worker can
 * load.  "states":{worker:{rank:"PARTIAL(gone)"}} lists states other than EXACT.
 * "workers":{worker:{address, role, ...}} has the published facts of the listed workers. */
kvb_status kvb_answer_query(
    struct kvb_query_context *ctx, struct kvb_query *query, bool with_down, struct kvb_buf *out,
    struct kvb_detail *detail);

/* A route decision, for R.kv-hit-rate, for the books of all aggregators (requests in flight and
 * predicted blocks) and for metrics. */
struct kvb_route_decision {
    char request_id[kvb_request_id_bytes + 1];
    uint64_t blocks;         /* how many blocks the request adds on the worker, at least 1 */
    uint64_t prefill_blocks; /* prompt blocks that the worker must compute */
    uint64_t ttl_ms;
    uint64_t promised_tokens;      /* cached tokens that the engine should report; 0: unknown */
    kvb_block_hash promised_block; /* the deepest block of these */
    /* Names of the prompt's blocks after the held prefix, which are predicted.  Borrowed from the
     * query context until the next query. */
    const kvb_block_hash *names;
    size_t name_count;
    struct kvb_stream_id id;
    uint64_t isl_tokens;
    uint64_t hit_tokens;
    uint64_t isl_blocks;
    uint64_t overlap_blocks;
    bool is_dry_run; /* only answered: neither counted nor entered in the books */
};

/* R.kv_route: {worker_id, dp_rank, namespace, component, policy, overlap_blocks, reason,
 * request_id, scores:[{worker_id, dp_rank, cost, overlap_blocks, predicted_blocks,
 * pending_prefill_blocks, decode_blocks, waiting}]}.  Enters the decision in the books, except for
 * a dry run, which has no request_id.
 * KVB_AGAIN      the selected workers exist, but none can be chosen now; detail counts the reasons
 * KVB_NOT_FOUND  no worker of the model has the label, or is a candidate; detail names it
 * KVB_BAD_INPUT  the policy is unknown; detail lists the known ones */
kvb_status kvb_answer_route(
    struct kvb_query_context *ctx, struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_route_decision *out_decision, struct kvb_detail *detail);

/* Enters a decision in the books: requests in flight, and predicted blocks.  is_shared: another
 * aggregator made it. */
void kvb_answer_enter_decision(
    struct kvb_query_context *ctx, const struct kvb_route_decision *decision, bool is_shared);

enum kvb_request_report_kind { KVB_REQUEST_FINISHED, KVB_REQUEST_FIRST_TOKEN };

/* POST /finished, POST /first_token: enters a router's report about a request in the books, and
 * answers {request_id}.  KVB_NOT_FOUND: no such request is in flight; detail is the error text of
 * the answer. */
kvb_status kvb_answer_request_report(
    struct kvb_query_context *ctx, const struct kvb_query *query, enum kvb_request_report_kind kind,
    struct kvb_buf *out, struct kvb_detail *detail);

/* The same without a JSON answer, for R.kv_finished and R.kv_first_token.  KVB_NOT_FOUND. */
kvb_status kvb_answer_take_report(
    struct kvb_query_context *ctx, const struct kvb_shared_report *report,
    enum kvb_request_report_kind kind);

/* What the body of POST /finished or /first_token reports; without a sender. */
struct kvb_shared_report kvb_answer_report_of(const struct kvb_query *query);

/* ---- The audit: answers/audit.c ---- */

/* What the chosen stream promises; 0 tokens if its list is neither EXACT nor PARTIAL. */
struct kvb_promise
kvb_answer_promise(const struct kvb_query_context *ctx, const struct kvb_route_decision *decision);

/* Compares the cached tokens of a finished request that is still in flight with the promise. */
void kvb_answer_audit(struct kvb_query_context *ctx, const struct kvb_shared_report *report);

/* Writes the pair "audit":{verdict, requests, ...} of a stream that is audited. */
void kvb_answer_write_audit(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_stream_id *id);

/* ---- gRPC: answers/indexer.c ---- */

/* What an answer leaves out. */
struct kvb_indexer_gaps {
    size_t without_address;  /* ranks that hold something, whose worker's address is not known */
    bool has_several_models; /* and the query names none: nothing is matched */
};

/* What sgl-router asks over gRPC (proto/kv_indexer.proto): which workers, by their addresses, hold
 * how many of the prompt's first blocks.  The blocks are named as the engine names them, so only
 * streams with hashes = "engine" are matched.  A rank holds the longer of what lies in one piece on
 * the device and on the host; a worker as much as its best rank.
 *
 * Appends a MatchExternalKvPrefixResponse, most blocks first.  It is empty where nobody holds the
 * first block, or the model is not known.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_answer_indexer(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_buf *out,
    struct kvb_indexer_gaps *out_gaps);

/* ---- What is published, and the lists of workers, streams and blocks ---- */

/* KVHitRateEvent: {worker_id, isl_tokens, hit_tokens, isl_blocks, overlap_blocks}. */
kvb_status kvb_answer_hit_rate(const struct kvb_route_decision *decision, struct kvb_buf *out);

/* R.load_stats, GET /load: ProcessedEndpoints {endpoints, worker_ids, load_avg,
 * load_std, stale}. */
kvb_status kvb_answer_load(struct kvb_query_context *ctx, size_t max_rows, struct kvb_buf *out);

/* GET /streams: {streams:[{worker_id, dp_rank, namespace, component, model, block_size, state,
 * reason, blocks, doubtful, missing_at_most, last_event_id, load}]}.  first: how many streams to
 * skip; "next" is the value of `first` for the next page, if there is one. */
kvb_status kvb_answer_streams(
    struct kvb_query_context *ctx, size_t first, size_t max_rows, struct kvb_buf *out);

/* One row of GET /streams. */
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
    uint32_t *numbers; /* owned: follower numbers, sorted by stream id; NULL: not begun */
    size_t count;
    size_t at;                   /* current stream of the current model */
    size_t tier;                 /* current tier of that stream */
    struct kvb_index_walk *walk; /* owned: through the current tier; NULL: not begun */
    kvb_slot_ref walked;         /* the slot that it walks */
    struct kvb_dump_model {
        char name[kvb_model_bytes + 1];
        uint32_t block_size;
    } * models; /* owned */
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

/* Appends the next part, about kvb_dump_part_bytes at most; it may be empty.  KVB_AGAIN: there is
 * more. */
kvb_status kvb_dump_step(struct kvb_dump *dump, struct kvb_query_context *ctx, struct kvb_buf *out);

enum { kvb_dump_part_bytes = 64 << 10 }; /* of one turn: well under 1 ms */

/* Where the next page of rows begins. */
struct kvb_dump_place {
    size_t stream; /* follower number */
    uint64_t row;  /* in that stream; 0, or the value that the last page gave */
    bool is_end;
};

/* GET /dump?format=rows, and each page over NATS: one line for each held block, "worker_id dp_rank
 * tier block_hash", from *place on, about max_bytes of them, or fewer when many streams have no
 * block.  The cost depends on the rows written, not on *place.  Pages are not one snapshot: the
 * index may change between them. */
kvb_status kvb_answer_dump_rows(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place *place,
    struct kvb_buf *out);

/* R.kv_get.dump: a page as JSON, {"rows":"...", "stream":n, "row":n}; the last page lacks stream
 * and row. */
kvb_status kvb_answer_dump_page(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place place,
    struct kvb_buf *out);
