#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "intake/fleet.h"
#include "intake/intake.h"
#include "process.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A nats-server, a kvaggregator and the messages of the bench. A step that fails ends the program
 * and both processes. */

struct scene {
    struct nats_server server;
    pid_t aggregator;
    uint16_t port;       /* of its HTTP */
    uint16_t grpc_port;  /* 0: none */
    char folder[64];     /* its configuration and log */
    uint64_t exec_ns;    /* when it was started */
    uint64_t ready_ns;   /* the first 200 of /readyz */
    struct kvb_bus *bus; /* of the bridges */
};

/* Returns when /readyz says that the aggregator is ready. */
void scene_begin(struct scene *scene, const struct intake *intake);
void scene_end(struct scene *scene);

/* Kills the aggregator and starts a new one; returns when it is ready. */
void scene_restart(struct scene *scene, const struct intake *intake);

/* ---- HTTP, one request at a time on one connection ---- */

struct web {
    int fd;
    struct kvb_buf text; /* of the answer, head and body */
    size_t body_at;
};

/* False when nobody listens. */
bool web_open(struct web *web, uint16_t port);
void web_close(struct web *web);

/* Sends the whole request and reads the answer; returns its status. */
unsigned web_ask(struct web *web, kvb_span request);

/* Appends "POST path" with a JSON body. */
void web_make_post(struct kvb_buf *out, const char *path, kvb_span body);

/* A value of /metrics; 0 when it is not there. */
double scene_metric(const struct scene *scene, const char *name);

/* ---- Messages of bridges ---- */

void scene_send_round(struct scene *scene, const struct fleet_round *round);
void scene_send_heartbeats(struct scene *scene, const struct fleet *fleet);

/* Waits until the aggregator has applied this many events. */
void scene_wait_applied(const struct scene *scene, uint64_t events);

/* A thread that publishes messages made before, each at its time: `rate` block operations
 * a second, `burst` of them at once, and a heartbeat every millisecond, workers in turn. */
struct utterance {
    uint64_t after_ns; /* since the thread began */
    bool is_heartbeat;
    size_t at; /* in bytes */
    size_t len;
};

struct talker {
    struct scene *scene;
    struct fleet *fleet;
    uint64_t rate;
    uint64_t burst;
    double seconds;
    struct kvb_buf bytes;
    struct utterance *script; /* owned */
    size_t count, capacity;
    pthread_t thread;
};

/* Makes the script, which needs as much processor time as sending it, and begins. */
void talker_begin(struct talker *talker);

/* Waits for the end of the script. */
void talker_end(struct talker *talker);

/* Sleeps until then; returns at once when that time is past. */
void wait_until_ns(uint64_t then_ns);
