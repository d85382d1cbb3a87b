#pragma once

#include "bus/subject.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The permissions that a server denies.  The call that publishes without permission returns no
 * error.  The server drops the message, and later sends an error that names the subject:
 *
 *     PUB a 5 ...       -->   -ERR 'Permissions Violation for Publish to "a"'
 *     SUB b 1           -->   -ERR 'Permissions Violation for Subscription to "b"'
 *
 * A subscription is denied once, for as long as the connection lasts.  A publish is denied each
 * time; after kvb_denial_forget_ms without a denial it counts as permitted again.
 *
 * The sender of a request chooses the reply subject, so a denied reply does not mean that our own
 * permissions are wrong.  For publishes on subjects outside the contract, only the newest denial
 * is kept.
 *
 * Each connection has its own table, because permissions may differ.  All zeros: empty.
 *
 * Threads: the caller locks.  Times are of the monotonic clock, in ns. */
enum { kvb_denials_kept = 16, kvb_denial_forget_ms = 60000 };

struct kvb_denial {
    bool is_publish; /* else a subscription */
    uint64_t seen_ns;
    char subject[kvb_subject_bytes];
};

struct kvb_denials {
    struct kvb_denial items[kvb_denials_kept];
    size_t count;
    struct kvb_denial other; /* a publish outside the contract; subject "": none */
    uint64_t publishes;      /* denied so far */
    uint64_t subscriptions;  /* denied so far */
};

enum kvb_denial_update {
    KVB_DENIAL_KNOWN,    /* do not log: known, not a denial, or no free entry */
    KVB_DENIAL_NEW,      /* log it */
    KVB_DENIAL_ELSEWHERE /* log it with a rate limit: requesters choose these subjects */
};

/* Parses an error text of a server, and stores the denial. */
enum kvb_denial_update
kvb_denials_note(struct kvb_denials *denials, const char *text, uint64_t now_ns);

typedef bool (*kvb_denial_is_vital)(const void *context, const struct kvb_denial *denial);

/* The first denial for which is_vital returns true; NULL: none.  Borrowed. */
const struct kvb_denial *kvb_denials_find(
    const struct kvb_denials *denials, uint64_t now_ns, kvb_denial_is_vital is_vital,
    const void *context);

/* Describes the denial for people. */
void kvb_denial_explain(const struct kvb_denial *denial, struct kvb_detail *out_why);
