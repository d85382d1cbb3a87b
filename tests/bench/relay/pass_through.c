#include <inttypes.h>
#include <nats/nats.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <zmq.h>

/* The relay that our bridge is measured against: what libzmq and nats.c cost when nothing is
 * done with the bytes.  It publishes each message into nats.c's buffer, and flushes when no input
 * is left, as the bridge does.
 *
 *     bench_pass_through FILE URL SUBJECT     FILE: an endpoint a line
 *
 * The flusher: nats.c has no call that writes its buffer and returns; Flush() writes at
 * once and then waits for a PONG, so it has a thread of its own. */

enum { receive_high_water = 2000, flush_ms = 1000, line_bytes = 256 };

struct relay {
    void *context;
    void *sub;
    natsConnection *nats;
    const char *subject;
    sem_t dry;
};

static void *flush_when_dry(void *argument)
{
    struct relay *relay = argument;

    for (;;) {
        while (sem_wait(&relay->dry) != 0) {
        }
        while (sem_trywait(&relay->dry) == 0) {
        }                                                         /* several are one */
        (void)natsConnection_FlushTimeout(relay->nats, flush_ms); /* lost: the reader counts */
    }
    return NULL;
}

/* The payload is the last frame.  False when there is none left. */
static bool pass_one(struct relay *relay)
{
    bool has_more = true;

    while (has_more) {
        zmq_msg_t part;
        (void)zmq_msg_init(&part); /* cannot fail */
        if (zmq_msg_recv(&part, relay->sub, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&part);
            return false;
        }
        has_more = zmq_msg_more(&part) != 0;
        if (!has_more) {
            (void)natsConnection_Publish(/* lost: the reader counts */
                                         relay->nats, relay->subject, zmq_msg_data(&part),
                                         (int)zmq_msg_size(&part));
        }
        (void)zmq_msg_close(&part);
    }
    return true;
}

static void pass_all(struct relay *relay)
{
    zmq_pollitem_t item = { .socket = relay->sub, .events = ZMQ_POLLIN };

    for (;;) {
        if (zmq_poll(&item, 1, -1) < 0) {
            continue; /* interrupted by a signal */
        }
        while (pass_one(relay)) {
        }
        (void)sem_post(&relay->dry);
    }
}

static bool connect_to_all(struct relay *relay, const char *path)
{
    FILE *file = fopen(path, "re");
    char line[line_bytes];
    bool is_good = file != NULL;

    while (is_good && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        is_good = zmq_connect(relay->sub, line) == 0;
    }
    if (file) {
        fclose(file);
    }
    return is_good;
}

static bool open_relay(struct relay *relay, const char *path, const char *url)
{
    const int high_water = receive_high_water;

    relay->context = zmq_ctx_new();
    relay->sub = relay->context ? zmq_socket(relay->context, ZMQ_SUB) : NULL;
    return relay->sub && natsConnection_ConnectTo(&relay->nats, url) == NATS_OK &&
           zmq_setsockopt(relay->sub, ZMQ_RCVHWM, &high_water, sizeof high_water) == 0 &&
           zmq_setsockopt(relay->sub, ZMQ_SUBSCRIBE, "", 0) == 0 && connect_to_all(relay, path);
}

/* Runs until it is killed: there is no state to save. */
int main(int argc, char **argv)
{
    pthread_t flusher;

    if (argc != 4) {
        fprintf(stderr, "usage: %s FILE URL SUBJECT\n", argv[0]);
        return EXIT_FAILURE;
    }
    struct relay relay = { .subject = argv[3] };
    if (!open_relay(&relay, argv[1], argv[2]) || sem_init(&relay.dry, 0, 0) != 0 ||
        pthread_create(&flusher, NULL, flush_when_dry, &relay) != 0) {
        fprintf(stderr, "%s: cannot begin\n", argv[0]);
        return EXIT_FAILURE;
    }
    pass_all(&relay);
    return EXIT_SUCCESS;
}
