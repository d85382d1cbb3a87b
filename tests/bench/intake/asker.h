#pragma once

#include "core/buf.h"
#include "intake/fleet.h"

#include <stddef.h>
#include <stdint.h>

/* Routers that query about prompts: at a given rate, for the latency of each answer, or as fast as
 * they are answered.  A step that fails ends the program. */

enum { question_prompts = 256 };

/* Requests that are sent repeatedly, made before the measurement begins. */
struct questions {
    struct kvb_buf bodies[question_prompts];
    struct kvb_buf posts[question_prompts]; /* the same for HTTP: POST /query */
    struct kvb_buf calls[question_prompts]; /* the same for gRPC: the names of the blocks */
};

/* Makes requests about prompts, each of which some worker holds. */
void questions_make(struct questions *questions, struct fleet *fleet);

enum asking_way { ASK_HTTP, ASK_NATS, ASK_GRPC };

struct asking {
    const struct questions *questions; /* borrowed, as all; sent in turn */
    enum asking_way way;
    uint16_t port;       /* over HTTP or gRPC */
    const char *url;     /* of NATS */
    const char *subject; /* over NATS */
    double seconds;
};

struct asked {
    uint32_t *samples_ns; /* owned */
    size_t count;
    double answer_bytes; /* of one, the mean */
};

/* Four senders, each with a thread and a connection of its own. Begins in a quarter of a second and
 * returns at the end. A request that had to wait for the previous answer counts from its scheduled
 * time. */
struct asked ask_at_rate(const struct asking *asking, uint64_t questions_a_second);

/* 32 requests at a time, over HTTP or NATS, each sent when another is answered.  Returns how many
 * were. */
uint64_t ask_at_most(const struct asking *asking);
