#pragma once

#include "core/ring.h"
#include "daemon/bridge_inside.h"
#include "daemon/members.h"

#include <pthread.h>
#include <stdbool.h>

/* The commands by which ranks come and go, for the bridge_members*.c files alone. */

struct bridge_command {
    struct kvb_bridge_asking asking;
    const struct kvb_members *wanted; /* borrowed; of KVB_BRIDGE_FORGET: NULL */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_done;
    kvb_status status;
    struct kvb_bridge_answer_to_asking answer;
};

/* The command under way, and how far it is. */
struct bridge_members {
    struct kvb_ring *commands;      /* owned */
    struct bridge_command *command; /* borrowed from whoever waits; NULL: none */
    bool *ranks_come;               /* owned, like the one below; of command->wanted */
    bool *loads_come;
    size_t next_rank; /* of command->wanted */
    size_t next_load;
    uint64_t give_up_ns; /* when the rank that cannot be opened is given up; 0: it could be */
    uint64_t waits_ns;   /* since when readers of the values are waited for; 0: not */
};

/* ---- bridge_members_decide.c ---- */

/* Marks who leaves and who comes, or says why nobody may. */
kvb_status kvb_bridge_decide(struct kvb_bridge *bridge, struct bridge_command *command);

/* ---- bridge_members_step.c ---- */

enum member_step {
    member_step_done,  /* nothing is left to do */
    member_step_again, /* one rank or load less */
    member_step_later  /* it waits for somebody else: in the next turn */
};

enum member_step kvb_bridge_take_step(struct kvb_bridge *bridge, uint64_t now_ns);
