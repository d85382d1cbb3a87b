#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/labels.h"
#include "model/stream.h"
#include "model/worker_facts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One pod of Kubernetes, as far as it matters to who reads its engine, and the rules by which that
 * is found in it.
 *
 *     object of the API --kvb_pod_decode(rules)--> kvb_pod --kvb_pods_put()--> table (pods/table.h)
 *
 * The order in which a port is looked for:
 *
 *     1  a container port of this name      kv-events; kv-replay; metrics, else http
 *     2  the preset's label or annotation
 *     3  the number of the configuration, or else the preset's
 *
 * A model is looked for in the configuration's label, the preset's, the engine's own arguments
 * (vLLM, SGLang: --served-model-name, --model, --model-path, `serve NAME`), and the configuration.
 *
 * Source: the Kubernetes API, core/v1 Pod; the labels of AIBrix, llm-d and Dynamo's operator.
 * Pure.  Threads: plain data; decoding: any thread. */

/* Where ports, model and role stand. */
enum kvb_pod_preset {
    KVB_POD_PRESET_PORTS, /* container ports, and the labels that the configuration names */
    KVB_POD_PRESET_AIBRIX,
    KVB_POD_PRESET_LLM_D,
    KVB_POD_PRESET_DYNAMO,
    KVB_POD_PRESET_COUNT
};

/* What a worker's id is made of. */
enum kvb_pod_id_kind {
    KVB_POD_ID_OF_NAME,  /* kvb_pod_name_hash() of the pod's name */
    KVB_POD_ID_OF_UID,   /* the same of its UID */
    KVB_POD_ID_OF_LABEL, /* a label's or annotation's value, a number */
};

enum {
    kvb_pod_key_name_bytes = 127, /* of a label or an annotation */
    kvb_pod_ip_bytes = 45,        /* of an IPv6 address */
    kvb_pod_version_bytes = 63    /* resourceVersion, which is opaque */
};

#define KVB_POD_PORT_OF_PRESET UINT32_MAX /* no enum: it fits no int */

struct kvb_pod_rules {
    enum kvb_pod_preset preset;
    enum kvb_pod_id_kind id_from;
    char id_label[kvb_pod_key_name_bytes + 1];    /* of KVB_POD_ID_OF_LABEL */
    char model_label[kvb_pod_key_name_bytes + 1]; /* "": the preset's alone, like the next */
    char role_label[kvb_pod_key_name_bytes + 1];
    char model[kvb_model_bytes + 1]; /* of pods that name none; "": such pods are not taken */
    /* Where names and labels say nothing; 0: there is none. */
    uint32_t events_port;
    uint32_t replay_port;
    uint32_t metrics_port;
    uint32_t ranks;                /* of a pod that does not say */
    struct kvb_label_names labels; /* of those that go out with the worker */
};

/* Why a pod is no worker; "taken" is one. */
enum kvb_pod_state {
    KVB_POD_TAKEN,
    KVB_POD_PHASE,         /* it is not Running: pending, or it has ended */
    KVB_POD_NO_IP,         /* it has none yet */
    KVB_POD_NO_PORT,       /* nothing says where its events are */
    KVB_POD_NO_MODEL,      /* neither a label nor the configuration names one */
    KVB_POD_NO_ID,         /* the label of its id is missing, or no number */
    KVB_POD_RELABELLED,    /* it runs, and the selector no longer matches */
    KVB_POD_ID_TAKEN,      /* an older pod has its id */
    KVB_POD_ADDRESS_TAKEN, /* a younger pod has its address */
    KVB_POD_OTHER_LIST,    /* a worker of another list has its id or its address */
    KVB_POD_FULL,          /* the bridge reads as much as it may */
    KVB_POD_STATE_COUNT
};

/* Why an object is not looked at further, and so is no pod of the table. */
enum kvb_pod_refusal {
    KVB_POD_TOO_LARGE, /* above kvb_max_pod_bytes, or with too many values */
    KVB_POD_INVALID,   /* no JSON, no UTF-8, or without a name or a UID */
    KVB_POD_OTHER,     /* an object of another kind */
    KVB_POD_CEILING,   /* above kvb_max_workers pods */
    KVB_POD_REFUSAL_COUNT
};

