#include "bus/bus.h"

#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The responder against which the aggregator's answers are measured: what libmicrohttpd, nats.c
 * and the kernel cost when nothing is done with a request.  It reads each request to its end, and
 * answers with the same bytes each time.
 *
 *     bench_echo http PORT BYTES             as many threads as the aggregator has
 *     bench_echo nats URL SUBJECT BYTES
 *
 * BYTES: the size of an answer.  Says "ready" on stdout.  Runs until it is killed: there is nothing
 * to save. */

enum { http_threads = 4, max_bytes = 1 << 20, tries = 5000 };

struct echo {
    uint8_t *answer; /* zeroed; never freed */
    size_t bytes;
    struct kvb_bus *bus;
};

static enum MHD_Result answer_http(
    void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_len, void **seen)
{
    const struct echo *echo = context;

    (void)path;
    (void)method;
    (void)version;
    (void)upload;
    if (!*seen) { /* the header is complete */
        *seen = context;
        return MHD_YES;
    }
    if (*upload_len > 0) {
        *upload_len = 0;
        return MHD_YES;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(echo->bytes, echo->answer, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        return MHD_NO;
    }
    const enum MHD_Result result = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

static bool serve_http(struct echo *echo, const char *port)
{
    return MHD_start_daemon(
               MHD_USE_POLL_INTERNAL_THREAD, (uint16_t)strtoul(port, NULL, 10), NULL, NULL,
               answer_http, echo, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)http_threads,
               MHD_OPTION_END) != NULL;
}

static void answer_nats(void *context, const struct kvb_bus_message *message)
{
    const struct echo *echo = context;

    if (message->reply) { /* not sent: the client's time limit notices */
        (void)kvb_bus_publish(
            echo->bus, message->reply, (kvb_span){ .data = echo->answer, .len = echo->bytes });
    }
}

static bool serve_nats(struct echo *echo, const char *url, const char *subject)
{
    const struct kvb_bus_options options = { .url = url, .name = "echo", .sends_at_once = true };
    struct kvb_bus_subscription *received = NULL;
    struct kvb_detail detail = { { 0 } };

    if (kvb_bus_open(&options, &echo->bus, &detail) != KVB_OK ||
        kvb_bus_subscribe(echo->bus, subject, answer_nats, echo, &received) != KVB_OK) {
        return false;
    }
    for (int i = 0; i < tries && !kvb_bus_is_connected(echo->bus); i++) {
        (void)poll(NULL, 0, 1);
    }
    return kvb_bus_flush(echo->bus, tries) == KVB_OK; /* now it is subscribed */
}

int main(int argc, char **argv)
{
    static struct echo echo;
    const bool is_http = argc == 4 && strcmp(argv[1], "http") == 0;
    const bool is_nats = argc == 5 && strcmp(argv[1], "nats") == 0;

    echo.bytes = argc > 3 ? strtoull(argv[argc - 1], NULL, 10) : 0;
    echo.answer = calloc(1, max_bytes);
    if ((!is_http && !is_nats) || echo.bytes == 0 || echo.bytes > max_bytes || !echo.answer) {
        fprintf(
            stderr, "usage: %s http PORT BYTES | nats URL SUBJECT BYTES (at most %d)\n", argv[0],
            max_bytes);
        return EXIT_FAILURE;
    }
    if (!(is_http ? serve_http(&echo, argv[2]) : serve_nats(&echo, argv[2], argv[3]))) {
        fprintf(stderr, "%s: cannot begin\n", argv[0]);
        return EXIT_FAILURE;
    }
    puts("ready");
    (void)fflush(stdout);
    for (;;) {
        (void)pause();
    }
}
