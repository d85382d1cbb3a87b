#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <zmq.h>

/* What libzmq alone costs a bridge: a SUB socket for each engine, all of them behind one epoll, and
 * every message is received and dropped.
 *
 *     bench_plain_sub FILE     FILE: an endpoint a line */

enum { receive_high_water = 2000, max_sockets = 8192, line_bytes = 256, events_a_wait = 256 };

static bool open_sub(void *context, int epoll_fd, const char *endpoint)
{
    const int high_water = receive_high_water;
    struct epoll_event event = { .events = EPOLLIN | EPOLLET };
    void *sub = zmq_socket(context, ZMQ_SUB);
    int fd = -1;
    size_t size = sizeof fd;

    event.data.ptr = sub;
    return sub && zmq_setsockopt(sub, ZMQ_RCVHWM, &high_water, sizeof high_water) == 0 &&
           zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0) == 0 &&
           zmq_getsockopt(sub, ZMQ_FD, &fd, &size) == 0 &&
           epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 && zmq_connect(sub, endpoint) == 0;
}

static bool open_subs(void *context, int epoll_fd, const char *path)
{
    FILE *file = fopen(path, "re");
    char line[line_bytes];
    bool is_good = file != NULL;

    while (is_good && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        is_good = open_sub(context, epoll_fd, line);
    }
    if (file) {
        fclose(file);
    }
    return is_good;
}

/* Until there is nothing: only then does the descriptor report the next message. */
static void drop_all(void *sub)
{
    zmq_msg_t part;

    (void)zmq_msg_init(&part); /* cannot fail */
    while (zmq_msg_recv(&part, sub, ZMQ_DONTWAIT) >= 0) {
    }
    (void)zmq_msg_close(&part);
}

/* Runs until it is killed. */
int main(int argc, char **argv)
{
    struct epoll_event events[events_a_wait];
    void *context = zmq_ctx_new();
    const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);

    if (argc != 2 || !context || epoll_fd < 0 ||
        zmq_ctx_set(context, ZMQ_MAX_SOCKETS, max_sockets) != 0 ||
        !open_subs(context, epoll_fd, argv[1])) {
        fprintf(stderr, "usage: %s FILE, of endpoints that can be connected to\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (;;) {
        const int count = epoll_wait(epoll_fd, events, events_a_wait, -1);
        for (int i = 0; i < count; i++) {
            drop_all(events[i].data.ptr);
        }
    }
}
