#include <inttypes.h>
#include <nats/nats.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* The relay that our bridge is measured against: what libzmq and nats.c cost when nothing is
 * done with the bytes.  It publishes each message into nats.c's buffer, and writes that when no
 * input is left or it is full, on its one thread, as the bridge does.
 *
 *     bench_pass_through FILE URL SUBJECT     FILE: an endpoint a line
 *
 * nats.c calls this an external event loop: without it, nats.c has no call that writes its buffer
 * and does not wait for a PONG. */

enum { receive_high_water = 2000, line_bytes = 256, max_unwritten_bytes = 32 << 10 };

struct relay {
    void *context;
    void *sub;
    natsConnection *nats;
    const char *subject;
    int fd;           /* borrowed: of the connection */
    size_t unwritten; /* bytes published since the last write */
};

/* ---- nats.c's socket ---- */

static natsStatus attach(void **out_context, void *loop, natsConnection *nats, natsSock fd)
{
    struct relay *relay = loop;

    (void)nats; /* is known when the connection is made */
    relay->fd = fd;
    *out_context = relay;
    return NATS_OK;
}

/* pass_all() always reads, and writes when it likes. */
static natsStatus ignore(void *context, bool is_wanted)
{
    (void)context;
    (void)is_wanted;
    return NATS_OK;
}

static natsStatus detach(void *context)
{
    (void)context;
    return NATS_OK;
}

static void write_all(struct relay *relay)
{
    struct pollfd full = { .fd = relay->fd, .events = POLLOUT };

    /* nats.c takes a write of nothing for the end of the connection. */
    while (natsConnection_Buffered(relay->nats) > 0) {
        natsConnection_ProcessWriteEvent(relay->nats);
        if (natsConnection_Buffered(relay->nats) > 0) {
            (void)poll(&full, 1, -1);
        }
    }
    relay->unwritten = 0;
}

/* ---- Passing on ---- */

static void publish(struct relay *relay, zmq_msg_t *part)
{
    (void)natsConnection_Publish(/* lost: the reader counts */
                                 relay->nats, relay->subject, zmq_msg_data(part),
                                 (int)zmq_msg_size(part));
    relay->unwritten += zmq_msg_size(part);
    if (relay->unwritten >= max_unwritten_bytes) {
        write_all(relay);
    }
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
            publish(relay, &part);
        }
        (void)zmq_msg_close(&part);
    }
    return true;
}

static void pass_all(struct relay *relay)
{
    zmq_pollitem_t items[] = { { .socket = relay->sub, .events = ZMQ_POLLIN },
                               { .fd = relay->fd, .events = ZMQ_POLLIN } };

    for (;;) {
        if (zmq_poll(items, 2, -1) < 0) {
            continue; /* interrupted by a signal */
        }
        if (items[1].revents != 0) {
            natsConnection_ProcessReadEvent(relay->nats);
        }
        while (pass_one(relay)) {
        }
        write_all(relay);
    }
}

/* ---- Beginning ---- */

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
    natsOptions *options = NULL;

    relay->context = zmq_ctx_new();
    relay->sub = relay->context ? zmq_socket(relay->context, ZMQ_SUB) : NULL;
    const bool is_connected =
        natsOptions_Create(&options) == NATS_OK && natsOptions_SetURL(options, url) == NATS_OK &&
        natsOptions_SetSendAsap(options, true) == NATS_OK && /* no thread of nats.c flushes */
        natsOptions_SetEventLoop(options, relay, attach, ignore, ignore, detach) == NATS_OK &&
        natsConnection_Connect(&relay->nats, options) == NATS_OK;
    natsOptions_Destroy(options);
    return relay->sub && is_connected &&
           zmq_setsockopt(relay->sub, ZMQ_RCVHWM, &high_water, sizeof high_water) == 0 &&
           zmq_setsockopt(relay->sub, ZMQ_SUBSCRIBE, "", 0) == 0 && connect_to_all(relay, path);
}

/* Runs until it is killed: there is no state to save. */
int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s FILE URL SUBJECT\n", argv[0]);
        return EXIT_FAILURE;
    }
    struct relay relay = { .subject = argv[3] };
    if (!open_relay(&relay, argv[1], argv[2])) {
        fprintf(stderr, "%s: cannot begin\n", argv[0]);
        return EXIT_FAILURE;
    }
    pass_all(&relay);
    return EXIT_SUCCESS;
}
