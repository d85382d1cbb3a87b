#include "fleet/engine/content_log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

kvb_status kvb_content_log_init(struct kvb_content_log *log, uint32_t capacity, uint32_t block_size)
{
    log->block_size = block_size;
    if (capacity == 0) {
        return KVB_OK;
    }
    log->changes = calloc(capacity, sizeof *log->changes);
    log->tokens = calloc((size_t)capacity * block_size, sizeof *log->tokens);
    if (!log->changes || !log->tokens) {
        return KVB_NO_MEMORY;
    }
    log->capacity = capacity;
    return KVB_OK;
}

void kvb_content_log_done(struct kvb_content_log *log)
{
    free(log->changes);
    free(log->tokens);
    *log = (struct kvb_content_log){ 0 };
}

static size_t change_place(const struct kvb_content_log *log, uint64_t number)
{
    assert(number >= kvb_content_log_first(log) && number < log->next);
    return (size_t)(number % log->capacity);
}

static void add_change(struct kvb_content_log *log, struct kvb_content_change change)
{
    log->next++;
    if (log->capacity > 0) {
        change.at_ns = log->now_ns;
        log->changes[change_place(log, log->next - 1)] = change;
    }
}

void kvb_content_log_stored(
    struct kvb_content_log *log, const struct kvb_block_content *content, kvb_engine_hash parent)
{
    add_change(
        log, (struct kvb_content_change){ .kind = KVB_CONTENT_STORED,
                                          .hash = content->hash,
                                          .parent = parent,
                                          .salt = content->salt });
    if (log->capacity > 0) {
        memcpy(
            log->tokens + change_place(log, log->next - 1) * log->block_size, content->tokens,
            log->block_size * sizeof *content->tokens);
    }
}

void kvb_content_log_removed(struct kvb_content_log *log, kvb_engine_hash hash)
{
    add_change(log, (struct kvb_content_change){ .kind = KVB_CONTENT_REMOVED, .hash = hash });
}

void kvb_content_log_cleared(struct kvb_content_log *log)
{
    add_change(log, (struct kvb_content_change){ .kind = KVB_CONTENT_CLEARED });
}

uint64_t kvb_content_log_first(const struct kvb_content_log *log)
{
    return log->next > log->capacity ? log->next - log->capacity : 0;
}

const struct kvb_content_change *
kvb_content_log_at(const struct kvb_content_log *log, uint64_t number)
{
    return &log->changes[change_place(log, number)];
}

const uint32_t *kvb_content_log_tokens(const struct kvb_content_log *log, uint64_t number)
{
    return log->tokens + change_place(log, number) * log->block_size;
}
