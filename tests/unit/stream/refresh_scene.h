#pragma once

#include "batch_maker.h"
#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Refreshes of a mirror that changes meanwhile, against readers that follow the rules of
 * Dynamo 0.4.1's index: a set of names; a stored event whose parent is not in it is ignored,
 * and so is the removal of what is not in it.  They hear of the device list alone. */
enum {
    max_nodes = 240,
    max_depth = 40,
    max_groups = 3,
    window_tokens = 3,
    places = 1024,  /* a power of two */
    aliases = 10000 /* engine names of second entries of one content begin here */
};

/* A tree of contents: node n is the child of a node before it, or begins a prompt. */
struct node {
    int parent; /* -1: none */
    size_t depth;
    uint32_t path[max_depth];
    uint64_t name;
};

struct reader {
    bool has[max_nodes];
    bool has_in_window[max_nodes];
    size_t ignored; /* stored events so far */
};

/* Cache groups of an engine; their numbers are their places. */
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
    int copies[max_groups][2][max_nodes]; /* that the engine stored, under either name */
    int favourite;                        /* a node that changes often */
    struct node nodes[max_nodes];
    int by_name[places]; /* node + 1, at its name or behind; 0: none */
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    struct reader truth; /* what kvb_mirror_walk() shows */
    struct reader early; /* received everything */
    struct reader late;  /* received everything since the refresh began */
};

void begin_world(struct world *world, const struct life *life);
void end_world(struct world *world);

/* The same of one that malloc() gave. */
void uproot(struct world *world);

uint32_t draw(struct world *world, uint32_t below);

/* Node n becomes the child of this parent, or begins a prompt: -1. */
void place_node(struct world *world, int parent, int n);

/* ---- What the engine does ---- */

/* An alias is a second entry of the same content. */
uint64_t engine_name(int n, bool is_alias);

/* Adds a Stored of node n, as of this group, to the batch. */
void add_to_group(struct world *world, size_t group, int n, bool is_alias);

/* Applies the batch and empties it; readers receive the resulting events. */
void apply(struct world *world);

/* ---- Refreshes ---- */

void look_up_truth(struct world *world);

/* One step; true: the refresh is done.  What goes out is of the device list and held, and each
 * reader takes it. */
bool step(struct world *world, size_t max_blocks, size_t max_looks);
