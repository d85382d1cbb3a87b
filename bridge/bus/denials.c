#include "bus/denials.h"

#include "core/clock.h"
#include "core/own.h"

#include <stdio.h>
#include <string.h>

static const uint64_t forget_ns = kvb_denial_forget_ms * KVB_NS_PER_MS;

/* The subject stands in quotes after one of these phrases. */
static bool read_denial(const char *text, struct kvb_denial *out)
{
    static const struct {
        const char *words;
        bool is_publish;
    } forms[] = { { "for Publish to \"", true }, { "for Subscription to \"", false } };

    for (size_t i = 0; i < KVB_COUNT_OF(forms); i++) {
        const char *at = strstr(text, forms[i].words);
        if (at) {
            at += strlen(forms[i].words);
            out->is_publish = forms[i].is_publish;
            (void)snprintf(/* cuts a longer subject */
                           out->subject, sizeof out->subject, "%.*s", (int)strcspn(at, "\""), at);
            return true;
        }
    }
    return false;
}

static bool is_expired(const struct kvb_denial *denial, uint64_t now_ns)
{
    /* A server denies a subscription once, and then for as long as the connection lasts. */
    return denial->is_publish && now_ns - denial->seen_ns >= forget_ns;
}

/* The entry of this denial, or else a free one; NULL: the table is full. */
static struct kvb_denial *
find_denial(struct kvb_denials *denials, const struct kvb_denial *denial, bool *out_is_known)
{
    struct kvb_denial *place = NULL;

    *out_is_known = false;
    for (size_t i = 0; i < denials->count; i++) {
        struct kvb_denial *item = &denials->items[i];
        if (item->is_publish == denial->is_publish && strcmp(item->subject, denial->subject) == 0) {
            *out_is_known = true;
            return item;
        }
        /* Only kept in mind: the entry of this denial may still follow. */
        place = !place && is_expired(item, denial->seen_ns) ? item : place;
    }
    if (!place && denials->count < kvb_denials_kept) {
        place = &denials->items[denials->count++];
    }
    return place;
}

enum kvb_denial_update
kvb_denials_note(struct kvb_denials *denials, const char *text, uint64_t now_ns)
{
    struct kvb_denial denial = { .seen_ns = now_ns };
    bool is_known = false;

    if (!read_denial(text, &denial)) {
        return KVB_DENIAL_KNOWN;
    }
    /* Counted in any case, whether or not there is room to keep it. */
    denials->publishes += denial.is_publish;
    denials->subscriptions += !denial.is_publish;
    /* Requesters choose reply subjects: one place for all, or they would fill the table. */
    if (denial.is_publish && !kvb_subject_is_of_contract(denial.subject)) {
        denials->other = denial;
        return KVB_DENIAL_ELSEWHERE;
    }
    struct kvb_denial *place = find_denial(denials, &denial, &is_known);
    if (place) {
        *place = denial;
    }
    return place && !is_known ? KVB_DENIAL_NEW : KVB_DENIAL_KNOWN;
}

const struct kvb_denial *kvb_denials_find(
    const struct kvb_denials *denials, uint64_t now_ns, kvb_denial_is_vital is_vital,
    const void *context)
{
    for (size_t i = 0; i < denials->count; i++) {
        const struct kvb_denial *item = &denials->items[i];
        if (!is_expired(item, now_ns) && is_vital(context, item)) {
            return item;
        }
    }
    const struct kvb_denial *other = &denials->other;
    return other->subject[0] && !is_expired(other, now_ns) && is_vital(context, other) ? other
                                                                                       : NULL;
}

void kvb_denial_explain(const struct kvb_denial *denial, struct kvb_detail *out_why)
{
    kvb_detail_set(
        out_why, "no permission to %s %s: look at the permissions of this user in nats-server",
        denial->is_publish ? "publish on" : "subscribe to", denial->subject);
}