struct kvb_pod {
    char uid[kvb_pod_uid_bytes + 1];
    char version[kvb_pod_version_bytes + 1];
    char ip[kvb_pod_ip_bytes + 1]; /* "": none yet */
    char created[24];              /* creationTimestamp, RFC 3339: sorts as text */
    enum kvb_pod_state state;      /* by itself */
    enum kvb_pod_state verdict;    /* beside the others: kvb_pods_settle() */
    enum kvb_pod_state said;       /* that the log has named; the reader\'s own */
    uint64_t id;
    uint32_t events_port; /* 0: none, like the next two */
    uint32_t replay_port;
    uint32_t http_port;
    uint32_t metrics_port;
    uint32_t ranks;           /* at events_port + rank */
    uint32_t block_size;      /* that the arguments of the engine name; 0: none */
    uint32_t ports_beyond;    /* container ports above kvb_max_pod_ports, not looked at */
    uint32_t labels_left_out; /* of rules.labels: what is no label of ours */
    char model[kvb_model_bytes + 1];
    char lora[kvb_model_bytes + 1];
    struct kvb_worker_facts
        facts;       /* pod, namespace, node, role, ready, draining, labels, address */
    uint32_t source; /* which list it stands in: of kvb_pods_*() */
    uint32_t listed; /* in which round of that list it was seen */
};

/* "ports", ...: never NULL. */
const char *kvb_pod_preset_name(enum kvb_pod_preset preset);
const char *kvb_pod_state_name(enum kvb_pod_state state);
const char *kvb_pod_refusal_name(enum kvb_pod_refusal refusal);

/* What the operator can do about it, a sentence. */
const char *kvb_pod_state_remedy(enum kvb_pod_state state);

/* The label selector where the configuration has none; "": all pods. */
const char *kvb_pod_preset_selector(enum kvb_pod_preset preset);

/* "name", "uid" or "label:x".  KVB_BAD_CONFIG */
kvb_status kvb_pod_rules_take_id(struct kvb_pod_rules *rules, const char *text);

/* A pod object.  On KVB_OK *out_pod is complete but for source and listed.
 * KVB_BAD_INPUT  *out_refusal and detail say why; also for what is too large
 * KVB_NO_MEMORY */
kvb_status kvb_pod_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod *out_pod,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail);

/* What a line of a watch says. */
enum kvb_pod_event {
    KVB_POD_ADDED, /* or it was there at the beginning */
    KVB_POD_MODIFIED,
    KVB_POD_DELETED,  /* or it does not match the selector any more */
    KVB_POD_BOOKMARK, /* nothing happened up to this version */
    KVB_POD_ERROR,    /* the watch ends */
    KVB_POD_EVENT_UNKNOWN,
    KVB_POD_EVENT_COUNT
};

/* "added", ...: never NULL. */
const char *kvb_pod_event_name(enum kvb_pod_event event);

struct kvb_pod_line {
    enum kvb_pod_event event;
    struct kvb_pod pod;                      /* of the first three */
    char version[kvb_pod_version_bytes + 1]; /* of all but errors; "": none is named */
    unsigned code;                           /* of KVB_POD_ERROR: as of HTTP; 0: none */
    struct kvb_detail message;               /* of KVB_POD_ERROR */
};

/* A line of a watch.  Errors as kvb_pod_decode(); after one out_line->version and ->event may be
 * known nevertheless, so that the watch goes on behind it. */
kvb_status kvb_pod_line_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod_line *out_line,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail);

/* The envelope of a list. */
enum { kvb_pod_continue_bytes = 4095 };

struct kvb_pod_page {
    char version[kvb_pod_version_bytes + 1];
    char next[kvb_pod_continue_bytes + 1]; /* the token of the next page; "": it was the last */
};

/* KVB_BAD_INPUT: no list of pods; detail says why. */
kvb_status
kvb_pod_page_decode(kvb_span json, struct kvb_pod_page *out_page, struct kvb_detail *detail);
