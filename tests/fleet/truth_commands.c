#include "fleet/truth_commands.h"

#include "core/clock.h"
#include "core/decimal.h"
#include "core/own.h"
#include "fleet/malformed.h"
#include "wire/json/writer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lines of JSON ---- */

static kvb_status end_object_line(struct kvb_json_writer *json)
{
    kvb_json_write_end(json, '}');
    KVB_TRY(json->status);
    return kvb_buf_append(json->out, "\n", 1);
}

static void write_tokens(const uint32_t *tokens, uint32_t count, struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '[');
    for (uint32_t i = 0; i < count; i++) {
        kvb_json_write_u64(json, tokens[i]);
    }
    kvb_json_write_end(json, ']');
}

static void write_truth_block(
    const struct kvb_truth *truth, const struct kvb_truth_block *block,
    struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '{');
    if (truth->by_hash) {
        kvb_json_write_pair_u64(json, "hash", block->hash.value);
    }
    kvb_json_write_key(json, "tokens");
    write_tokens(block->tokens, truth->block_size, json);
    kvb_json_write_key(json, "parent");
    if (block->parent == kvb_no_parent) {
        kvb_json_write_number(json, -1);
    } else {
        kvb_json_write_u64(json, block->parent);
    }
    kvb_json_write_pair_u64(json, "copies", block->copies);
    if (block->salt) {
        kvb_json_write_pair_text(json, "salt", block->salt);
    }
    kvb_json_write_end(json, '}');
}

kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", truth->worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", truth->rank);
    kvb_json_write_key(&json, "seq");
    if (truth->has_seq) {
        kvb_json_write_u64(&json, truth->seq);
    } else {
        kvb_json_write_number(&json, -1);
    }
    kvb_json_write_pair_u64(&json, "unsent", truth->unsent);
    kvb_json_write_pair_u64(&json, "block_size", truth->block_size);
    if (truth->by_hash) {
        kvb_json_write_pair_bool(&json, "by_hash", true);
    }
    kvb_json_write_pair_begin(&json, "blocks", '[');
    for (uint32_t i = 0; i < truth->count && json.status == KVB_OK; i++) {
        write_truth_block(truth, &truth->blocks[i], &json);
    }
    kvb_json_write_end(&json, ']');
    return end_object_line(&json);
}

/* ["stored",ns,hash,parent,[tokens],salt]  ["removed",ns,hash]  ["cleared",ns]; the salt when the
 * block has one. */
static void
write_change(const struct kvb_content_log *log, uint64_t number, struct kvb_json_writer *json)
{
    static const char *const names[] = {
        [KVB_CONTENT_STORED] = "stored",
        [KVB_CONTENT_REMOVED] = "removed",
        [KVB_CONTENT_CLEARED] = "cleared",
    };
    const struct kvb_content_change *change = kvb_content_log_at(log, number);

    kvb_json_write_begin(json, '[');
    kvb_json_write_text(json, names[change->kind]);
    kvb_json_write_u64(json, change->at_ns);
    if (change->kind != KVB_CONTENT_CLEARED) {
        kvb_json_write_u64(json, change->hash.value);
    }
    if (change->kind == KVB_CONTENT_STORED) {
        kvb_json_write_u64(json, change->parent.value);
        write_tokens(kvb_content_log_tokens(log, number), log->block_size, json);
        if (change->salt) {
            kvb_json_write_text(json, change->salt);
        }
    }
    kvb_json_write_end(json, ']');
}

kvb_status kvb_changes_format(
    const struct kvb_changes_head *head, const struct kvb_content_log *log, struct kvb_buf *out)
{
    const uint64_t first = kvb_content_log_first(log);
    const uint64_t from = head->since < first ? first : head->since;
    const uint64_t left = log->next > from ? log->next - from : 0;
    const uint64_t to = from + (left < kvb_max_changes_shown ? left : kvb_max_changes_shown);
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", head->worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", head->rank);
    kvb_json_write_pair_u64(&json, "now_ns", head->now_ns);
    kvb_json_write_pair_u64(&json, "lost", from - head->since);
    kvb_json_write_pair_u64(&json, "next", to);
    kvb_json_write_pair_begin(&json, "changes", '[');
    for (uint64_t number = from; number < to && json.status == KVB_OK; number++) {
        write_change(log, number, &json);
    }
    kvb_json_write_end(&json, ']');
    return end_object_line(&json);
}

