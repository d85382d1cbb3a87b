#pragma once

#include "core/status.h"
#include "model/labels.h"
#include "model/speculation.h"

#include <stdbool.h>
#include <stdint.h>

/* What routers know about a worker besides its blocks.  Each fact may change while the worker runs.
 * Its stream and sockets then stay, and the next heartbeat carries the new value.
 *
 *     address   the URL that a router dials, byte for byte as it was configured
 *     tokenize  the URL at which an aggregator asks the engine for the tokens of a text
 *     role      the part of a request that the worker computes: prefill, decode or both
 *     pod ...   where the worker runs on Kubernetes
 *     labels    names and values that the operator chooses; requests select workers by them
 *
 * Role and address may also be given as labels, as in early versions.  Then
 * kvb_worker_facts_settle() fills the fields from the labels.  Selection and answers use the
 * fields.
 *
 * Threads: plain data.  Memory: in place; {0}: nothing is known. */

enum {
    kvb_worker_address_bytes = 255,
    kvb_pod_name_bytes = 253,     /* Kubernetes' limit for pods and nodes (RFC 1123) */
    kvb_pod_namespace_bytes = 63, /* Kubernetes' limit for namespaces */
    kvb_model_rule_bytes = 159,   /* where a model comes from: a label's key and a word */
    kvb_pod_uid_bytes = 63        /* enough for a UUID, and for the id of a static pod */
};

enum kvb_worker_role {
    KVB_ROLE_NONE, /* not known, or prefill and decode are not separated */
    KVB_ROLE_PREFILL,
    KVB_ROLE_DECODE,
    KVB_ROLE_BOTH, /* requests for prefill and requests for decode select the worker */
    KVB_ROLE_COUNT
};

/* Whether the readiness probes of the worker's pod pass, as Kubernetes reports it. */
enum kvb_worker_ready { KVB_READY_UNKNOWN, KVB_READY_NO, KVB_READY_YES, KVB_READY_COUNT };

struct kvb_worker_facts {
    char address[kvb_worker_address_bytes + 1]; /* "": not known, like the texts below */
    char tokenize[kvb_worker_address_bytes + 1];
    char pod[kvb_pod_name_bytes + 1];
    char pod_namespace[kvb_pod_namespace_bytes + 1];
    char node[kvb_pod_name_bytes + 1];
    enum kvb_worker_role role;
    enum kvb_worker_ready ready;
    bool is_draining;  /* takes no new requests; its blocks stay listed */
    uint64_t restarts; /* of all containers of its pod; not in heartbeats, like the next two */
    enum kvb_speculation speculation_of_arguments; /* by its command line */
    enum kvb_speculation speculation_of_server;    /* by its own answer to /server_info */
    struct kvb_labels labels;
};

/* "prefill", ...; "" for none.  Never NULL. */
const char *kvb_worker_role_name(enum kvb_worker_role role);

/* KVB_NOT_FOUND: there is no such role. */
kvb_status kvb_worker_role_find(const char *name, enum kvb_worker_role *out_role);

/* Whether the text is "" or the begin of a URL to which a path such as /tokenize can be appended:
 * http:// or https://, a host, perhaps a port and a path, no slash at the end, no query, and no
 * user, because what a worker publishes is public.  At most kvb_worker_address_bytes. */
bool kvb_worker_tokenize_is_valid(const char *url);

/* Fills an unknown address or role from the label of that name.  A label `role` with an unknown
 * value does not change the field.
 * KVB_BAD_INPUT  a label differs from its field, which is unchanged; detail names it */
kvb_status kvb_worker_facts_settle(struct kvb_worker_facts *facts, struct kvb_detail *detail);

/* Whether a worker has all wanted labels.  The labels `role` and `address` mean the fields of that
 * name.  A worker with the role both also has the roles prefill and decode. */
bool kvb_worker_facts_include(
    const struct kvb_worker_facts *facts, const struct kvb_labels *wanted);

/* Whether any fact is known. */
bool kvb_worker_facts_are_known(const struct kvb_worker_facts *facts);

bool kvb_worker_facts_are_same(
    const struct kvb_worker_facts *one, const struct kvb_worker_facts *other);
