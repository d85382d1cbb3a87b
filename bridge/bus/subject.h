#pragma once

#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* Subjects of the contract: namespace.{namespace}.component.{component}.{tail}.
 * Threads: any thread. */

enum { kvb_subject_bytes = 256 };

/* [A-Za-z0-9_-]{1,64}; other bytes could inject commands into the NATS protocol. */
bool kvb_name_is_valid(const char *name);

/* Writes the subject into out (kvb_subject_bytes).  KVB_BAD_INPUT: a name is
 * not valid (namespace and component may be "*"). */
kvb_status
kvb_subject_make(char *out, const char *name_space, const char *component, const char *tail);

/* Takes a subject apart; *out_tail points into subject.
 * KVB_BAD_INPUT: not of that form. */
kvb_status kvb_subject_split(
    const char *subject, char out_namespace[kvb_name_bytes + 1],
    char out_component[kvb_name_bytes + 1], const char **out_tail);

/* Reads {worker_id}.{dp_rank} behind "{name}." in a subject of the contract, such as that of a
 * request on P.kv_sync.7.0.  KVB_BAD_INPUT: not of that form; nothing was written. */
kvb_status kvb_subject_read_stream(
    const char *subject, const char *name, uint64_t *out_worker_id, uint32_t *out_dp_rank);

/* True for a valid subject: non-empty tokens of printable ASCII between dots, at most
 * 1,023 bytes.  allow_wildcards: "*" as a token, ">" as the last one.  nats.c does not
 * check this. */
bool kvb_subject_is_valid(const char *subject, bool allow_wildcards);

/* True for subjects of the contract, which begin with `namespace`. */
bool kvb_subject_is_of_contract(const char *subject);

/* True for a reply subject that must not be answered.  The requester chooses the reply subject, but
 * the answer is published with the permissions of this program.
 *   with `namespace` at the start   of the contract: an unreadable message on it stops a Dynamo
 *                                   router for good
 *   with a dollar sign at the start commands of nats-server, JetStream and services: any message
 *                                   on $JS.API.STREAM.PURGE.x deletes messages of a stream */
bool kvb_reply_is_refused(const char *reply);

/* True when a matches every subject that b matches.  Both may have wildcards. */
bool kvb_subject_includes(const char *a, const char *b);
