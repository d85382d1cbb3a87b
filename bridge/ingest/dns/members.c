#include "ingest/dns/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvb_dns_members_done(struct kvb_dns_members *members)
{
    free(members->items);
    *members = (struct kvb_dns_members){ 0 };
}

/* Memory doubles each time count reaches a power of two. */
static kvb_status make_dns_member_room(struct kvb_dns_members *members)
{
    const size_t count = members->count;

    if (count > 0 && (count & (count - 1)) != 0) {
        return KVB_OK;
    }
    struct kvb_dns_member *items =
        realloc(members->items, (count ? 2 * count : 1) * sizeof *members->items);
    if (!items) {
        return KVB_NO_MEMORY;
    }
    members->items = items;
    return KVB_OK;
}

kvb_status kvb_dns_members_add(struct kvb_dns_members *members, const char *host)
{
    if (members->count == kvb_max_dns_members) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(make_dns_member_room(members));
    struct kvb_dns_member *member = &members->items[members->count++];
    *member = (struct kvb_dns_member){ .misses = 0 };
    (void)snprintf(member->host, sizeof member->host, "%s", host);
    return KVB_OK;
}

static int compare_members(const void *one, const void *other)
{
    const struct kvb_dns_member *a = one;
    const struct kvb_dns_member *b = other;

    return strcmp(a->host, b->host);
}

/* The merged list: listed members, and absent ones that stay for now. */
struct merge {
    struct kvb_dns_members to;
    bool has_changed;
};

static kvb_status keep_missed(struct merge *merge, const struct kvb_dns_member *member)
{
    /* Gone by being left out of the merged list. */
    if (member->misses + 1 >= kvb_dns_misses) {
        merge->has_changed = true;
        return KVB_OK;
    }
    const kvb_status status = kvb_dns_members_add(&merge->to, member->host);
    if (status == KVB_OK) {
        merge->to.items[merge->to.count - 1].misses = member->misses + 1;
    }
    return status;
}

static kvb_status keep_listed(struct merge *merge, const struct kvb_dns_member *found, bool is_new)
{
    /* Added anew, with no misses.  One that has no room is no change. */
    KVB_TRY(kvb_dns_members_add(&merge->to, found->host));
    merge->has_changed |= is_new;
    return KVB_OK;
}

/* Order of the next member of each list; the end of a list sorts last. */
static int compare_next(
    const struct kvb_dns_members *known, size_t old, const struct kvb_dns_members *found, size_t at)
{
    if (old == known->count || at == found->count) {
        return old == known->count ? -1 : 1;
    }
    return compare_members(&found->items[at], &known->items[old]);
}

static kvb_status merge_members(
    struct merge *merge, const struct kvb_dns_members *known, const struct kvb_dns_members *found)
{
    size_t at = 0;

    for (size_t old = 0; at < found->count || old < known->count;) {
        /* Both lists are sorted: each step takes the smaller head, or both when they are equal. */
        const int order = compare_next(known, old, found, at);
        const kvb_status status = order > 0 ? keep_missed(merge, &known->items[old])
                                            : keep_listed(merge, &found->items[at], order < 0);
        old += order >= 0;
        at += order <= 0;
        /* Beyond the limit members are left out; that must not undo the rest of the answer. */
        if (status != KVB_OK && status != KVB_TOO_LARGE) {
            return status;
        }
    }
    return KVB_OK;
}

static void sort_found(struct kvb_dns_members *found)
{
    size_t count = 0;

    if (found->count > 0) {
        qsort(found->items, found->count, sizeof *found->items, compare_members);
    }
    for (size_t i = 0; i < found->count; i++) {
        if (count == 0 || compare_members(&found->items[count - 1], &found->items[i]) != 0) {
            found->items[count++] = found->items[i];
        }
    }
    found->count = count;
}

kvb_status kvb_dns_members_answered(
    struct kvb_dns_members *members, struct kvb_dns_members *found, bool *out_has_changed)
{
    struct merge merge = { .has_changed = false };

    sort_found(found);
    const kvb_status status = merge_members(&merge, members, found);
    if (status != KVB_OK) {
        kvb_dns_members_done(&merge.to);
        return status;
    }
    /* Only now: a failure leaves the list as it was. */
    kvb_dns_members_done(members);
    *members = merge.to;
    *out_has_changed = merge.has_changed;
    return KVB_OK;
}
