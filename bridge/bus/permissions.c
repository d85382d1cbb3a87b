#include "bus/permissions.h"

#include "core/own.h"

#include <string.h>

enum direction { publishes, subscribes };

/* One row for each use of a subject. */
struct subject_use {
    enum kvb_client_role role;
    enum direction direction;
    enum kvb_contract_subject subject;
    unsigned used_if;  /* at least one of these settings is on */
    unsigned vital_if; /* the same; 0: never vital */
};

#define BRIDGE KVB_CLIENT_BRIDGE
#define AGGREGATOR KVB_CLIENT_AGGREGATOR
#define ROUTER KVB_CLIENT_ROUTER
#define READER KVB_CLIENT_READER
#define OPERATOR KVB_CLIENT_OPERATOR
#define ALWAYS KVB_SETTING_ALWAYS

/* Which uses are vital.  A bridge must be able to publish.  It must receive requests for lists only
 * when it publishes protobuf, because only readers of protobuf send them.  An aggregator needs
 * events to have an index.  To repair gaps it must send requests to bridges, and receive the
 * answers in its inbox; its echo tests the inbox.  Queries over NATS are not vital, because HTTP
 * answers them, too.  Statistics are not vital. */
/* clang-format off */
static const struct subject_use uses[] = {
    { BRIDGE, publishes,  KVB_SUBJECT_EVENTS,         KVB_SETTING_JSON, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_EVENTS_PB,      KVB_SETTING_PROTOBUF, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_WINDOW_EVENTS,  KVB_SETTING_JSON, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_HEARTBEAT,      ALWAYS, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_HEARTBEAT_JSON, ALWAYS, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_LOAD,           ALWAYS, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_BRIDGE_STATUS,  ALWAYS, ALWAYS },
    { BRIDGE, publishes,  KVB_SUBJECT_BRIDGE_STREAMS, ALWAYS, 0 },
    { BRIDGE, subscribes, KVB_SUBJECT_BRIDGE_STREAMS, ALWAYS, 0 },
    { BRIDGE, subscribes, KVB_SUBJECT_SYNC,           ALWAYS, KVB_SETTING_PROTOBUF },
    { BRIDGE, subscribes, KVB_SUBJECT_REFRESH,        ALWAYS, 0 },
    { BRIDGE, subscribes, KVB_SUBJECT_SERVICES,       ALWAYS, 0 },
    { BRIDGE, subscribes, KVB_SUBJECT_SERVICE_KIND,   ALWAYS, 0 },
    { BRIDGE, subscribes, KVB_SUBJECT_SERVICE_ONE,    ALWAYS, 0 },

    { AGGREGATOR, publishes,  KVB_SUBJECT_SYNC,              ALWAYS, ALWAYS },
    { AGGREGATOR, publishes,  KVB_SUBJECT_ECHO,              ALWAYS, ALWAYS },
    { AGGREGATOR, publishes,  KVB_SUBJECT_ROUTED,            ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_AGGREGATOR_STATUS, ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_FINISHED,          ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_FIRST_TOKEN,       ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_LOAD_STATS,        ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_HIT_RATE,          ALWAYS, 0 },
    { AGGREGATOR, publishes,  KVB_SUBJECT_HIT_RATE_ALIAS,    KVB_SETTING_HIT_RATE_ALIAS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_EVENTS,            ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_EVENTS_PB,         ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_WINDOW_EVENTS,     ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_HEARTBEAT,         ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_LOAD,              ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_ECHO,              ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_ANSWERS,           ALWAYS, ALWAYS },
    { AGGREGATOR, subscribes, KVB_SUBJECT_MATCH,             ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_ROUTE,             ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_GET,               ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_MATCH_OF_ONE,      ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_ROUTE_OF_ONE,      ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_GET_OF_ONE,        ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_ROUTED,            ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_AGGREGATOR_STATUS, ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_FINISHED,          ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_FIRST_TOKEN,       ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_SERVICES,          ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_SERVICE_KIND,      ALWAYS, 0 },
    { AGGREGATOR, subscribes, KVB_SUBJECT_SERVICE_ONE,       ALWAYS, 0 },

    { ROUTER, publishes,  KVB_SUBJECT_MATCH,        ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_ROUTE,        ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_GET,          ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_MATCH_OF_ONE, ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_ROUTE_OF_ONE, ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_GET_OF_ONE,   ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_FINISHED,     ALWAYS, 0 },
    { ROUTER, publishes,  KVB_SUBJECT_FIRST_TOKEN,  ALWAYS, 0 },
    { ROUTER, subscribes, KVB_SUBJECT_INBOXES,      ALWAYS, 0 },

    /* One subscription for events and heartbeats: NATS keeps the order within a subscription. */
    { READER, subscribes, KVB_SUBJECT_WORKERS, ALWAYS, 0 },

    { OPERATOR, publishes,  KVB_SUBJECT_MATCH,        ALWAYS, 0 },
    { OPERATOR, publishes,  KVB_SUBJECT_GET,          ALWAYS, 0 },
    { OPERATOR, publishes,  KVB_SUBJECT_MATCH_OF_ONE, ALWAYS, 0 },
    { OPERATOR, publishes,  KVB_SUBJECT_GET_OF_ONE,   ALWAYS, 0 },
    { OPERATOR, subscribes, KVB_SUBJECT_WORKERS,      ALWAYS, 0 },
    { OPERATOR, subscribes, KVB_SUBJECT_INBOXES,      ALWAYS, 0 },
};
/* clang-format on */

