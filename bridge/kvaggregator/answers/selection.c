#include "kvaggregator/answers/selection.h"

#include <stdio.h>
#include <string.h>

/* ---- The filters, in the order in which errors count them ---- */

enum {
    filter_instance,
    filter_rank,
    filter_name,
    filter_labels,
    filter_candidates,
    filter_down,
    filter_draining,
    filter_count
};

static bool has_instance(const struct kvb_query *query, const struct kvb_follower *follower)
{
    return !query->has_instance_id || query->instance_id == follower->id.worker_id;
}

static bool has_rank(const struct kvb_query *query, const struct kvb_follower *follower)
{
    return !query->has_dp_rank || query->dp_rank == follower->id.dp_rank;
}

bool kvb_selection_serves(const struct kvb_query *query, const struct kvb_follower *follower)
{
    const struct kvb_served_names *names = &follower->heartbeat.names;
    enum kvb_served_kind kind = KVB_SERVED_NAME;

    return query->served_name[0] == '\0' || !kvb_served_names_are_all(names) ||
           kvb_served_names_find(names, kvb_span_of(query->served_name), &kind);
}

static bool has_labels(const struct kvb_query *query, const struct kvb_follower *follower)
{
    return kvb_worker_facts_include(&follower->heartbeat.facts, &query->selection.labels);
}

static bool is_candidate(const struct kvb_query *query, const struct kvb_follower *follower)
{
    return kvb_selection_has_candidate(
        &query->selection, follower->id.worker_id, follower->heartbeat.facts.address);
}

static bool is_not_down(const struct kvb_query *query, const struct kvb_follower *follower)
{
    (void)query;
    return follower->state != KVB_STREAM_DOWN;
}

static bool is_not_draining(const struct kvb_query *query, const struct kvb_follower *follower)
{
    (void)query;
    return !follower->heartbeat.facts.is_draining;
}

static const struct filter {
    bool (*allows)(const struct kvb_query *query, const struct kvb_follower *follower);
    const char *removed; /* the text in "2 DOWN" */
} filters[filter_count] = {
    [filter_instance] = { has_instance, "not instance_id" },
    [filter_rank] = { has_rank, "of another data_parallel_rank" },
    [filter_name] = { kvb_selection_serves, "that do not serve the name" },
    [filter_labels] = { has_labels, "without the role or labels" },
    [filter_candidates] = { is_candidate, "not among the candidates" },
    [filter_down] = { is_not_down, "DOWN" },
    [filter_draining] = { is_not_draining, "draining" },
};

bool kvb_selection_takes(const struct kvb_query *query, const struct kvb_follower *follower)
{
    return kvb_selection_serves(query, follower) && has_labels(query, follower) &&
           is_candidate(query, follower);
}

bool kvb_selection_takes_all(const struct kvb_query *query)
{
    const struct kvb_selection *selection = &query->selection;

    return query->served_name[0] == '\0' && selection->labels.count == 0 &&
           selection->worker_id_count == 0 && selection->address_count == 0;
}

/* ---- The policy ---- */

static kvb_status refuse_policy(const char *name, struct kvb_detail *detail)
{
    const char *instead = kvb_route_policy_instead(name);
    char names[192] = "";

    if (instead) {
        kvb_detail_set(detail, "policy: \"%s\" is gone: \"%s\" serves in its place", name, instead);
        return KVB_BAD_INPUT;
    }
    for (int i = 0; i < KVB_ROUTE_POLICY_COUNT; i++) {
        const size_t len = strlen(names);
        (void)snprintf(
            names + len, sizeof names - len, "%s%s", i > 0 ? ", " : "",
            kvb_route_policy_name((enum kvb_route_policy)i));
    }
    kvb_detail_set(detail, "policy: \"%s\" is unknown; there are %s", name, names);
    return KVB_BAD_INPUT;
}

kvb_status kvb_route_options_for(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_route_options *out_options, struct kvb_detail *detail)
{
    const char *name = query->selection.policy;
    struct kvb_route_options options = ctx->route;

    if (*name && kvb_route_policy_find(name, &options.policy) != KVB_OK) {
        return refuse_policy(name, detail);
    }
    *out_options = options;
    return KVB_OK;
}

/* ---- Why no worker is left ---- */

/* The next worker of the model, in any state; NULL: there are no more. */
static const struct kvb_follower *
next_of_model(const struct kvb_query_context *ctx, const char *model, size_t *at)
{
    while (*at < kvb_followers_limit(ctx->followers)) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, (*at)++);
        if (follower && !follower->heartbeat.is_store &&
            strcmp(kvb_query_context_model(ctx, follower), model) == 0) {
            return follower;
        }
    }
    return NULL;
}

/* KVB_NOT_FOUND: a label that no worker has. */
static kvb_status check_labels(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_detail *detail)
{
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(&query->selection.labels, &at, &label);) {
        const struct kvb_follower *follower = NULL;
        struct kvb_labels one = { 0 };
        size_t place = 0;

        /* One at a time, so that the answer names the one that is misspelled. */
        KVB_TRY(kvb_labels_add_pair(&one, label.pair, NULL));
        do {
            follower = next_of_model(ctx, model, &place);
        } while (follower && !kvb_worker_facts_include(&follower->heartbeat.facts, &one));
        if (!follower) {
            kvb_detail_set(detail, "no worker of the model has label %s", label.pair);
            return KVB_NOT_FOUND;
        }
    }
    return KVB_OK;
}

static kvb_status check_candidates(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_detail *detail)
{
    const struct kvb_selection *selection = &query->selection;
    const size_t count = selection->worker_id_count + selection->address_count;
    const struct kvb_follower *follower = NULL;
    size_t at = 0;

    while ((follower = next_of_model(ctx, model, &at))) {
        if (is_candidate(query, follower)) {
            return KVB_OK;
        }
    }
    if (count > 0) {
        kvb_detail_set(
            detail, "no worker of the model is among the %zu candidates, the first of which is %s",
            count, selection->first_candidate);
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

kvb_status kvb_route_explain_none(
    const struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_detail *detail)
{
    const struct kvb_follower *follower = NULL;
    size_t counts[filter_count] = { 0 };
    const char *model = NULL;
    char text[160] = "";
    size_t workers = 0;
    size_t at = 0;

    KVB_TRY(kvb_query_context_find_model(ctx, query, &model, detail));
    /* What nobody fits at all is the request's mistake, whoever is up now. */
    KVB_TRY(check_labels(ctx, query, model, detail));
    KVB_TRY(check_candidates(ctx, query, model, detail));
    /* Each worker counts at the first filter that does not allow it. */
    for (; (follower = next_of_model(ctx, model, &at)); workers++) {
        size_t filter = 0;
        while (filter < filter_count && filters[filter].allows(query, follower)) {
            filter++;
        }
        if (filter < filter_count) {
            counts[filter]++;
        }
    }
    for (size_t i = 0; i < filter_count; i++) {
        const size_t len = strlen(text);
        if (counts[i] > 0) {
            (void)snprintf(
                text + len, sizeof text - len, "%s%zu %s", len > 0 ? ", " : "", counts[i],
                filters[i].removed);
        }
    }
    /* All DOWN, or none left out at all, which is no worker at all. */
    if (counts[filter_down] == workers || *text == '\0') {
        kvb_detail_set(detail, "no worker of the model is up");
    } else {
        kvb_detail_set(detail, "no worker of the model is left: of %zu streams %s", workers, text);
    }
    return KVB_AGAIN;
}
