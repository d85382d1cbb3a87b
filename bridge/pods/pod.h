#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/labels.h"
#include "model/stream.h"
#include "model/worker_facts.h"

#include <stdint.h>

/* One pod of Kubernetes: the fields that a reader of its engine needs, and the rules that find them
 * in the pod object.
 *
 *     object of the API --kvb_pod_decode(rules)--> kvb_pod --kvb_pods_put()--> table (pods/table.h)
 *
 * Where a port number is taken from, in order of precedence:
 *
 *     1  a container port with the name kv-events, kv-replay, metrics, or else http
 *     2  the label or annotation that the preset names
 *     3  the number in the configuration, or else the default of the preset
 *
 * The model is taken from the label that the configuration names, the label that the preset names,
 * the engine's command line (pods/command.h), or the configured default, in this order.
 *
 * How the engine speculates is taken from vLLM's --speculative-config (-sc; as JSON or with dots),
 * --spec-method and --spec-model: facts.speculation_of_arguments.
 *
 * Source: the Kubernetes API, core/v1 Pod; the labels of AIBrix, llm-d and Dynamo's operator.
 * Pure.  Threads: plain data; decoding: any thread. */

/* Which labels and default ports hold the ports, model and role of a pod. */
enum kvb_pod_preset {
    KVB_POD_PRESET_PORTS, /* only container ports, and labels that the configuration names */
    KVB_POD_PRESET_AIBRIX,
    KVB_POD_PRESET_LLM_D,
    KVB_POD_PRESET_DYNAMO,
    KVB_POD_PRESET_COUNT
};

/* From what the id of a worker is made. */
enum kvb_pod_id_kind {
    KVB_POD_ID_OF_NAME,  /* kvb_pod_name_hash() of the pod's name */
    KVB_POD_ID_OF_UID,   /* kvb_pod_name_hash() of the pod's UID */
    KVB_POD_ID_OF_LABEL, /* the value of a label or annotation, a decimal number */
};

enum {
    kvb_pod_key_name_bytes = 127, /* the key of a label or an annotation */
    kvb_pod_ip_bytes = 45,        /* the longest IPv6 address */
    kvb_pod_version_bytes = 63    /* resourceVersion, an opaque string */
};

#define KVB_POD_PORT_OF_PRESET UINT32_MAX /* a macro, because an enum constant must fit an int */

struct kvb_pod_rules {
    enum kvb_pod_preset preset;
    enum kvb_pod_id_kind id_from;
    char id_label[kvb_pod_key_name_bytes + 1];    /* for KVB_POD_ID_OF_LABEL */
    char model_label[kvb_pod_key_name_bytes + 1]; /* "": the preset's; role_label too */
    char role_label[kvb_pod_key_name_bytes + 1];
    char model[kvb_model_bytes + 1]; /* default for pods that name none; "": no default */
    /* Defaults when neither container ports nor labels give a port; 0: no default. */
    uint32_t events_port;
    uint32_t replay_port;
    uint32_t metrics_port;
    uint32_t ranks;                /* default data-parallel ranks of a pod */
    struct kvb_label_names labels; /* which pod labels are published with the worker */
};

/* Whether a pod is a worker (taken), or why it is not. */
enum kvb_pod_state {
    KVB_POD_TAKEN,
    KVB_POD_PHASE,         /* its phase is not Running: it is pending, or has ended */
    KVB_POD_NO_IP,         /* it has no address yet */
    KVB_POD_NO_PORT,       /* no port of its events is known */
    KVB_POD_NO_MODEL,      /* neither a label nor the configuration names its model */
    KVB_POD_NO_ID,         /* the label that holds its id is missing or is not a number */
    KVB_POD_RELABELLED,    /* it runs, but the selector no longer matches its labels */
    KVB_POD_ID_TAKEN,      /* an older pod has the same id */
    KVB_POD_ADDRESS_TAKEN, /* a younger pod has the same address */
    KVB_POD_OTHER_LIST,    /* a worker from another source has the same id or address */
    KVB_POD_FULL,          /* the bridge is at its limit of workers */
    KVB_POD_STATE_COUNT
};

/* Why an object is skipped before it enters the table of pods. */
enum kvb_pod_refusal {
    KVB_POD_TOO_LARGE, /* above kvb_max_pod_bytes, or it has too many values */
    KVB_POD_INVALID,   /* not JSON, not UTF-8, or it lacks a name or a UID */
    KVB_POD_OTHER,     /* an object of another kind */
    KVB_POD_CEILING,   /* the table has kvb_max_workers pods already */
    KVB_POD_REFUSAL_COUNT
};

