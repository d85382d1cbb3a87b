#include "ingest/zmq/reader_watch.h"

#include "control/control.h"
#include "core/clock.h"
#include "ingest/zmq/connection.h"
#include "ingest/zmq/monitor.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { max_readers = 256, max_subscriptions = 1000 };

/* While somebody is connected; what a reader brings meanwhile is read before it is ended. */
static const uint64_t look_ns = 5 * KVB_NS_PER_MS;

/* While nobody is. */
static const uint64_t rest_ns = 10 * KVB_NS_PER_MS;

const int kvb_reader_watch_events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED;

struct reader {
    struct kvb_connection connection; /* fd -1: a free place */
    uint64_t since_ns;
    uint64_t subscriptions;
    bool is_sure; /* the monitor was read since it connected: the descriptor is this reader's */
};

struct kvb_watched_readers {
    struct kvb_watched_readers *next; /* owned by the watch */
    void *monitor;                    /* borrowed */
    uint64_t max_bytes;
    uint64_t bytes_a_second;
    uint64_t ended;
    size_t count; /* places in use, and free ones between them */
    struct reader readers[max_readers];
};

struct kvb_reader_watch {
    struct kvb_job *job;  /* owned */
    pthread_mutex_t lock; /* guards all below */
    struct kvb_watched_readers *first;
};

static void end_reader(struct kvb_watched_readers *of, struct reader *reader)
{
    of->ended += kvb_connection_end(&reader->connection);
    reader->connection = kvb_connection_none();
}

static struct reader *find_reader(struct kvb_watched_readers *of, int fd)
{
    for (size_t i = 0; i < of->count; i++) {
        if (of->readers[i].connection.fd == fd) {
            return &of->readers[i];
        }
    }
    return NULL;
}

/* A place for one more, which find_reader() finds as fd -1. */
static struct reader *free_place(struct kvb_watched_readers *of)
{
    struct reader *reader = find_reader(of, -1);

    if (!reader && of->count < max_readers) {
        reader = &of->readers[of->count++];
    }
    return reader;
}

static void follow_reader(struct kvb_watched_readers *of, uint16_t event, int fd, uint64_t now_ns)
{
    struct reader *reader = find_reader(of, fd);

    if (event == ZMQ_EVENT_DISCONNECTED) {
        if (reader) {
            reader->connection = kvb_connection_none();
        }
        return;
    }
    if (event != ZMQ_EVENT_ACCEPTED) {
        return; /* the monitor stopped */
    }
    /* A descriptor that is known is used again: the end of the earlier reader was not seen. */
    reader = reader ? reader : free_place(of);
    if (!reader) {
        struct reader extra = { .connection = kvb_connection_of(fd) };
        end_reader(of, &extra);
        return;
    }
    *reader = (struct reader){ .connection = kvb_connection_of(fd), .since_ns = now_ns };
}

static bool
is_above(const struct kvb_watched_readers *of, const struct reader *reader, uint64_t now_ns)
{
    const uint64_t age_s = (now_ns - reader->since_ns) / KVB_NS_PER_S;
    uint64_t bytes = 0;

    /* The count holds over ipc://, too, where the kernel counts no bytes. */
    return reader->subscriptions > max_subscriptions + age_s ||
           (kvb_connection_received(&reader->connection, &bytes) &&
            bytes > of->max_bytes + age_s * of->bytes_a_second);
}

/* True while somebody is connected. */
static bool look_at_readers(struct kvb_watched_readers *of, uint64_t now_ns)
{
    bool has_readers = false;
    uint16_t event = 0;
    int fd = -1;

    /* Events first: a reader that has left must not be judged by what its descriptor is now. */
    while (kvb_zmq_monitor_next(of->monitor, &event, &fd) == KVB_OK) {
        follow_reader(of, event, fd, now_ns);
    }
    for (size_t i = 0; i < of->count; i++) {
        struct reader *reader = &of->readers[i];
        if (reader->connection.fd < 0) {
            continue;
        }
        has_readers = true;
        if (reader->is_sure && is_above(of, reader, now_ns)) {
            end_reader(of, reader);
        }
        /* From the next look on, before which the monitor is read again. */
        reader->is_sure = true;
    }
    return has_readers;
}

static uint64_t watch_readers(void *context, uint64_t now_ns)
{
    struct kvb_reader_watch *watch = context;
    bool has_readers = false;

    (void)pthread_mutex_lock(&watch->lock);
    const bool has_sockets = watch->first != NULL;
    for (struct kvb_watched_readers *of = watch->first; of; of = of->next) {
        has_readers |= look_at_readers(of, now_ns);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return has_sockets ? now_ns + (has_readers ? look_ns : rest_ns) : UINT64_MAX;
}

kvb_status kvb_reader_watch_new(struct kvb_control *control, struct kvb_reader_watch **out_watch)
{
    struct kvb_reader_watch *watch = calloc(1, sizeof *watch);
    const struct kvb_job_options job = { .turn = watch_readers, .context = watch };

    if (!watch) {
        return KVB_NO_MEMORY;
    }
    (void)pthread_mutex_init(&watch->lock, NULL);
    const kvb_status status = kvb_job_add(control, &job, &watch->job);
    if (status != KVB_OK) {
        kvb_reader_watch_free(watch);
        return status;
    }
    *out_watch = watch;
    return KVB_OK;
}

void kvb_reader_watch_free(struct kvb_reader_watch *watch)
{
    if (!watch) {
        return;
    }
    kvb_job_remove(watch->job);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

kvb_status kvb_reader_watch_add(
    struct kvb_reader_watch *watch, void *monitor, uint64_t max_bytes, uint64_t bytes_a_second,
    struct kvb_watched_readers **out_readers)
{
    struct kvb_watched_readers *readers = calloc(1, sizeof *readers);

    if (!readers) {
        return KVB_NO_MEMORY;
    }
    readers->monitor = monitor;
    readers->max_bytes = max_bytes;
    readers->bytes_a_second = bytes_a_second;
    (void)pthread_mutex_lock(&watch->lock);
    readers->next = watch->first;
    watch->first = readers;
    (void)pthread_mutex_unlock(&watch->lock);
    /* Without sockets the job has slept without end. */
    kvb_job_wake(watch->job);
    *out_readers = readers;
    return KVB_OK;
}

void kvb_reader_watch_drop(struct kvb_reader_watch *watch, struct kvb_watched_readers *readers)
{
    if (!readers) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    /* When the lock is free again, no turn uses the monitor any more. */
    for (struct kvb_watched_readers **at = &watch->first; *at; at = &(*at)->next) {
        if (*at == readers) {
            *at = readers->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&watch->lock);
    free(readers);
}

void kvb_reader_watch_subscribed(
    struct kvb_reader_watch *watch, struct kvb_watched_readers *readers, int fd)
{
    (void)pthread_mutex_lock(&watch->lock);
    struct reader *reader = fd < 0 ? NULL : find_reader(readers, fd);
    if (reader) {
        reader->subscriptions++;
    }
    (void)pthread_mutex_unlock(&watch->lock);
}

uint64_t
kvb_reader_watch_take_ended(struct kvb_reader_watch *watch, struct kvb_watched_readers *readers)
{
    (void)pthread_mutex_lock(&watch->lock);
    const uint64_t ended = readers->ended;
    readers->ended = 0;
    (void)pthread_mutex_unlock(&watch->lock);
    return ended;
}
