#include "intake/rate.h"

#include "core/clock.h"
#include "core/own.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { path_bytes = 64, max_unread = 1 << 20, answer_ms = 5000 };

/* ---- Cores ---- */

/* All threads that the process has now; later ones inherit from whoever starts them. */
static void pin(pid_t pid, const cpu_set_t *cores)
{
    char path[path_bytes];

    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    INTAKE_MUST(tasks ? KVB_OK : KVB_IO);
    /* glibc's readdir() is safe when each thread has a DIR of its own. */
    for (const struct dirent *each = NULL;
         (each = readdir(tasks));) { /* NOLINT(concurrency-mt-unsafe) */
        const pid_t task = (pid_t)strtol(each->d_name, NULL, 10);
        if (task > 0) { /* fails when the thread has just ended */
            (void)sched_setaffinity(task, sizeof *cores, cores);
        }
    }
    closedir(tasks);
}

/* The last core for the responder, the others for everybody else. */
static void divide(const cpu_set_t *all, cpu_set_t *out_one, cpu_set_t *out_others)
{
    int last = 0;

    for (int i = 0; i < CPU_SETSIZE; i++) {
        last = CPU_ISSET(i, all) ? i : last;
    }
    CPU_ZERO(out_one);
    CPU_SET(last, out_one);
    *out_others = *all;
    if (CPU_COUNT(all) > 1) {
        CPU_CLR(last, out_others);
    }
}

static uint64_t process_cpu_ns(pid_t pid)
{
    clockid_t clock = 0;
    struct timespec time = { 0 };

    INTAKE_MUST(clock_getcpuclockid(pid, &clock) == 0 ? KVB_OK : KVB_IO);
    INTAKE_MUST(clock_gettime(clock, &time) == 0 ? KVB_OK : KVB_IO);
    return (uint64_t)time.tv_sec * KVB_NS_PER_S + (uint64_t)time.tv_nsec;
}

/* ---- Requesting, `rate_in_flight` at a time ---- */

struct load {
    const struct questions *questions;
    const struct responder *responder;
    uint64_t end_ns;
    _Atomic uint64_t asked;
    _Atomic unsigned in_flight;
    /* over NATS */
    struct kvb_bus *bus;
    struct kvb_bus_subscription *answers;
};

static bool is_over(const struct load *load)
{
    return kvb_clock_monotonic_ns() >= load->end_ns;
}

static size_t next_question(struct load *load)
{
    load->in_flight++;
    return load->asked++ % question_prompts;
}

/* One connection, with one request under way. */
struct channel {
    struct web web;
    size_t expected; /* bytes of the answer; 0: its header has not arrived yet */
};

static void ask_on_channel(struct load *load, struct channel *channel)
{
    const kvb_span post = kvb_buf_span(&load->questions->posts[next_question(load)]);

    channel->expected = 0;
    kvb_buf_reset(&channel->web.text);
    INTAKE_MUST(
        send(channel->web.fd, post.data, post.len, MSG_NOSIGNAL) == (ssize_t)post.len ? KVB_OK
                                                                                      : KVB_IO);
}

/* True when the answer is complete. */
static bool read_channel(struct channel *channel)
{
    struct kvb_buf *text = &channel->web.text;

    INTAKE_MUST(kvb_buf_reserve(text, 65536));
    const ssize_t got = recv(channel->web.fd, text->data + text->len, 65535, 0);
    INTAKE_MUST(got > 0 ? KVB_OK : KVB_IO);
    text->len += (size_t)got;
    text->data[text->len] = '\0';
    if (channel->expected == 0) {
        const char *head = (const char *)text->data;
        const char *end = strstr(head, "\r\n\r\n");
        const char *length = end ? strcasestr(head, "content-length:") : NULL;
        INTAKE_MUST(strncmp(head, "HTTP/1.1 200", 12) == 0 ? KVB_OK : KVB_BAD_INPUT);
        channel->expected = length ? (size_t)(end + 4 - head) +
                                         strtoull(length + strlen("content-length:"), NULL, 10)
                                   : 0;
    }
    return channel->expected > 0 && text->len >= channel->expected;
}

static void load_http(struct load *load)
{
    static struct channel channels[rate_in_flight];
    struct pollfd fds[rate_in_flight];

    for (size_t i = 0; i < rate_in_flight; i++) {
        INTAKE_MUST(web_open(&channels[i].web, load->responder->port) ? KVB_OK : KVB_IO);
        fds[i] = (struct pollfd){ .fd = channels[i].web.fd, .events = POLLIN };
        ask_on_channel(load, &channels[i]);
    }
    while (load->in_flight > 0) { /* terminates: each answer arrives, or the program fails */
        INTAKE_MUST(poll(fds, rate_in_flight, answer_ms) > 0 ? KVB_OK : KVB_IO);
        for (size_t i = 0; i < rate_in_flight; i++) {
            if (!fds[i].revents || !read_channel(&channels[i])) {
                continue;
            }
            load->in_flight--;
            if (is_over(load)) {
                fds[i].fd = -1;
            } else {
                ask_on_channel(load, &channels[i]);
            }
        }
    }
    for (size_t i = 0; i < rate_in_flight; i++) {
        web_close(&channels[i].web);
    }
}