#undef BRIDGE
#undef AGGREGATOR
#undef ROUTER
#undef READER
#undef OPERATOR
#undef ALWAYS

static kvb_status add_permission(
    struct kvb_permissions *permissions, const struct subject_use *use,
    const struct kvb_subject_names *names, unsigned settings)
{
    struct kvb_permission permission = { .is_publish = use->direction == publishes,
                                         .is_vital = (use->vital_if & settings) != 0 };

    KVB_TRY(kvb_contract_subject_make(use->subject, names, permission.subject));
    if (permissions->count == kvb_max_permissions) {
        return KVB_TOO_LARGE; /* the table above has more rows than the list has places */
    }
    permissions->items[permissions->count++] = permission;
    return KVB_OK;
}

kvb_status kvb_permissions_make(
    enum kvb_client_role role, const struct kvb_subject_names *names, unsigned settings,
    struct kvb_permissions *out)
{
    settings |= KVB_SETTING_ALWAYS;
    *out = (struct kvb_permissions){
        .answers_requests = role == KVB_CLIENT_BRIDGE || role == KVB_CLIENT_AGGREGATOR,
    };
    for (size_t i = 0; i < KVB_COUNT_OF(uses); i++) {
        if (uses[i].role == role && (uses[i].used_if & settings) != 0) {
            KVB_TRY(add_permission(out, &uses[i], names, settings));
        }
    }
    return KVB_OK;
}

/* True when the denial is about this permission.  The server names a denied subscription by the
 * subject subscribed to, which is compared as text.  A denied publish is compared with wildcards:
 * the permission P.kv_sync.*.* covers publishes that name a worker and a rank. */
static bool is_of_permission(const struct kvb_permission *item, const struct kvb_denial *denial)
{
    return denial->is_publish ? kvb_subject_includes(item->subject, denial->subject)
                              : strcmp(item->subject, denial->subject) == 0;
}

bool kvb_permissions_is_vital(
    const struct kvb_permissions *permissions, const struct kvb_denial *denial)
{
    for (size_t i = 0; i < permissions->count; i++) {
        const struct kvb_permission *item = &permissions->items[i];
        /* A denial outside these rows, or of one that is not vital, changes nothing. */
        if (item->is_vital && item->is_publish == denial->is_publish &&
            is_of_permission(item, denial)) {
            return true;
        }
    }
    return false;
}
