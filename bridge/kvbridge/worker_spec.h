#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/event_server.h"
#include "ingest/zmq/frames.h"
#include "model/stream.h"
#include "model/tier.h"
#include "model/worker_facts.h"
#include "wire/engine/answers.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a worker is, whichever source names it: the file, a registration, a pod, a DNS name.
 *
 *     identity   ids, addresses, how the engine is read     another value makes another worker
 *     facts      what routers are told beside the blocks    may change while its streams stay open
 *
 * One engine with a PUB socket for each of the ranks first_rank .. first_rank + ranks - 1.  Its
 * parts are what a bridge opens:
 *
 *     { id = 7; events = tcp://h:5557; ranks = 2; load = { zmq = ... } }
 *          |
 *          +-> parts   7/0 tcp://h:5557,  7/1 tcp://h:5558,  7 load
 *
 * A source fills in a spec that borrows its texts from what it has read.  kvb_worker_spec_new()
 * copies it, with all texts, into one allocation.  Such a spec is constant; lists, ranks and
 * threads share it by references.
 *
 * Threads: plain data; references are counted by any thread.
 * Memory:  360 bytes and the texts; a part 112 bytes, and the addresses that its worker does not
 *          have. */

/* What readers of republished events take:
 *
 *     style     events    who asks from number 0    who subscribes
 *     ------    ------    ----------------------    --------------
 *     vllm      maps      an announcement to all    the same
 *     aibrix    arrays    the same                  the same
 *     dynamo    maps      a snapshot, to it alone   nothing */
enum kvb_republish_style {
    KVB_REPUBLISH_VLLM,
    KVB_REPUBLISH_AIBRIX,
    KVB_REPUBLISH_DYNAMO,
    KVB_REPUBLISH_STYLE_COUNT
};

/* struct kvb_worker_facts as it is kept for thousands of workers. */
struct kvb_spec_facts {
    const char *address; /* "": not known, like the texts below */
    const char *tokenize;
    const char *pod;
    const char *pod_namespace;
    const char *node;
    kvb_span labels; /* the text of struct kvb_labels */
    uint16_t label_count;
    enum kvb_worker_role role;
    enum kvb_worker_ready ready;
    bool is_draining;
    uint64_t restarts;
    enum kvb_speculation speculation_of_arguments;
};

/* `discover` and `tokenize`, where they mean the worker's `address`. */
#define KVB_AT_ADDRESS "address"

/* Texts are borrowed until kvb_worker_spec_new() copies them; "": not given. */
struct kvb_worker_spec {
    atomic_uint references; /* of a copy by kvb_worker_spec_new(); else 0 */

    /* Who it is. */
    uint64_t id;         /* 0 .. 2^63-1, the id in published messages; not with ids */
    const uint64_t *ids; /* one for each rank, for routers that do not know ranks */
    size_t id_count;     /* 0, or `ranks` */
    const char *pod_uid; /* a different one makes a different worker; "": not a pod */

    /* Where it is. */
    const char *discover; /* HTTP URL of the engine, which gives the addresses */
    const char *discover_token_file;
    const char *events; /* base addresses: see kvb_endpoint_for_rank() */
    const char *replay; /* "": the engine has no replay endpoint */
    const char *topic;  /* prefix */
    uint32_t first_rank;
    uint32_t ranks;
    bool bind;              /* bind the SUB socket: the engine connects */
    bool has_own_addresses; /* those of its one rank: no rank is added to the ports */

    /* How it is read. */
    const char *model;
    const char *lora;    /* for events that name none; "": base model */
    uint32_t block_size; /* tokens */
    enum kvb_hashes hashes;
    bool store; /* it is configured as a store that all workers share, not as an engine; its events
                   can show it too */
    bool has_salts;        /* requests may have salts, adapters or images that events do not name */
    bool is_sglang_hybrid; /* SGLang publishes nothing of its sliding-window or Mamba pool */
    enum kvb_tier unknown_medium; /* the tier of blocks with an unknown medium */
    enum kvb_offload_removals offload_removals;
    uint32_t speculative_drop;        /* blocks, or KVB_DROP_DETECT; see kvb_stream_options */
    uint32_t speculative_drop_groups; /* bit set of cache groups */
    uint32_t attention_chunk;         /* tokens; 0: not known */
    uint32_t offload_chunk_blocks;    /* see kvb_mirror_options; 0: as the events show */
    uint64_t total_blocks;            /* device blocks of a rank; 0: not known */

    /* Its events once more, repaired, for routers that read engines themselves. */
    struct {
        const char *events; /* of rank 0; "": off */
        const char *replay; /* the same; "": none */
        const char *topic;
        enum kvb_republish_style style;
    } republish;
    struct {
        const char *zmq;         /* "": none */
        const char *prometheus;  /* http://host:port/metrics; "": none */
        const char *coordinator; /* one for all ranks, also those of other bridges; "": none */
        uint32_t scrape_ms;
        uint64_t total_slots; /* if the engine does not say; 0: not known */
    } load;

    struct kvb_spec_facts facts;

    /* How its source came to it. */
    const char *model_rule;     /* of a pod: see kvb_pod; "": configured */
    bool is_id_made;            /* computed from the address, not configured */
    bool has_foreign_addresses; /* of a registration, not of the operator: no metadata address is
                                   connected to */
};

/* Every text is "". */
void kvb_worker_spec_init(struct kvb_worker_spec *spec);

/* Copies the spec and what it borrows; the caller owns one reference.  KVB_NO_MEMORY */
kvb_status
kvb_worker_spec_new(const struct kvb_worker_spec *spec, struct kvb_worker_spec **out_spec);
struct kvb_worker_spec *kvb_worker_spec_ref(struct kvb_worker_spec *spec);
/* NULL is fine. */
void kvb_worker_spec_unref(struct kvb_worker_spec *spec);

/* ---- Facts ---- */

/* Borrows from `facts`. */
struct kvb_spec_facts kvb_spec_facts_of(const struct kvb_worker_facts *facts);
/* speculation_of_server stays unknown: the engine's own answer has it. */
void kvb_spec_facts_expand(const struct kvb_spec_facts *facts, struct kvb_worker_facts *out);
bool kvb_spec_facts_are_same(const struct kvb_spec_facts *one, const struct kvb_spec_facts *other);

/* ---- Identity ---- */

/* True: both are the same worker, even if its facts differ. */
bool kvb_worker_specs_are_same(
    const struct kvb_worker_spec *one, const struct kvb_worker_spec *other);

/* The id of a worker without a configured one: a hash of its first rank's address, or of the URL
 * if it is discovered.  It is below 2^53, so that readers which store numbers as doubles keep it.
 * An address that means this host, such as 127.0.0.1, gives another id on each host. */
uint64_t kvb_worker_id_of_address(const struct kvb_worker_spec *worker);

/* The published worker id of the rank with index `at`, 0 .. ranks - 1. */
uint64_t kvb_worker_id_of_rank(const struct kvb_worker_spec *worker, uint32_t at);

/* ---- What follows from it ---- */

/* Are its events republished? */
bool kvb_worker_is_republished(const struct kvb_worker_spec *worker);

/* How many load sources the worker has, and whether its list of models is read elsewhere; each
 * needs one connection. */
size_t kvb_worker_load_sources(const struct kvb_worker_spec *worker);

/* Where the engine lists the names that it serves: {discover}/v1/models, or the same beside a
 * metrics page whose path ends in /metrics.  "": not known.  out has kvb_max_page_url_bytes. */
void kvb_worker_models_url(const struct kvb_worker_spec *worker, char *out);

/* ---- Parts ---- */

enum kvb_part_kind { KVB_PART_RANK, KVB_PART_LOAD };

/* One rank of a worker, or its load sources.  Constant, and shared by references, like its worker.
 * A text is "", or borrowed from the worker, or stored behind this struct. */
struct kvb_part {
    atomic_uint references;
    enum kvb_part_kind kind;
    struct kvb_worker_spec *worker; /* a reference */
    uint64_t id;                    /* of a load: that of the worker's first rank */
    uint32_t dp_rank;               /* of a load: the first one of its worker */
    uint32_t ranks;                 /* 1; of a load: the ranks whose figures come by it */
    const char *events;
    const char *replay;
    const char *topic;
    const char *republish_events; /* "": off */
    const char *republish_replay;
    bool is_advertised; /* the engine has named the addresses: no metadata address is dialled */
    bool may_connect;   /* advertised: the engine may not listen at `events` */
    enum kvb_speculation speculation_of_server; /* by the engine's own answer to /server_info */
};

struct kvb_part *kvb_part_ref(struct kvb_part *part);
/* NULL is fine. */
void kvb_part_unref(struct kvb_part *part);

/* True: what is open can stay, even if facts differ.  Ranks: what other ranks or the load of their
 * worker have does not count. */
bool kvb_parts_are_same(const struct kvb_part *one, const struct kvb_part *other);
bool kvb_part_facts_are_same(const struct kvb_part *one, const struct kvb_part *other);

/* What heartbeats of the rank say. */
void kvb_part_facts(const struct kvb_part *part, struct kvb_worker_facts *out_facts);

/* Are its events republished? */
bool kvb_part_is_republished(const struct kvb_part *part);

/* The parts of one worker. */
struct kvb_parts {
    struct kvb_part **items; /* owned, with a reference to each */
    size_t count;
};

/* {0} is fine. */
void kvb_parts_done(struct kvb_parts *parts);

/* The parts that the spec itself gives; none of a worker that is discovered: its engine names them.
 * *out_parts must be {0}.  KVB_NO_MEMORY */
kvb_status kvb_parts_of_spec(struct kvb_worker_spec *worker, struct kvb_parts *out_parts);

/* The engine of a worker that is discovered names no addresses: those of the spec serve. */
kvb_status kvb_parts_of_own_addresses(
    struct kvb_worker_spec *worker, enum kvb_speculation speculation, struct kvb_parts *out_parts);

/* The ranks that the engine has named, then the load sources.  The engine may have bound an address
 * with a specific host, such as tcp://10.0.0.5:5557, or connect to it; the answer does not say
 * which.  may_connect marks such an address.
 * KVB_BAD_CONFIG  an address is invalid or cannot be reached from outside its process (inproc),
 *                 or an id is missing; detail says which
 * KVB_NO_MEMORY */
kvb_status kvb_parts_of_answer(
    struct kvb_worker_spec *worker, const struct kvb_event_sources *sources,
    enum kvb_speculation speculation, struct kvb_parts *out_parts, struct kvb_detail *detail);

/* The same parts of a worker that is the same but for its facts.  KVB_NO_MEMORY */
kvb_status kvb_parts_renew(
    const struct kvb_parts *parts, struct kvb_worker_spec *worker, struct kvb_parts *out_parts);