#define ANSWERS "bench.rate.answers"

static void ask_over_nats(struct load *load)
{
    const kvb_span body = kvb_buf_span(&load->questions->bodies[next_question(load)]);

    INTAKE_MUST(kvb_bus_publish_request(load->bus, load->responder->subject, ANSWERS, body));
}

static void take_rate_answer(void *context, const struct kvb_bus_message *message)
{
    struct load *load = context;

    INTAKE_MUST(message->payload.len > 0 ? KVB_OK : KVB_BAD_INPUT);
    load->in_flight--;
    if (!is_over(load)) {
        ask_over_nats(load);
    }
    if (kvb_bus_waiting(message) == 0) {
        kvb_bus_write(load->bus);
    }
}

static bool has_ended(void *context)
{
    const struct load *load = context;

    return is_over(load) && load->in_flight == 0;
}

static bool is_rate_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

static void load_nats(struct load *load, const struct scene *scene, double seconds)
{
    const struct kvb_bus_options options = { .url = scene->server.url, .name = "router" };
    struct kvb_detail detail = { { 0 } };

    INTAKE_MUST(kvb_bus_open(&options, &load->bus, &detail));
    INTAKE_MUST(wait_until(is_rate_connected, load->bus, answer_ms) ? KVB_OK : KVB_IO);
    INTAKE_MUST(kvb_bus_subscribe(load->bus, ANSWERS, take_rate_answer, load, &load->answers));
    INTAKE_MUST(kvb_bus_flush(load->bus, answer_ms)); /* now it is subscribed */
    for (size_t i = 0; i < rate_in_flight; i++) {
        ask_over_nats(load);
    }
    kvb_bus_write(load->bus);
    INTAKE_MUST(
        wait_until(has_ended, load, (uint32_t)(seconds * 1e3) + answer_ms) ? KVB_OK : KVB_IO);
    kvb_bus_unsubscribe(load->answers);
    kvb_bus_close(load->bus);
}

/* ---- In turns ---- */

struct rates {
    const struct scene *scene;
    const struct questions *questions;
    enum asking_way way;
    const struct responder *responders[2]; /* ours, theirs */
    double seconds;                        /* of a turn */
};

static kvb_status take_rate(void *context, size_t side, double out_numbers[bench_max_numbers])
{
    const struct rates *rates = context;
    const struct responder *responder = rates->responders[side];
    const uint64_t begin_ns = kvb_clock_monotonic_ns();
    const uint64_t cpu_ns = process_cpu_ns(responder->pid);
    struct load load = { .questions = rates->questions,
                         .responder = responder,
                         .end_ns = begin_ns + (uint64_t)(rates->seconds * (double)KVB_NS_PER_S) };

    if (rates->way == ASK_HTTP) {
        load_http(&load);
    } else {
        load_nats(&load, rates->scene, rates->seconds);
    }
    out_numbers[0] = (double)(process_cpu_ns(responder->pid) - cpu_ns) / 1e3 / (double)load.asked;
    bench_progress(
        "%s: %.0f answers a second, %.1f us each", side == 0 ? "ours" : "echo",
        (double)load.asked / rates->seconds, out_numbers[0]);
    return KVB_OK;
}

void rate_measure(
    const struct scene *scene, const struct questions *questions, enum asking_way way,
    const struct responder *ours, const struct responder *theirs, const char *row, double seconds)
{
    static struct bench_turns turns;
    struct rates rates = { .scene = scene,
                           .questions = questions,
                           .way = way,
                           .responders = { ours, theirs },
                           .seconds = seconds / (2 * rate_rounds) };
    cpu_set_t all;
    cpu_set_t one;
    cpu_set_t others;

    INTAKE_MUST(sched_getaffinity(0, sizeof all, &all) == 0 ? KVB_OK : KVB_IO);
    divide(&all, &one, &others);
    pin(ours->pid, &one);
    pin(theirs->pid, &one);
    pin(getpid(), &others);
    pin(scene->server.pid, &others);
    turns = (struct bench_turns){
        .sides = 2, .rounds = rate_rounds, .take = take_rate, .context = &rates
    };
    INTAKE_MUST(bench_take_turns(&turns));
    pin(ours->pid, &all);
    pin(getpid(), &all);
    pin(scene->server.pid, &all);
    bench_figure_turns(
        row, &turns,
        &(struct bench_versus){ .theirs = 1, .against = "echo", .is_less_better = true }, "us");
}
