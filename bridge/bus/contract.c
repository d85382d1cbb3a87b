#include "bus/contract.h"

#include "core/own.h"

#include <string.h>

/* P and R stand for namespace.{namespace}.component.{component}: P with the names of the workers,
 * R with those of the router.  A request on kv_sync has a worker and a rank instead
 * of the stars.
 */
/* clang-format off */
static const char *const forms[KVB_SUBJECT_COUNT] = {
    [KVB_SUBJECT_WORKERS]           = "P.*",
    [KVB_SUBJECT_EVENTS]            = "P.kv_events",
    [KVB_SUBJECT_EVENTS_PB]         = "P.kv_events_pb",
    [KVB_SUBJECT_WINDOW_EVENTS]     = "P.kv_window_events",
    [KVB_SUBJECT_HEARTBEAT]         = "P.kv_heartbeat",
    [KVB_SUBJECT_HEARTBEAT_JSON]    = "P.kv_heartbeat_json",
    [KVB_SUBJECT_LOAD]              = "P.load_metrics",
    [KVB_SUBJECT_BRIDGE_STATUS]     = "P.bridge_status",
    [KVB_SUBJECT_BRIDGE_STREAMS]    = "P.bridge_streams",
    [KVB_SUBJECT_SYNC]              = "P.kv_sync.*.*",
    [KVB_SUBJECT_REFRESH]           = "P.kv_refresh",
    [KVB_SUBJECT_MATCH]             = "R.kv_match",
    [KVB_SUBJECT_ROUTE]             = "R.kv_route",
    [KVB_SUBJECT_GET]               = "R.kv_get.*",
    [KVB_SUBJECT_MATCH_OF_ONE]      = "R.kv_match.{id}",
    [KVB_SUBJECT_ROUTE_OF_ONE]      = "R.kv_route.{id}",
    [KVB_SUBJECT_GET_OF_ONE]        = "R.kv_get.*.{id}",
    [KVB_SUBJECT_FINISHED]          = "R.kv_finished",
    [KVB_SUBJECT_FIRST_TOKEN]       = "R.kv_first_token",
    [KVB_SUBJECT_ROUTED]            = "R.kv_routed",
    [KVB_SUBJECT_AGGREGATOR_STATUS] = "R.aggregator_status",
    [KVB_SUBJECT_LOAD_STATS]        = "R.load_stats",
    [KVB_SUBJECT_HIT_RATE]          = "R.kv-hit-rate",
    [KVB_SUBJECT_HIT_RATE_ALIAS]    = "namespace.{router}.kv-hit-rate",
    [KVB_SUBJECT_ECHO]              = "{prefix}.{inbox}.echo.0",
    [KVB_SUBJECT_ANSWERS]           = "{prefix}.{inbox}.*",
    [KVB_SUBJECT_INBOXES]           = "{prefix}.>",
    [KVB_SUBJECT_SERVICES]          = "$SRV.*",
    [KVB_SUBJECT_SERVICE_KIND]      = "$SRV.*.{service}",
    [KVB_SUBJECT_SERVICE_ONE]       = "$SRV.*.{service}.{id}",
};
/* clang-format on */

static bool has_component(const char *form)
{
    return (form[0] == 'P' || form[0] == 'R') && form[1] == '.';
}

/* The value of a variable; NULL: there is no such variable, or it has no value. */
static const char *find_value(const struct kvb_subject_names *names, const char *name, size_t len)
{
    const struct {
        const char *name;
        const char *value;
    } variables[] = {
        { "router", names->router_namespace },
        { "prefix", names->inbox_prefix },
        { "inbox", names->inbox },
        { "service", names->service },
        { "id", names->id },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(variables); i++) {
        if (strlen(variables[i].name) == len && strncmp(variables[i].name, name, len) == 0) {
            return variables[i].value;
        }
    }
    return NULL;
}

static kvb_status append_to_subject(char *out, size_t *len, const char *text, size_t text_len)
{
    /* One byte stays free for the NUL; so *len is below the size, and nothing wraps. */
    if (text_len >= kvb_subject_bytes - *len) {
        return KVB_BAD_INPUT;
    }
    memcpy(out + *len, text, text_len);
    *len += text_len;
    out[*len] = '\0';
    return KVB_OK;
}

/* Copies a form, and replaces its variables by their values. */
static kvb_status fill_form(const char *form, const struct kvb_subject_names *names, char *out)
{
    size_t len = 0;

    while (*form) {
        const size_t plain = strcspn(form, "{");
        KVB_TRY(append_to_subject(out, &len, form, plain));
        form += plain;
        if (*form) {
            const size_t name = strcspn(form + 1, "}");
            const char *value = find_value(names, form + 1, name);
            if (!value) {
                return KVB_BAD_INPUT;
            }
            KVB_TRY(append_to_subject(out, &len, value, strlen(value)));
            form += name + 2;
        }
    }
    return KVB_OK;
}

static kvb_status
add_component(const char *form, const char *tail, const struct kvb_subject_names *names, char *out)
{
    const bool is_router = form[0] == 'R';
    const char *name_space = is_router ? names->router_namespace : names->workers_namespace;
    const char *component = is_router ? names->router_component : names->workers_component;

    /* kvb_subject_make() checks the names and the tail; a value may have several tokens. */
    return name_space && component ? kvb_subject_make(out, name_space, component, tail)
                                   : KVB_BAD_INPUT;
}

kvb_status kvb_contract_subject_make(
    enum kvb_contract_subject subject, const struct kvb_subject_names *names, char *out)
{
    const char *form = forms[subject];
    char filled[kvb_subject_bytes] = "";

    KVB_TRY(fill_form(has_component(form) ? form + 2 : form, names, filled));
    if (has_component(form)) {
        return add_component(form, filled, names, out);
    }
    /* Nobody has checked a form without a component yet. */
    if (!kvb_subject_is_valid(filled, true)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, filled, sizeof filled);
    return KVB_OK;
}