/* ---- Commands ---- */

enum { max_words = 5, drain_timeout_ms = 10000 };

struct words {
    const char *word[max_words];
    size_t count;
};

/* False: too many. */
static bool split_words(char *line, struct words *out_words)
{
    char *rest = NULL;

    out_words->count = 0;
    for (char *word = strtok_r(line, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
        if (out_words->count == max_words) {
            return false;
        }
        out_words->word[out_words->count++] = word;
    }
    return true;
}

static kvb_status say_error(struct kvb_truth_session *session, const char *text)
{
    struct kvb_json_writer json = kvb_json_writer_of(session->out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "error", text);
    KVB_TRY(end_object_line(&json));
    return session->send(session->context, session->out);
}

/* Words 1 and 2 name a rank.  KVB_NOT_FOUND was already answered. */
static kvb_status
find_session_rank(struct kvb_truth_session *session, const struct words *words, size_t *out_at)
{
    uint64_t worker = 0;
    uint64_t rank = 0;

    if (words->count < 3 || !kvb_decimal_read(words->word[1], &worker) ||
        !kvb_decimal_read(words->word[2], &rank) || rank > UINT32_MAX ||
        kvb_fleet_find(session->fleet, worker, (uint32_t)rank, out_at) != KVB_OK) {
        KVB_TRY(say_error(session, "expected the id of a worker and one of its ranks"));
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static kvb_status send_truth(struct kvb_truth_session *session, size_t at)
{
    KVB_OWN(kvb_truth_done) struct kvb_truth truth = { 0 };

    KVB_TRY(kvb_fleet_truth(session->fleet, at, &truth));
    KVB_TRY(kvb_truth_format(&truth, session->out));
    return session->send(session->context, session->out);
}

/* truth, truth WORKER: all ranks that fit. */
static kvb_status
send_truths(struct kvb_truth_session *session, bool has_worker, uint64_t worker_id)
{
    for (size_t at = 0; at < kvb_fleet_rank_count(session->fleet); at++) {
        struct kvb_fleet_rank_state state = { 0 };
        kvb_fleet_rank_state(session->fleet, at, &state);
        if (!has_worker || state.worker_id == worker_id) {
            KVB_TRY(send_truth(session, at));
        }
    }
    return KVB_OK;
}

static kvb_status do_truth(struct kvb_truth_session *session, const struct words *words)
{
    uint64_t worker_id = 0;
    size_t at = 0;

    if (words->count == 1) {
        return send_truths(session, false, 0);
    }
    if (words->count > 2) {
        KVB_TRY(find_session_rank(session, words, &at));
        return send_truth(session, at);
    }
    if (!kvb_decimal_read(words->word[1], &worker_id) ||
        kvb_fleet_find(session->fleet, worker_id, 0, &at) != KVB_OK) {
        return say_error(session, "expected the id of a worker");
    }
    return send_truths(session, true, worker_id);
}

static kvb_status do_changes(struct kvb_truth_session *session, const struct words *words)
{
    struct kvb_changes_head head = { 0 };
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    if (words->count < 4 || !kvb_decimal_read(words->word[3], &head.since)) {
        return say_error(session, "expected: changes WORKER RANK SINCE");
    }
    (void)kvb_decimal_read(words->word[1], &head.worker_id); /* find_session_rank() has read it */
    head.rank = (uint32_t)strtoul(words->word[2], NULL, 10);
    head.now_ns = kvb_clock_monotonic_ns();
    KVB_TRY(kvb_changes_format(&head, kvb_fleet_log(session->fleet, at), session->out));
    return session->send(session->context, session->out);
}

static kvb_status append_rank(const struct kvb_fleet_rank_state *state, struct kvb_buf *out)
{
    const struct kvb_engine_stats *stats = &state->stats;
    const struct kvb_publisher_counts *counts = &state->counts;
    struct kvb_json_writer json = kvb_json_writer_of(out);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        { "worker_id", state->worker_id },
        { "dp_rank", state->rank },
        { "batches", stats->batches },
        { "held_blocks", stats->held_blocks },
        { "running", stats->load.request_active_slots },
        { "waiting", stats->load.num_requests_waiting },
        { "requests_finished", stats->requests_finished },
        { "queried_tokens", stats->queried_tokens },
        { "hit_tokens", stats->hit_tokens },
        { "preemptions", stats->preemptions },
        { "lost", stats->lost },
        { "published", counts->published },
        { "withheld", counts->withheld },
        { "replays", counts->replays },
        { "full_replays", counts->full_replays },
        { "replayed_batches", counts->replayed },
        { "ignored_requests", counts->ignored },
        { "malformed", state->malformed },
        { "failures", counts->failures },
    };

    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < KVB_COUNT_OF(fields); i++) {
        kvb_json_write_pair_u64(&json, fields[i].name, fields[i].value);
    }
    return end_object_line(&json);
}

static kvb_status append_totals(const struct kvb_fleet_totals *totals, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "requests", totals->requests);
    kvb_json_write_pair_u64(&json, "refused", totals->refused);
    kvb_json_write_pair_u64(&json, "too_large", totals->too_large);
    kvb_json_write_pair_u64(&json, "finished", totals->finished);
    kvb_json_write_pair_u64(&json, "batches", totals->batches);
    kvb_json_write_pair_u64(&json, "failures", totals->failures);
    kvb_json_write_pair_u64(&json, "held_blocks", totals->held_blocks);
    kvb_json_write_pair_u64(&json, "running", totals->running);
    kvb_json_write_pair_u64(&json, "waiting", totals->waiting);
    kvb_json_write_pair_bool(&json, "paused", totals->is_paused);
    return end_object_line(&json);
}

