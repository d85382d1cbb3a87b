#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdint.h>

/* What one block of a simulated engine holds, and what makes it another block than one of the
 * same tokens.  The block before it is in its hash.
 *
 * Threads: the caller locks.  Memory: borrowed for the call that it is given to, but the salt,
 * which lives as long as the engine. */
struct kvb_block_content {
    kvb_engine_hash hash;
    const uint32_t *tokens; /* block_size of them; NULL: none */
    const char *salt;       /* of the request; NULL: none */
};

/* When an engine began to hold a block content, and when it ceased to.  A test needs this to
 * compute for how long a list has been wrong.
 *
 *     numbers    ... 40    41    42    43          first kept = 40, next = 44
 *     changes      [ s ][  r  ][ s  ][ c  ]        a ring
 *     tokens       [ . ][     ][ .  ][    ]        block_size for each place
 *
 * Only transitions: a second copy is none, nor is its end.  When full the oldest are
 * forgotten; the numbers tell how many.  Time comes from the caller.
 *
 * Threads: the caller locks.
 * Memory:  40 + 4 * block_size bytes a change, all taken at the start. */

enum kvb_content_kind { KVB_CONTENT_STORED, KVB_CONTENT_REMOVED, KVB_CONTENT_CLEARED };

struct kvb_content_change {
    enum kvb_content_kind kind;
    uint64_t at_ns;
    kvb_engine_hash hash;   /* not of CLEARED: everything went */
    kvb_engine_hash parent; /* of STORED; itself: a root */
    const char *salt;       /* of STORED; borrowed; NULL: none */
};

struct kvb_content_log {
    struct kvb_content_change *changes; /* owned, like tokens */
    uint32_t *tokens;
    uint32_t capacity; /* 0: nothing is kept, changes are counted */
    uint32_t block_size;
    uint64_t next;   /* number of the next change */
    uint64_t now_ns; /* set by the caller before changes */
};

/* capacity may be 0.  log is {0} before, and may be given to _done after a failure.
 * KVB_NO_MEMORY */
kvb_status
kvb_content_log_init(struct kvb_content_log *log, uint32_t capacity, uint32_t block_size);
void kvb_content_log_done(struct kvb_content_log *log);

/* The content's tokens are copied. */
void kvb_content_log_stored(
    struct kvb_content_log *log, const struct kvb_block_content *content, kvb_engine_hash parent);
void kvb_content_log_removed(struct kvb_content_log *log, kvb_engine_hash hash);
void kvb_content_log_cleared(struct kvb_content_log *log);

/* The oldest number that is kept; next when none is. */
uint64_t kvb_content_log_first(const struct kvb_content_log *log);

/* Numbers first .. next - 1; borrowed until the next change. */
const struct kvb_content_change *
kvb_content_log_at(const struct kvb_content_log *log, uint64_t number);
const uint32_t *kvb_content_log_tokens(const struct kvb_content_log *log, uint64_t number);
