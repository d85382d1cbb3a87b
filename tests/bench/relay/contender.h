#pragma once

#include "blaster.h"
#include "core/status.h"
#include "process.h"
#include "republished.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* One nats-server, and the relays that are compared on it, each with engines and a
 * subject of its own.  All of a comparison run at once and are measured in turn: the
 * others wait in poll(). */

struct stage_programs {
    const char *bridge; /* kvbridge */
    const char *python; /* NULL: the Python relay takes no part */
};

struct stage {
    void *zmq_context;
    unsigned ranks;            /* of a worker, whose engines have ports in a row; 0: one */
    struct nats_server server; /* its folder takes the relays' files and logs too */
    struct stage_programs programs;
};

/* Set by a signal handler: every wait then ends soon, with KVB_CLOSED. */
extern _Atomic bool stage_is_over;

/* Undone by stage_close(), which also takes {0}.  KVB_IO: no nats-server, for one */
kvb_status stage_open(const struct stage_programs *programs, struct stage *out_stage);
void stage_close(struct stage *stage);

enum contender_kind {
    contender_pass_through,
    contender_protobuf,  /* kvbridge */
    contender_json,      /* kvbridge */
    contender_republish, /* kvbridge, which republishes its first engine */
    contender_python,
    contender_kinds
};

/* "pass-through", "protobuf", ...; never NULL. */
const char *contender_name(enum contender_kind kind);

struct contender {
    enum contender_kind kind;
    pid_t pid;              /* 0: it does not run */
    struct engine *engines; /* owned */
    size_t engine_count;
    const struct script *script; /* what they send; borrowed, NULL before the first batch */
    char subject[128];
    char republished_events[64]; /* of contender_republish, like the next two */
    char republished_replay[64];
    struct republished republished; /* what is counted, in place of what arrives on NATS */
};

/* Starts it and returns when it has subscribed to each engine.  Each engine is a worker
 * of its own, or one of stage->ranks of a worker; engines is then a multiple of these.  KVB_IO,
 * KVB_AGAIN: it does not come up; KVB_NO_MEMORY, KVB_CLOSED */
kvb_status contender_start(
    const struct stage *stage, enum contender_kind kind, size_t engines,
    struct contender *out_contender);

/* {0} is fine. */
void contender_stop(struct contender *contender);

/* Processor time of its process so far; 0 when the process has ended. */
uint64_t contender_cpu_ns(const struct contender *contender);

/* Resident memory of its process; 0 when the process has ended. */
uint64_t contender_resident_bytes(const struct contender *contender);

/* Of its process; 0 when it is gone. */
size_t contender_open_files(const struct contender *contender);
