#pragma once

#include "core/status.h"
#include "kvbridge/part_table.h"
#include "kvbridge/worker_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decides what is to be done so that a source's list runs: the difference between the list and what
 * runs, judged beside what other sources have.
 *
 *     list of the source ---+
 *     table of what runs ---+--> actions: close, change facts, open     in this order
 *                           +--> a verdict for each worker of the list
 *
 *     the list has          runs already                   so
 *     --------------------  -----------------------------  ----------------------------------------
 *     a part                the same, of this source       it stays open; its facts may change
 *     a part                another, of this source        closed, then opened; it stays draining,
 *                                                          unless it is another pod
 *     a part                nothing                        opened
 *     nothing               a part of this source          closed
 *     an id, or an address  a part of another source       the other one stays: the worker is left
 *                                                          out, or the whole list refused
 *     more than fits                                       the last ones are left out, or the list
 *                                                          refused
 *
 * Pure.  Threads: the caller locks the table, whose scratch space is used.
 * Memory: 32 bytes for each action, 4 for each worker of the list. */

enum kvb_plan_kind { KVB_PLAN_CLOSE, KVB_PLAN_CHANGE_FACTS, KVB_PLAN_OPEN };

struct kvb_plan_action {
    enum kvb_plan_kind kind;
    uint32_t number;       /* of the part that runs; not of KVB_PLAN_OPEN */
    struct kvb_part *part; /* borrowed from the list; not of KVB_PLAN_CLOSE */
    bool is_draining;      /* of KVB_PLAN_OPEN */
};

/* The outcome for one worker of a list. */
enum kvb_verdict {
    KVB_VERDICT_TAKEN,
    KVB_VERDICT_ID_TAKEN,      /* another source has a rank of this id and number */
    KVB_VERDICT_ADDRESS_TAKEN, /* another source has a rank that reads this address */
    KVB_VERDICT_FULL           /* no room for more ranks or open files */
};

struct kvb_reconcile_input {
    struct kvb_part_table *running;
    uint32_t source;                         /* enum kvb_source_number */
    const struct kvb_listed_worker *workers; /* the whole list of the source, or one of it ... */
    size_t worker_count;
    bool is_one_worker;   /* ... so that what runs of the others is not compared */
    bool may_leave_out;   /* else a list with a collision is refused */
    size_t max_new_ranks; /* more are left out, or the list is refused */
    size_t max_ranks;     /* that may run */
};

struct kvb_plan {
    /* Owned.  Closing comes first, and ranks are opened before loads. */
    struct kvb_plan_action *actions;
    size_t action_count;
    enum kvb_verdict *verdicts; /* owned; for each worker of the list */
    /* Ranks. */
    size_t added;
    size_t gone;
    size_t changed; /* closed and opened again with new keys */
    size_t same;
    size_t updated;  /* of `same`: other facts */
    size_t left_out; /* of those that would have been added or changed */
    /* What is open when it is carried out. */
    size_t ranks;
    size_t republished_ranks;
    size_t load_sources;
    struct kvb_detail why; /* why something is left out, or all is refused; "": nothing is */
};

/* On KVB_OK the caller frees *out_plan with kvb_plan_done().  After an error out_plan->why is set.
 * KVB_BAD_CONFIG  a collision, and may_leave_out is false
 * KVB_TOO_LARGE   more ranks than max_ranks or max_new_ranks, and may_leave_out is false
 * KVB_NO_MEMORY */
kvb_status kvb_reconcile(const struct kvb_reconcile_input *input, struct kvb_plan *out_plan);

/* {0} is fine. */
void kvb_plan_done(struct kvb_plan *plan);

/* "is a pod of Kubernetes", for people. */
const char *kvb_running_place(const struct kvb_running *running);
