#pragma once

#include "bus/contract.h"
#include "bus/denials.h"

#include <stdbool.h>
#include <stddef.h>

/* What nats-server must permit a program: the subjects that it publishes on and subscribes to.
 * They follow from its configuration.  /readyz and `kvctl permissions` use the same lists.
 * Threads: any thread; plain data. */

enum kvb_client_role {
    KVB_CLIENT_BRIDGE,
    KVB_CLIENT_AGGREGATOR,
    KVB_CLIENT_ROUTER,   /* sends requests to aggregators */
    KVB_CLIENT_READER,   /* reads what bridges publish */
    KVB_CLIENT_OPERATOR, /* kvctl: reads, and asks aggregators and bridges, but routes nothing */
    KVB_CLIENT_COUNT
};

/* Settings that decide whether a subject is used and whether it is vital.  Bits of a mask. */
enum kvb_permission_setting {
    KVB_SETTING_ALWAYS = 1, /* set by kvb_permissions_make() */
    KVB_SETTING_JSON = 2,
    KVB_SETTING_PROTOBUF = 4,
    KVB_SETTING_HIT_RATE_ALIAS = 8
};

struct kvb_permission {
    bool is_publish; /* else a subscription */
    bool is_vital;   /* the program is not ready without it */
    char subject[kvb_subject_bytes];
};

enum { kvb_max_permissions = 32 };

struct kvb_permissions {
    size_t count;
    struct kvb_permission items[kvb_max_permissions];
    bool answers_requests; /* publishes on reply subjects that requesters choose */
};

/* How long after a request a program may publish answers to it.  The number of answers is not
 * limited, because each page of a list is a message. */
enum { kvb_permission_answer_s = 120 };

/* Writes the permissions that a program of this role needs.  settings: a mask of enum
 * kvb_permission_setting.  KVB_BAD_INPUT: a name is not valid or missing. */
kvb_status kvb_permissions_make(
    enum kvb_client_role role, const struct kvb_subject_names *names, unsigned settings,
    struct kvb_permissions *out);

/* True: the program cannot do its work while this is denied. */
bool kvb_permissions_is_vital(
    const struct kvb_permissions *permissions, const struct kvb_denial *denial);
