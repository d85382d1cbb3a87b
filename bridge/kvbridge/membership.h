#pragma once

#include "core/ring.h"
#include "kvbridge/inside.h"
#include "kvbridge/members.h"

#include <pthread.h>
#include <stdbool.h>

/* The commands that add and remove ranks, for the membership*.c files alone. */

struct bridge_command {
    struct kvb_membership_request wish;
    const struct kvb_members *wanted; /* borrowed; NULL from KVB_BRIDGE_UPDATE on */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    kvb_status status;
    struct kvb_membership_result answer;
};

/* The command under way, and how far it is. */
struct membership_work {
    struct kvb_ring *commands;      /* owned */
    struct bridge_command *command; /* borrowed from whoever waits; NULL: none */
    bool *ranks_come;               /* owned, like the one below; of command->wanted */
    bool *loads_come;
    bool *are_draining; /* owned; of command->wanted: opened in place of one that was draining */
    size_t next_rank;   /* of command->wanted */
    size_t next_load;
    uint64_t give_up_ns; /* when the rank that cannot be opened is given up; 0: it could be */
    uint64_t waits_ns;   /* since when readers of the values are waited for; 0: not */
};

/* ---- kvbridge/membership_decide.c ---- */

/* Marks the removed and the added ranks, or gives the reason why the command is rejected. */
kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command);

/* ---- kvbridge/membership_step.c ---- */

enum member_step {
    member_step_done,  /* nothing is left to do */
    member_step_again, /* one rank or load less */
    member_step_later  /* it waits for another thread: try again in the next turn */
};

enum member_step kvb_bridge_take_step(struct kvb_bridge *bridge, uint64_t now_ns);