static kvb_status do_stats(struct kvb_truth_session *session, const struct words *words)
{
    struct kvb_fleet_totals totals = { 0 };
    (void)words;

    for (size_t at = 0; at < kvb_fleet_rank_count(session->fleet); at++) {
        struct kvb_fleet_rank_state state = { 0 };
        kvb_fleet_rank_state(session->fleet, at, &state);
        KVB_TRY(append_rank(&state, session->out));
    }
    kvb_fleet_totals(session->fleet, &totals);
    KVB_TRY(append_totals(&totals, session->out));
    return session->send(session->context, session->out);
}

static kvb_status do_pause(struct kvb_truth_session *session, const struct words *words)
{
    (void)words;
    kvb_fleet_pause(session->fleet, true);
    return KVB_OK;
}

static kvb_status do_resume(struct kvb_truth_session *session, const struct words *words)
{
    (void)words;
    kvb_fleet_pause(session->fleet, false);
    return KVB_OK;
}

static kvb_status do_drain(struct kvb_truth_session *session, const struct words *words)
{
    (void)words;
    return kvb_fleet_drain(session->fleet, drain_timeout_ms) == KVB_OK
               ? KVB_OK
               : say_error(session, "paused, but not everything was published in 10 s");
}

static kvb_status do_reset(struct kvb_truth_session *session, const struct words *words)
{
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    return kvb_fleet_reset(session->fleet, at);
}

static kvb_status
set_sleep(struct kvb_truth_session *session, const struct words *words, enum kvb_engine_sleep sleep)
{
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    return kvb_fleet_set_sleep(session->fleet, at, sleep);
}

static kvb_status do_sleep(struct kvb_truth_session *session, const struct words *words)
{
    return set_sleep(session, words, KVB_SLEEP_DISCARDED);
}

static kvb_status do_wake(struct kvb_truth_session *session, const struct words *words)
{
    return set_sleep(session, words, KVB_SLEEP_AWAKE);
}

