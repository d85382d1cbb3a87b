#include "daemon/exact_share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kvb_exact_share_set(struct kvb_exact_share *share, uint32_t exact, uint32_t streams)
{
    atomic_store_explicit(&share->counts, (uint64_t)exact << 32U | streams, memory_order_relaxed);
}

void kvb_exact_share_get(
    const struct kvb_exact_share *share, uint32_t *out_exact, uint32_t *out_streams)
{
    const uint64_t counts = atomic_load_explicit(&share->counts, memory_order_relaxed);

    *out_exact = (uint32_t)(counts >> 32U);
    *out_streams = (uint32_t)counts;
}

/* ---- The parameter ---- */

enum parameter { parameter_absent, parameter_good, parameter_bad };

/* Accepts only digits and a point, because strtod() accepts infinity, too. */
static bool read_exact_share(const char *text, double *out_share)
{
    char *end = NULL;
    const double share = strtod(text, &end);

    if (text[0] == '\0' || text[strspn(text, "0123456789.")] != '\0' || *end != '\0' ||
        !(share >= 0 && share <= 1)) {
        return false;
    }
    *out_share = share;
    return true;
}

static enum parameter read_parameter(const char *query, double *out_share)
{
    char text[24];

    if (kvb_http_parameter(query, "exact", text, sizeof text)) {
        return read_exact_share(text, out_share) ? parameter_good : parameter_bad;
    }
    /* Too long, or without a value.  It must not be ignored: 200 would mean that the share is
     * reached. */
    return strncmp(query, "exact", 5) == 0 || strstr(query, "&exact") ? parameter_bad
                                                                      : parameter_absent;
}

static void
refuse_exact_share(struct kvb_http_answer *answer, unsigned status, const char *sentence)
{
    answer->status = status;
    answer->content_type = "text/plain; charset=utf-8";
    (void)kvb_buf_append_text(&answer->body, sentence); /* on failure the status is sent alone */
}

/* True: it is reached now, or was when it was asked for before. */
static bool is_reached(struct kvb_exact_share *share, double wanted, bool is_now)
{
    double kept = atomic_load(&share->kept);

    /* `kept` is 0 before the first yes, and a share of 0 is always reached. */
    if (share->keeps && wanted <= kept) {
        return true;
    }
    /* Two questions at the same time: the larger share is kept. */
    while (is_now && wanted > kept && !atomic_compare_exchange_weak(&share->kept, &kept, wanted)) {
    }
    return is_now;
}

bool kvb_exact_share_refuses(
    struct kvb_exact_share *share, const char *query, struct kvb_http_answer *answer)
{
    struct kvb_detail sentence;
    uint32_t exact = 0;
    uint32_t streams = 0;
    double wanted = 0;

    switch (read_parameter(query, &wanted)) {
    case parameter_absent:
        return false;
    case parameter_bad:
        refuse_exact_share(answer, 400, "exact: expected a share from 0 to 1, such as 0.95\n");
        return true;
    case parameter_good:
        break;
    }
    kvb_exact_share_get(share, &exact, &streams);
    if (is_reached(share, wanted, (double)exact >= wanted * (double)streams)) {
        return false;
    }
    /* There are streams here: without any, each share is reached. */
    kvb_detail_set(
        &sentence,
        "%" PRIu32 " of %" PRIu32 " streams are EXACT, a share of %.3f; %g is asked for\n", exact,
        streams, (double)exact / (double)streams, wanted);
    refuse_exact_share(answer, 503, sentence.text);
    return true;
}
