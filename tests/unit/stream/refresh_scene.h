#pragma once

#include "batch_maker.h"
#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Refreshes of a mirror that changes meanwhile, against readers with the rules of Dynamo 0.4.1's
 * index: a set of names. A stored event whose parent is not in the set is ignored, and so is the
 * removal of a name that is not in it. Readers receive the device list only. */
enum {
    max_nodes = 240,
    max_depth = 40,
    max_groups = 3,
    window_tokens = 3,
    places = 1024,  /* slots of the hash table; a power of two */
    aliases = 10000 /* engine names of second entries of one content begin here */
};

/* A tree of contents: node n is the child of an earlier node, or begins a prompt. */
struct node {
    int parent; /* -1: begins a prompt */
    size_t depth;
    uint32_t path[max_depth];
    uint64_t name;
};

struct reader {
    bool has[max_nodes];
    bool has_in_window[max_nodes];
    size_t ignored; /* stored events ignored so far */
};

/* Cache groups of an engine; the number of a group is its position. */
struct groups {
    size_t count;
    enum kvb_group_kind kinds[max_groups];
};

struct life {
    unsigned seed;
    bool is_orderly; /* within each group, parents come before their children and leave after */
    enum kvb_hashes hashes;
    struct groups groups;
};

struct world {
    unsigned seed;
    bool is_orderly;
    enum kvb_hashes hashes;
    struct groups groups;
    int copies[max_groups][2][max_nodes]; /* copies that the engine has stored, under either name */
    int favourite;                        /* a node that changes often */
    struct node nodes[max_nodes];
    int by_name[places]; /* node + 1, in the slot of its name or behind it; 0: free */
    struct kvb_mirror *mirror;
    struct kvb_picture picture; /* of its refresh */
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    struct reader truth; /* what a picture of the mirror at rest shows */
    struct reader early; /* received everything */
    struct reader late;  /* received everything since the refresh began */
};

void begin_world(struct world *world, const struct life *life);
void end_world(struct world *world);

/* Ends and frees a world that malloc() returned. */
void uproot(struct world *world);

uint32_t draw(struct world *world, uint32_t below);

/* Makes node n the child of this parent; -1: n begins a prompt. */
void place_node(struct world *world, int parent, int n);

/* ---- What the engine does ---- */

/* An alias is a second entry of the same content. */
uint64_t engine_name(int n, bool is_alias);

/* Adds a Stored of node n, as of this group, to the batch. */
void add_to_group(struct world *world, size_t group, int n, bool is_alias);

/* Applies the batch and empties it; readers receive the resulting events. */
void apply(struct world *world);

/* ---- Refreshes ---- */

void begin_refresh(struct world *world);

void look_up_truth(struct world *world);

/* Makes one step; true when the refresh is done. Checks that the published blocks are in the device
 * list and that each reader accepts them. */
bool step(struct world *world, size_t max_blocks, size_t max_looks);
