#pragma once

#include "core/status.h"
#include "model/labels.h"

#include <stdbool.h>
#include <stdint.h>

/* What routers know of a worker beside its blocks.  Each of these may change while the worker runs:
 * its stream and its sockets stay, and the next heartbeat says it.
 *
 *     address   the URL that a router dials, byte for byte as it was configured
 *     role      which part of a request it takes, where prefill and decode are apart
 *     pod ...   where it runs on Kubernetes
 *     labels    names and values of the operator's own, by which requests select workers
 *
 * Role and address were labels once, and may still be given so: kvb_worker_facts_settle() fills the
 * fields from them.  The fields are what is compared and shown.
 *
 * Threads: plain data.  Memory: in place; {0}: nothing is known. */

enum {
    kvb_worker_address_bytes = 255,
    kvb_pod_name_bytes = 253,     /* of Kubernetes, as RFC 1123 has it; a node's is like it */
    kvb_pod_namespace_bytes = 63, /* of Kubernetes too */
    kvb_pod_uid_bytes = 63        /* a UUID, or what made a static pod */
};

enum kvb_worker_role {
    KVB_ROLE_NONE, /* not known: where prefill and decode are not apart */
    KVB_ROLE_PREFILL,
    KVB_ROLE_DECODE,
    KVB_ROLE_BOTH, /* either is selected by it */
    KVB_ROLE_COUNT
};

/* What Kubernetes says of a pod: its readiness probes pass. */
enum kvb_worker_ready { KVB_READY_UNKNOWN, KVB_READY_NO, KVB_READY_YES, KVB_READY_COUNT };

struct kvb_worker_facts {
    char address[kvb_worker_address_bytes + 1]; /* "": not known, like the names below */
    char pod[kvb_pod_name_bytes + 1];
    char pod_namespace[kvb_pod_namespace_bytes + 1];
    char node[kvb_pod_name_bytes + 1];
    enum kvb_worker_role role;
    enum kvb_worker_ready ready;
    bool is_draining;  /* takes no new requests; what it holds is still listed */
    uint64_t restarts; /* of its pod's containers, in all: known to its bridge alone */
    struct kvb_labels labels;
};

/* "prefill", ...; "" for none.  Never NULL. */
const char *kvb_worker_role_name(enum kvb_worker_role role);

/* KVB_NOT_FOUND: it is no role. */
kvb_status kvb_worker_role_find(const char *name, enum kvb_worker_role *out_role);

/* Whether an address may be this text: at most kvb_worker_address_bytes of UTF-8 without control
 * characters.  "" may. */
bool kvb_worker_address_is_valid(const char *address);

/* Fills an address and a role that are not known from the labels of these names.  A label `role`
 * that is none of the known ones stays a label alone.
 * KVB_BAD_INPUT  a label says something else than its field, which stays; detail says which */
kvb_status kvb_worker_facts_settle(struct kvb_worker_facts *facts, struct kvb_detail *detail);

/* Whether a worker has all of the wanted labels; `role` and `address` among them mean these facts,
 * and a worker of role both has the roles prefill and decode, too. */
bool kvb_worker_facts_include(
    const struct kvb_worker_facts *facts, const struct kvb_labels *wanted);

/* Whether anything is known. */
bool kvb_worker_facts_are_known(const struct kvb_worker_facts *facts);

bool kvb_worker_facts_are_same(
    const struct kvb_worker_facts *one, const struct kvb_worker_facts *other);
