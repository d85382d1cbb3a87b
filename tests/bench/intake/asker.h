#pragma once

#include "core/buf.h"
#include "intake/fleet.h"
#include "intake/scene.h"

#include <stddef.h>
#include <stdint.h>

/* Routers that query an aggregator about prompts at a given rate, and the latency of each answer. A
 * step that fails ends the program. */

enum { question_prompts = 256, question_timeout_ms = 5000 };

/* Requests that are sent repeatedly, made before the measurement begins. */
struct questions {
    struct kvb_buf bodies[question_prompts];
    struct kvb_buf posts[question_prompts]; /* the same for HTTP: POST /query */
    struct kvb_buf calls[question_prompts]; /* the same for gRPC: the names of the blocks */
};

/* Makes requests about prompts, each of which some worker holds. */
void questions_make(struct questions *questions, struct fleet *fleet);
void questions_drop(struct questions *questions);

enum asking_way { ASK_HTTP, ASK_NATS, ASK_GRPC };

struct asking {
    struct scene *scene;               /* all three borrowed */
    const struct questions *questions; /* sent in turn */
    enum asking_way way;
    const char *subject; /* over NATS */
    uint64_t questions_a_second;
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
void ask(const struct asking *asking, struct asked *out_asked);
void asked_done(struct asked *asked);

/* Reports NAME.p50 and NAME.p99 in us; sorts the samples. */
void asked_say(struct asked *asked, const char *name);
