#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "fleet.h"
#include "intake.h"
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A nats-server, a kvaggregator and what a bench says to them.  A step that fails ends
 * the program, and both with it. */

struct scene {
    struct nats_server server;
    pid_t aggregator;
    uint16_t port;    /* of its HTTP */
    char folder[64];  /* its configuration and log */
    uint64_t exec_ns; /* when it was started, and was ready */
    uint64_t serving_ns;
    struct kvb_bus *bus; /* of the bridges */
};

/* Returns when the aggregator is ready: its /readyz says so. */
void scene_begin(struct scene *scene, const struct intake *intake);
void scene_end(struct scene *scene);

/* ---- HTTP, one request at a time on one connection ---- */

struct web {
    int fd;
    struct kvb_buf text; /* of the answer, head and body */
    size_t body_at;
};

/* False: nobody listens. */
bool web_open(struct web *web, uint16_t port);
void web_close(struct web *web);

/* Sends all of request and reads the answer; returns its status. */
unsigned web_ask(struct web *web, kvb_span request);

/* Appends "POST path" with a JSON body. */
void web_make_post(struct kvb_buf *out, const char *path, kvb_span body);

/* A figure of /metrics; 0 when it is not there. */
double scene_metric(const struct scene *scene, const char *name);

/* ---- What bridges publish ---- */

void scene_send_round(struct scene *scene, const struct fleet_round *round);
void scene_send_heartbeats(struct scene *scene, const struct fleet *fleet);

/* Until the aggregator has applied so many events. */
void scene_wait_applied(const struct scene *scene, uint64_t events);

/* A thread that publishes `rate` block operations a second, in bursts of `burst`, and a
 * heartbeat of each worker every second. */
struct talker {
    struct scene *scene;
    struct fleet *fleet; /* the thread's own until talker_end() */
    uint64_t rate;
    uint64_t burst;
    atomic_bool is_stopping;
    pthread_t thread;
    uint64_t blocks; /* published */
    uint64_t since_ns;
};

void talker_begin(struct talker *talker);
void talker_end(struct talker *talker);

/* Sleeps until then; returns at once when that is past. */
void wait_until_ns(uint64_t then_ns);