struct kvb_pod {
    char uid[kvb_pod_uid_bytes + 1];
    char version[kvb_pod_version_bytes + 1];
    char ip[kvb_pod_ip_bytes + 1]; /* "": none yet */
    char created[24];              /* creationTimestamp, RFC 3339: text order is time order */
    enum kvb_pod_state state;      /* judged by this pod alone */
    enum kvb_pod_state verdict;    /* judged among all pods, by kvb_pods_settle() */
    enum kvb_pod_state said;       /* the verdict that the log named last */
    uint64_t id;
    uint32_t events_port; /* 0: none; the next three ports too */
    uint32_t replay_port;
    uint32_t http_port;
    uint32_t metrics_port;
    uint32_t ranks;           /* rank r publishes at port events_port + r */
    uint32_t block_size;      /* from the engine's command line; 0: not given */
    uint32_t ports_beyond;    /* how many container ports beyond kvb_max_pod_ports were skipped */
    uint32_t labels_left_out; /* how many of rules.labels kvb_labels_add() refused */
    char model[kvb_model_bytes + 1];
    char model_rule[kvb_model_rule_bytes + 1]; /* where the model comes from: "label KEY", ... */
    char lora[kvb_model_bytes + 1];
    struct kvb_worker_facts
        facts;       /* pod, namespace, node, role, ready, draining, labels, address */
    uint32_t source; /* the list it came from: see kvb_pods_put() */
    uint32_t listed; /* the round of that list in which it was last seen */
};

/* "ports", ...: never NULL. */
const char *kvb_pod_preset_name(enum kvb_pod_preset preset);
const char *kvb_pod_state_name(enum kvb_pod_state state);
const char *kvb_pod_refusal_name(enum kvb_pod_refusal refusal);

/* What the state means and what the operator can do, as one sentence. */
const char *kvb_pod_state_remedy(enum kvb_pod_state state);

/* The label selector that applies when the configuration has none; "": all pods. */
const char *kvb_pod_preset_selector(enum kvb_pod_preset preset);

/* The label or annotation that names the model; "": the preset has none. */
const char *kvb_pod_preset_model(enum kvb_pod_preset preset);

/* text is "name", "uid" or "label:KEY".  KVB_BAD_CONFIG: it is something else. */
kvb_status kvb_pod_rules_take_id(struct kvb_pod_rules *rules, const char *text);

/* The worker id of a pod, computed from the pod's name exactly as Dynamo's stand-alone endpoint
 * picker does.  A router that reads both sees one id for one worker.
 *
 *     SipHash-1-3, key 0, over the bytes of the name and 0xff; the low 53 bits are kept
 *
 * This is what Rust's DefaultHasher returns for a string.  A double represents 53 bits exactly, so
 * JSON readers that store numbers as doubles do not round the id.  Source: Aumasson and Bernstein,
 * "SipHash: a fast short-input PRF". */
uint64_t kvb_pod_name_hash(kvb_span name);

/* Decodes a pod object.  On KVB_OK *out_pod is complete, except source and listed.
 * KVB_BAD_INPUT  *out_refusal and detail say why, also when the object is too large
 * KVB_NO_MEMORY */
kvb_status kvb_pod_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod *out_pod,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail);

/* The type of a line of a watch. */
enum kvb_pod_event {
    KVB_POD_ADDED, /* created, or present when the watch began */
    KVB_POD_MODIFIED,
    KVB_POD_DELETED,  /* deleted, or the selector no longer matches it */
    KVB_POD_BOOKMARK, /* no pod has changed up to this version */
    KVB_POD_ERROR,    /* the server reports an error and ends the watch */
    KVB_POD_EVENT_UNKNOWN,
    KVB_POD_EVENT_COUNT
};

struct kvb_pod_line {
    enum kvb_pod_event event;
    struct kvb_pod pod;                      /* for added, modified and deleted */
    char version[kvb_pod_version_bytes + 1]; /* for all types except errors; "": none */
    unsigned code;                           /* for KVB_POD_ERROR: an HTTP status; 0: none */
    struct kvb_detail message;               /* for KVB_POD_ERROR */
};

/* Decodes a line of a watch.  Errors are those of kvb_pod_decode().  Even after an error,
 * out_line->version and ->event are set if they could be read, so that the watch can continue after
 * that line. */
kvb_status kvb_pod_line_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod_line *out_line,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail);

/* A page of a list: what stands beside its items. */
enum { kvb_pod_continue_bytes = 4095 };

struct kvb_pod_page {
    char version[kvb_pod_version_bytes + 1];
    char next[kvb_pod_continue_bytes + 1]; /* token of the next page; "": no more pages */
};

/* KVB_BAD_INPUT: this is not a list of pods; detail says why. */
kvb_status
kvb_pod_page_decode(kvb_span json, struct kvb_pod_page *out_page, struct kvb_detail *detail);
