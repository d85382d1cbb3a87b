#include "core/log_writer.h"

#include "core/clock.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* The thread waits so long for another line before it ends. */
static const uint64_t linger_ns = KVB_NS_PER_S;

struct kvb_log_writer {
    int fd;         /* borrowed */
    int give_up_fd; /* owned; readable when the rest is given up */
    kvb_log_note *note;
    void *context;
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t filled;
    pthread_cond_t drained;
    struct kvb_thread thread; /* the one that runs, or ended last */
    bool has_thread;          /* it runs: it takes each line that is put now */
    bool is_stopping;
    bool is_writing;   /* the thread writes a line that it has taken from the ring */
    uint64_t dropped;  /* since the start */
    uint64_t reported; /* how many dropped lines were reported */
    size_t first;      /* offset of the oldest byte; lines follow each other, each "...\n" */
    size_t used;       /* bytes */
    char ring[kvb_log_ring_bytes];
};

void kvb_log_write_all(int fd, const char *text, size_t len)
{
    size_t done = 0;

    while (done < len) {
        /* A pipe takes a part of what does not fit. */
        const ssize_t wrote = write(fd, text + done, len - done);
        if (wrote < 0 && errno != EINTR) {
            return; /* the error cannot be reported anywhere */
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* ---- The ring; the caller locks ---- */

static void copy_in(struct kvb_log_writer *writer, const char *line, size_t len)
{
    const size_t at = (writer->first + writer->used) % kvb_log_ring_bytes;
    const size_t till_end = kvb_log_ring_bytes - at;
    const size_t head = len < till_end ? len : till_end;

    /* The ring's end cuts the line in two. */
    memcpy(writer->ring + at, line, head);
    memcpy(writer->ring, line + head, len - head);
    writer->used += len;
}

static size_t take_ring_line(struct kvb_log_writer *writer, char line[kvb_log_line_bytes])
{
    size_t len = 0;

    while (writer->used > 0 && len < kvb_log_line_bytes) {
        const char byte = writer->ring[writer->first];
        writer->first = (writer->first + 1) % kvb_log_ring_bytes;
        writer->used--;
        line[len++] = byte;
        if (byte == '\n') {
            break;
        }
    }
    return len;
}

/* Takes the next line from the ring.  When the ring is empty, makes the line with the number of
 * dropped lines.  Returns 0 when there is nothing to write. */
static size_t next_log_line(struct kvb_log_writer *writer, char line[kvb_log_line_bytes])
{
    if (writer->used > 0) {
        return take_ring_line(writer, line);
    }
    if (writer->dropped > writer->reported) {
        const uint64_t since = writer->dropped - writer->reported;
        writer->reported = writer->dropped;
        return writer->note(writer->context, since, line);
    }
    return 0;
}

/* ---- Its thread ---- */

/* Waits until write(2) of a line does not block.  A pipe that poll(2) calls writable has room for
 * PIPE_BUF bytes.  Returns false when the rest is given up. */
static bool wait_for_room(const struct kvb_log_writer *writer)
{
    struct pollfd ends[] = { { .fd = writer->fd, .events = POLLOUT },
                             { .fd = writer->give_up_fd, .events = POLLIN } };

    while (poll(ends, 2, -1) < 0) {
        if (errno != EINTR) {
            return true; /* write(2) will return the error */
        }
    }
    return ends[1].revents == 0;
}

/* False: none came for so long.  The lock is held. */
static bool wait_for_lines(struct kvb_log_writer *writer)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + linger_ns;
    const struct timespec until = { .tv_sec = (time_t)(until_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(until_ns % KVB_NS_PER_S) };
    int failed = 0;

    while (writer->used == 0 && !writer->is_stopping && !failed) {
        failed = pthread_cond_timedwait(&writer->filled, &writer->lock, &until);
    }
    return writer->used > 0;
}

static void *run_log_writer(void *context)
{
    struct kvb_log_writer *writer = context;
    char line[kvb_log_line_bytes];
    bool is_given_up = false;

    (void)pthread_setname_np(pthread_self(), "kvb-log"); /* only a name for top -H */
    pthread_mutex_lock(&writer->lock);
    while (!is_given_up) {
        const size_t len = next_log_line(writer, line);
        if (len > 0) {
            /* The line left the ring, so the lock is not needed while a slow reader takes it. */
            writer->is_writing = true;
            pthread_mutex_unlock(&writer->lock);
            is_given_up = !wait_for_room(writer);
            if (!is_given_up) {
                kvb_log_write_all(writer->fd, line, len);
            }
            pthread_mutex_lock(&writer->lock);
            writer->is_writing = false;
            continue;
        }
        /* All is written: a stop that waits may end. */
        pthread_cond_signal(&writer->drained);
        /* No line for a while, or the stop: the thread ends. */
        if (!wait_for_lines(writer)) {
            break;
        }
    }
    writer->has_thread = false; /* the next line starts another one */
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* Blocks all signals in the new thread, because the main thread waits for them.  The lock is held:
 * the thread before has let go of it for the last time.  Without a thread the lines wait, and the
 * next one tries again. */
static void start_log_thread(struct kvb_log_writer *writer)
{
    sigset_t all;
    sigset_t before;

    kvb_thread_join(&writer->thread);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    writer->has_thread = kvb_thread_start(&writer->thread, run_log_writer, writer) == KVB_OK;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- For its owner ---- */

static void destroy(struct kvb_log_writer *writer)
{
    (void)pthread_cond_destroy(&writer->drained);
    (void)pthread_cond_destroy(&writer->filled);
    (void)pthread_mutex_destroy(&writer->lock);
    (void)close(writer->give_up_fd);
    free(writer);
}

kvb_status
kvb_log_writer_start(int fd, kvb_log_note *note, void *context, struct kvb_log_writer **out_writer)
{
    struct kvb_log_writer *writer = calloc(1, sizeof *writer);

    if (!writer) {
        return KVB_NO_MEMORY;
    }
    writer->give_up_fd = eventfd(0, EFD_CLOEXEC);
    if (writer->give_up_fd < 0) {
        free(writer);
        return KVB_IO;
    }
    writer->fd = fd;
    writer->note = note;
    writer->context = context;
    (void)pthread_mutex_init(&writer->lock, NULL);
    kvb_cond_init_monotonic(&writer->filled);
    kvb_cond_init_monotonic(&writer->drained);
    *out_writer = writer;
    return KVB_OK;
}

static bool is_ring_drained(const struct kvb_log_writer *writer)
{
    return writer->used == 0 && !writer->is_writing && writer->dropped == writer->reported;
}

void kvb_log_writer_stop(struct kvb_log_writer *writer, uint64_t wait_ns)
{
    if (!writer) {
        return;
    }
    const uint64_t until_ns = kvb_clock_monotonic_ns() + wait_ns;
    const struct timespec until = { .tv_sec = (time_t)(until_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(until_ns % KVB_NS_PER_S) };
    int failed = 0;

    pthread_mutex_lock(&writer->lock);
    writer->is_stopping = true;
    pthread_cond_signal(&writer->filled);
    /* Without a thread nobody would signal. */
    while (!is_ring_drained(writer) && writer->has_thread && !failed) {
        failed = pthread_cond_timedwait(&writer->drained, &writer->lock, &until);
    }
    pthread_mutex_unlock(&writer->lock);
    /* The log is not read: the thread gives the rest up. */
    if (failed) {
        (void)eventfd_write(writer->give_up_fd, 1);
    }
    kvb_thread_join(&writer->thread);
    destroy(writer);
}

/* ---- For any thread ---- */

void kvb_log_writer_put(struct kvb_log_writer *writer, const char *line, size_t len)
{
    pthread_mutex_lock(&writer->lock);
    if (len > kvb_log_ring_bytes - writer->used) {
        /* A full ring drops the new line, because the older ones say how the trouble began. */
        writer->dropped++;
    } else {
        copy_in(writer, line, len);
        pthread_cond_signal(&writer->filled);
    }
    if (!writer->has_thread) {
        start_log_thread(writer);
    }
    pthread_mutex_unlock(&writer->lock);
}

uint64_t kvb_log_writer_dropped(struct kvb_log_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    const uint64_t dropped = writer->dropped;
    pthread_mutex_unlock(&writer->lock);
    return dropped;
}
