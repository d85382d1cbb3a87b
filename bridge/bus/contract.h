#pragma once

#include "bus/subject.h"

/* The subjects that programs publish on and subscribe to (proto/asyncapi.yaml).  The daemons and
 * `kvctl permissions` make their subjects from this table.
 *
 * Threads: any thread. */

enum kvb_contract_subject {
    KVB_SUBJECT_WORKERS,   /* P.*: all subjects of a component, for who reads along */
    KVB_SUBJECT_EVENTS,    /* JSON */
    KVB_SUBJECT_EVENTS_PB, /* protobuf */
    KVB_SUBJECT_WINDOW_EVENTS,
    KVB_SUBJECT_HEARTBEAT,
    KVB_SUBJECT_HEARTBEAT_JSON,
    KVB_SUBJECT_LOAD,
    KVB_SUBJECT_BRIDGE_STATUS,
    KVB_SUBJECT_BRIDGE_STREAMS, /* of bridges, for bridges */
    KVB_SUBJECT_SYNC,
    KVB_SUBJECT_REFRESH,
    KVB_SUBJECT_MATCH,
    KVB_SUBJECT_ROUTE,
    KVB_SUBJECT_GET,
    KVB_SUBJECT_MATCH_OF_ONE, /* requests to one aggregator, like the next two */
    KVB_SUBJECT_ROUTE_OF_ONE,
    KVB_SUBJECT_GET_OF_ONE,
    KVB_SUBJECT_FINISHED,
    KVB_SUBJECT_FIRST_TOKEN,
    KVB_SUBJECT_ROUTED,
    KVB_SUBJECT_AGGREGATOR_STATUS,
    KVB_SUBJECT_LOAD_STATS,
    KVB_SUBJECT_HIT_RATE,
    KVB_SUBJECT_HIT_RATE_ALIAS,
    KVB_SUBJECT_ECHO,    /* an aggregator's messages to itself */
    KVB_SUBJECT_ANSWERS, /* answers to an aggregator's requests */
    KVB_SUBJECT_INBOXES, /* answers to requests of any NATS client */
    KVB_SUBJECT_SERVICES,
    KVB_SUBJECT_SERVICE_KIND,
    KVB_SUBJECT_SERVICE_ONE,
    KVB_SUBJECT_COUNT
};

/* The default prefix of reply subjects. */
#define KVB_INBOX_PREFIX "_INBOX"

enum { kvb_subject_service_bytes = (2 * kvb_name_bytes) + 2 };

/* Values of the variables in subjects.  All pointers are borrowed; NULL for a variable that the
 * subject does not have.  "*" is a valid value of each. */
struct kvb_subject_names {
    const char *workers_namespace; /* P */
    const char *workers_component;
    const char *router_namespace; /* R */
    const char *router_component;
    const char *inbox_prefix;                /* "_INBOX" */
    const char *inbox;                       /* this process's inbox, without the prefix */
    const char *id;                          /* of the micro-service */
    char service[kvb_subject_service_bytes]; /* name of the micro-service */
};

/* Writes the subject into out (kvb_subject_bytes).  KVB_BAD_INPUT: a name is not valid or missing,
 * or the subject does not fit. */
kvb_status kvb_contract_subject_make(
    enum kvb_contract_subject subject, const struct kvb_subject_names *names, char *out);
