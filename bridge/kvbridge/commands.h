#pragma once

#include "core/ring.h"
#include "kvbridge/bridge.h"
#include "kvbridge/members.h"
#include "kvbridge/membership.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The commands that add and remove ranks.  Only for the membership*.c files. */

struct bridge_command {
    struct kvb_membership_request wish;
    const struct kvb_members *wanted; /* borrowed; NULL from KVB_BRIDGE_UPDATE on */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    kvb_status status;
    struct kvb_membership_result answer;
};

/* The current command and its progress. */
struct membership_work {
    struct kvb_ring *commands;      /* owned */
    struct bridge_command *command; /* borrowed from the waiting thread; NULL: none */
    bool *ranks_come;               /* owned; one for each rank of command->wanted */
    bool *loads_come;
    bool *are_draining; /* owned; ranks of command->wanted that replace a draining one */
    size_t next_rank;   /* the next rank of command->wanted to open */
    size_t next_load;
    uint64_t give_up_ns; /* when to give up the rank that fails to open; 0: none fails */
    uint64_t waits_ns;   /* since when the thread waits for readers of metrics; 0: it does not */
};

/* ---- kvbridge/membership_decide.c ---- */

/* Marks the removed and the added ranks, or gives the reason why the command is rejected. */
kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command);

/* ---- kvbridge/membership_step.c ---- */

enum member_step {
    member_step_done,  /* nothing is left to do */
    member_step_again, /* one rank or load source was closed or opened */
    member_step_later  /* another thread holds the lock: try again in the next turn */
};

enum member_step kvb_bridge_take_step(struct kvb_bridge *bridge, uint64_t now_ns);