static kvb_status do_lose(struct kvb_truth_session *session, const struct words *words)
{
    uint64_t batches = 0;
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    if (words->count < 4 || !kvb_decimal_read(words->word[3], &batches)) {
        return say_error(session, "expected: lose WORKER RANK BATCHES");
    }
    kvb_fleet_lose_events(session->fleet, at, batches);
    return KVB_OK;
}

static kvb_status do_restart(struct kvb_truth_session *session, const struct words *words)
{
    const bool keeps_seed = words->count == 4 && strcmp(words->word[3], "same") == 0;
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    if (words->count == 4 && !keeps_seed) {
        return say_error(session, "expected: restart WORKER RANK [same]");
    }
    return kvb_fleet_restart(session->fleet, at, keeps_seed);
}

static kvb_status do_drop(struct kvb_truth_session *session, const struct words *words)
{
    uint64_t batches = 0;
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    if (words->count < 4 || !kvb_decimal_read(words->word[3], &batches)) {
        return say_error(session, "expected: drop WORKER RANK BATCHES");
    }
    kvb_fleet_withhold(session->fleet, at, batches);
    return KVB_OK;
}

static kvb_status do_malform(struct kvb_truth_session *session, const struct words *words)
{
    size_t kind = 0;
    size_t at = 0;

    KVB_TRY(find_session_rank(session, words, &at));
    const bool is_all = words->count == 4 && strcmp(words->word[3], "all") == 0;
    if (!is_all && (words->count < 4 || kvb_malformed_find(words->word[3], &kind) != KVB_OK)) {
        return say_error(
            session, "expected: malform WORKER RANK KIND|all, a kind of --malformed list");
    }
    kvb_fleet_malform(session->fleet, at, kind, is_all ? kvb_malformed_kinds : 1);
    return KVB_OK;
}

static kvb_status do_stop(struct kvb_truth_session *session, const struct words *words)
{
    (void)words;
    session->is_stopped = true;
    return KVB_OK;
}

static const struct command {
    const char *name;
    size_t max_words;
    kvb_status (*run)(struct kvb_truth_session *session, const struct words *words);
} commands[] = {
    { "truth", 3, do_truth },     { "changes", 4, do_changes }, { "stats", 1, do_stats },
    { "pause", 1, do_pause },     { "resume", 1, do_resume },   { "drain", 1, do_drain },
    { "reset", 3, do_reset },     { "restart", 4, do_restart }, { "drop", 4, do_drop },
    { "malform", 4, do_malform }, { "sleep", 3, do_sleep },     { "wake", 3, do_wake },
    { "lose", 4, do_lose },       { "stop", 1, do_stop },
};

static const struct command *find_truth_command(const struct words *words)
{
    for (size_t i = 0; i < KVB_COUNT_OF(commands); i++) {
        if (words->count > 0 && words->count <= commands[i].max_words &&
            strcmp(words->word[0], commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static kvb_status run_words(struct kvb_truth_session *session, const struct words *words)
{
    const struct command *command = find_truth_command(words);

    if (!command) {
        return say_error(
            session, "expected truth [WORKER [RANK]], changes WORKER RANK SINCE, stats, pause, "
                     "resume, drain, reset WORKER RANK, restart WORKER RANK [same], "
                     "drop WORKER RANK BATCHES, malform WORKER RANK KIND|all, or stop");
    }
    const kvb_status status = command->run(session, words);
    return status == KVB_NOT_FOUND ? KVB_OK : status; /* it was already answered */
}

kvb_status kvb_truth_run(struct kvb_truth_session *session, char *line)
{
    struct words words = { 0 };

    kvb_buf_reset(session->out);
    if (!split_words(line, &words)) {
        words.count = 0; /* too many words for any command */
    }
    KVB_TRY(run_words(session, &words));
    KVB_TRY(kvb_buf_append_text(session->out, "{\"end\":true}\n"));
    return session->send(session->context, session->out);
}
