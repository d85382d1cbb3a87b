#include "kvbridge/checkpoint_store.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* One part of a checkpoint may consist of several sections; they share a buffer. */
enum { max_buffer_bytes = kvb_max_checkpoint_section_bytes, path_bytes = 80 };

/* While the system has no thread for the work. */
static const uint64_t retry_ns = 100 * KVB_NS_PER_MS;

struct kvb_checkpoint_store {
    int directory_fd;
    struct kvb_job *job; /* owned; has the files written */

    /* Used by the owner while is_full is false, by the job's work while it is true. */
    struct kvb_buf buf;
    struct kvb_checkpoint_name name;
    unsigned parts;

    /* Used by the work only. */
    int file_fd; /* -1: no file is being written */
    kvb_status status;
    struct kvb_detail detail;

    pthread_mutex_t lock; /* protects all below; also held for every rename */
    pthread_cond_t changed;
    bool is_full;
    bool is_void; /* the checkpoint being written was voided: do not keep it */
    bool is_directory_changed;
    bool has_outcome;
    kvb_status outcome;
    struct kvb_detail outcome_detail;
};

/* ---- Names ---- */

struct kvb_checkpoint_name
kvb_checkpoint_name_of(uint64_t home, uint64_t worker_id, uint32_t dp_rank)
{
    struct kvb_checkpoint_name name;

    (void)snprintf(
        name.text, sizeof name.text, "%016" PRIx64 "-%" PRIu64 "-%" PRIu32, home, worker_id,
        dp_rank);
    return name;
}

static const char *
path_of(char path[path_bytes], const struct kvb_checkpoint_name *name, const char *suffix)
{
    (void)snprintf(path, path_bytes, "%s%s", name->text, suffix);
    return path;
}

/* ---- Writing: the work of the job ---- */

static void fail_write(struct kvb_checkpoint_store *store, const char *what)
{
    if (store->status == KVB_OK) {
        store->status = KVB_IO;
        kvb_detail_set(&store->detail, "cannot %s: %s", what, strerrordesc_np(errno));
    }
}

static void begin_file(struct kvb_checkpoint_store *store)
{
    char path[path_bytes];

    if (store->file_fd >= 0) {
        (void)close(store->file_fd); /* a checkpoint that was never finished */
    }
    store->status = KVB_OK;
    /* O_NOFOLLOW: a link of that name must not lead the writing out of the directory. */
    store->file_fd = openat(
        store->directory_fd, path_of(path, &store->name, ".new"),
        O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (store->file_fd < 0) {
        fail_write(store, "create a checkpoint file");
    }
}

static void write_checkpoint_part(struct kvb_checkpoint_store *store)
{
    const uint8_t *from = store->buf.data;
    size_t left = store->buf.len;

    while (left > 0 && store->status == KVB_OK) {
        const ssize_t written = write(store->file_fd, from, left);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            fail_write(store, "write a checkpoint");
            return;
        }
        from += written;
        left -= (size_t)written;
    }
}

/* Renames NAME.new to NAME.  The lock keeps kvb_checkpoint_store_void() from running between the
 * check of is_void and the rename.  The old file is held open during the rename, because freeing
 * its blocks takes milliseconds: close() does that after the lock is released. */
static void put_file_in_place(struct kvb_checkpoint_store *store)
{
    char from[path_bytes];
    char to[path_bytes];
    const int old_fd =
        openat(store->directory_fd, path_of(to, &store->name, ""), O_PATH | O_NOFOLLOW | O_CLOEXEC);

    /* The work renames under the same lock: it sees is_void, or its file is in place and is
     * moved. */
    (void)pthread_mutex_lock(&store->lock);
    if (store->is_void && store->status == KVB_OK) {
        store->status = KVB_CLOSED;
    }
    if (store->status == KVB_OK && renameat(
                                       store->directory_fd, path_of(from, &store->name, ".new"),
                                       store->directory_fd, path_of(to, &store->name, "")) != 0) {
        fail_write(store, "rename a checkpoint file");
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (old_fd >= 0) {
        (void)close(old_fd); /* O_PATH: close cannot report a write error */
    }
    if (store->status != KVB_OK) {
        (void)unlinkat(store->directory_fd, path_of(from, &store->name, ".new"), 0);
    }
}

static void end_file(struct kvb_checkpoint_store *store)
{
    char path[path_bytes];

    if (store->status == KVB_OK && fsync(store->file_fd) != 0) {
        fail_write(store, "flush a checkpoint to the disk");
    }
    if (store->file_fd >= 0) {
        (void)close(store->file_fd); /* fsync has reported any error */
        store->file_fd = -1;
    }
    /* After the data: a crash leaves the old file or the whole new one under NAME, never a part. */
    put_file_in_place(store);
    /* The predecessor that was voided, if the sweep has not met it yet. */
    (void)unlinkat(store->directory_fd, path_of(path, &store->name, ".void"), 0);
    if (store->status == KVB_OK && fsync(store->directory_fd) != 0) {
        fail_write(store, "flush the checkpoint directory to the disk");
    }
}

/* Writes the part in the buffer, and gives the buffer back. */
static void write_buffer(struct kvb_checkpoint_store *store)
{
    const bool is_last = store->parts & KVB_CHECKPOINT_LAST;

    if (store->parts & KVB_CHECKPOINT_FIRST) {
        begin_file(store);
    }
    write_checkpoint_part(store);
    if (is_last) {
        end_file(store);
    }
    (void)pthread_mutex_lock(&store->lock);
    if (is_last) {
        store->has_outcome = true;
        store->outcome = store->status;
        store->outcome_detail = store->detail;
    }
    /* Together with the outcome: the owner takes a free buffer for the end of the writing. */
    store->is_full = false;
    (void)pthread_cond_broadcast(&store->changed);
    (void)pthread_mutex_unlock(&store->lock);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t len = strlen(text);

    return len > strlen(end) && strcmp(text + len - strlen(end), end) == 0;
}

/* Files that nobody will read: voided checkpoints, unfinished ones of streams that have left, and
 * tokens, which 0.1 kept in files of their own.  The one that is being written stays. */
static bool is_rubbish(const char *name, const char *being_written)
{
    return ends_with(name, ".void") || ends_with(name, ".tokens") ||
           (ends_with(name, ".new") && strcmp(name, being_written) != 0);
}

/* Deleting a large file takes milliseconds, so the owner does not do it. */
static void sweep_old_files(struct kvb_checkpoint_store *store)
{
    const int fd = openat(store->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    char being_written[path_bytes];

    if (!directory) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return; /* tried again after the next checkpoint is voided */
    }
    /* The owner may push the first part of another checkpoint meanwhile: its file is made after
     * this, by the same thread. */
    (void)pthread_mutex_lock(&store->lock);
    (void)path_of(being_written, &store->name, ".new");
    (void)pthread_mutex_unlock(&store->lock);
    /* glibc's readdir() is safe when each thread has a DIR of its own. */
    for (const struct dirent *entry;
         (entry = readdir(directory));) { /* NOLINT(concurrency-mt-unsafe) */
        if (is_rubbish(entry->d_name, being_written)) {
            (void)unlinkat(store->directory_fd, entry->d_name, 0);
        }
    }
    (void)closedir(directory);
}

/* All that there is to do, on a thread that ends with it. */
static void work_for_store(void *context)
{
    struct kvb_checkpoint_store *store = context;

    (void)pthread_mutex_lock(&store->lock);
    while (store->is_full || store->is_directory_changed) {
        const bool is_directory_changed = store->is_directory_changed;
        store->is_directory_changed = false;
        (void)pthread_mutex_unlock(&store->lock);
        if (is_directory_changed) { /* first: what is void must stay so after a crash */
            (void)fsync(store->directory_fd);
            sweep_old_files(store);
        } else {
            write_buffer(store);
        }
        (void)pthread_mutex_lock(&store->lock);
    }
    (void)pthread_mutex_unlock(&store->lock);
}

static uint64_t store_turn(void *context, uint64_t now_ns)
{
    struct kvb_checkpoint_store *store = context;

    (void)pthread_mutex_lock(&store->lock);
    /* What comes after this look wakes the job again. */
    const bool has_work = store->is_full || store->is_directory_changed;
    (void)pthread_mutex_unlock(&store->lock);
    if (!has_work || kvb_job_is_working(store->job)) {
        return UINT64_MAX; /* the end of the work brings another turn */
    }
    return kvb_job_work(store->job, work_for_store) == KVB_OK ? UINT64_MAX : now_ns + retry_ns;
}

/* ---- Writing: the owner ---- */

struct kvb_buf *kvb_checkpoint_store_room(struct kvb_checkpoint_store *store)
{
    (void)pthread_mutex_lock(&store->lock);
    const bool is_full = store->is_full;
    (void)pthread_mutex_unlock(&store->lock);
    if (is_full) {
        return NULL;
    }
    kvb_buf_reset(&store->buf);
    return &store->buf;
}

struct kvb_buf *kvb_checkpoint_store_wait(struct kvb_checkpoint_store *store)
{
    (void)pthread_mutex_lock(&store->lock);
    while (store->is_full) {
        (void)pthread_cond_wait(&store->changed, &store->lock);
    }
    (void)pthread_mutex_unlock(&store->lock);
    kvb_buf_reset(&store->buf);
    return &store->buf;
}

void kvb_checkpoint_store_push(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name, unsigned parts)
{
    (void)pthread_mutex_lock(&store->lock);
    store->name = *name;
    store->parts = parts;
    /* A new checkpoint begins unvoided; a further part does not forget that it was voided. */
    store->is_void = store->is_void && !(parts & KVB_CHECKPOINT_FIRST);
    store->is_full = true;
    (void)pthread_mutex_unlock(&store->lock);
    kvb_job_wake(store->job);
}

kvb_status
kvb_checkpoint_store_take_outcome(struct kvb_checkpoint_store *store, struct kvb_detail *out_detail)
{
    kvb_status outcome = KVB_AGAIN;

    (void)pthread_mutex_lock(&store->lock);
    if (store->has_outcome) {
        outcome = store->outcome;
        *out_detail = store->outcome_detail;
        store->has_outcome = false;
    }
    (void)pthread_mutex_unlock(&store->lock);
    return outcome;
}

void kvb_checkpoint_store_void(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name)
{
    char from[path_bytes];
    char to[path_bytes];

    (void)pthread_mutex_lock(&store->lock);
    store->is_void |= strcmp(store->name.text, name->text) == 0;
    /* on failure there is no such file or no directory, so the next process finds none either */
    const bool is_moved = renameat(
                              store->directory_fd, path_of(from, name, ""), store->directory_fd,
                              path_of(to, name, ".void")) == 0;
    store->is_directory_changed |= is_moved;
    (void)pthread_mutex_unlock(&store->lock);
    if (is_moved) {
        kvb_job_wake(store->job);
    }
}

/* ---- The directory ---- */

static kvb_status open_directory(const char *directory, int *out_fd, struct kvb_detail *detail)
{
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        kvb_detail_set(
            detail, "checkpoint: %s: %s: create the directory, or set checkpoint = \"\"", directory,
            strerrordesc_np(errno));
        return KVB_BAD_CONFIG;
    }
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        kvb_detail_set(
            detail, "checkpoint: %s: %s: let the daemon's user write there", directory,
            strerrordesc_np(errno));
        (void)close(fd);
        return KVB_BAD_CONFIG;
    }
    *out_fd = fd;
    return KVB_OK;
}

kvb_status kvb_checkpoint_directory_check(const char *directory, struct kvb_detail *detail)
{
    int fd = -1;
    struct stat about;

    KVB_TRY(open_directory(directory, &fd, detail));
    const bool is_open_to_all = fstat(fd, &about) == 0 && (about.st_mode & S_IWOTH) != 0;
    (void)close(fd);
    if (is_open_to_all) {
        kvb_detail_set(
            detail,
            "checkpoint: %s: every user may replace the files in it: chmod o-w that directory",
            directory);
    }
    return is_open_to_all ? KVB_BAD_CONFIG : KVB_OK;
}

bool kvb_checkpoint_directory_may_come(const char *directory)
{
    char parent[PATH_MAX];
    struct stat about;

    size_t len = strlen(directory);

    if (len >= sizeof parent || stat(directory, &about) == 0 || errno != ENOENT) {
        return false;
    }
    while (len > 0 && directory[len - 1] == '/') {
        len--;
    }
    while (len > 0 && directory[len - 1] != '/') {
        len--;
    }
    memcpy(parent, directory, len); /* without the last part */
    parent[len] = '\0';
    return stat(parent, &about) == 0 && S_ISDIR(about.st_mode);
}

/* The kernel releases the lock when the process ends, also after a crash. */
static kvb_status lock_directory(int fd, const char *directory, struct kvb_detail *detail)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return KVB_OK;
    }
    /* Read before anything else can change errno. */
    const bool is_held = errno == EWOULDBLOCK;
    kvb_detail_set(
        detail, "checkpoint: %s: %s: give each kvbridge a directory of its own", directory,
        is_held ? "another process uses it" : strerrordesc_np(errno));
    return is_held ? KVB_AGAIN : KVB_IO;
}

kvb_status kvb_checkpoint_store_open(
    struct kvb_control *control, const char *directory, struct kvb_checkpoint_store **out_store,
    struct kvb_detail *detail)
{
    struct kvb_checkpoint_store *store = calloc(1, sizeof *store);
    const struct kvb_job_options job = { .turn = store_turn, .context = store };

    if (!store) {
        return KVB_NO_MEMORY;
    }
    store->directory_fd = -1;
    store->file_fd = -1;
    kvb_buf_init(&store->buf, max_buffer_bytes);
    (void)pthread_mutex_init(&store->lock, NULL); /* neither fails without attributes */
    (void)pthread_cond_init(&store->changed, NULL);
    kvb_status status = open_directory(directory, &store->directory_fd, detail);
    if (status == KVB_OK) {
        status = lock_directory(store->directory_fd, directory, detail);
    }
    if (status == KVB_OK) {
        status = kvb_job_add(control, &job, &store->job);
    }
    if (status != KVB_OK) {
        kvb_checkpoint_store_close(store);
        return status;
    }
    *out_store = store;
    return KVB_OK;
}

void kvb_checkpoint_store_close(struct kvb_checkpoint_store *store)
{
    if (!store) {
        return;
    }
    kvb_job_remove(store->job);
    work_for_store(store); /* what the job has not begun */
    if (store->file_fd >= 0) {
        (void)close(store->file_fd);
    }
    if (store->directory_fd >= 0) {
        (void)close(store->directory_fd);
    }
    (void)pthread_cond_destroy(&store->changed);
    (void)pthread_mutex_destroy(&store->lock);
    kvb_buf_done(&store->buf);
    free(store);
}

/* ---- Reading ---- */

kvb_status kvb_checkpoint_file_open(
    struct kvb_checkpoint_store *store, const struct kvb_checkpoint_name *name,
    struct kvb_checkpoint_file *out_file)
{
    struct stat about;

    /* O_NONBLOCK: opening a FIFO of that name must not block the start */
    const int fd =
        openat(store->directory_fd, name->text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? KVB_NOT_FOUND : KVB_IO;
    }
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        (void)close(fd);
        return KVB_IO;
    }
    out_file->fd = fd;
    return KVB_OK;
}

void kvb_checkpoint_file_close(struct kvb_checkpoint_file *file)
{
    (void)close(file->fd);
}

static kvb_status read_file(void *context, void *to, size_t bytes)
{
    const struct kvb_checkpoint_file *file = context;
    uint8_t *at = to;

    while (bytes > 0) {
        const ssize_t got = read(file->fd, at, bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? KVB_IO : KVB_NOT_FOUND;
        }
        at += got;
        bytes -= (size_t)got;
    }
    return KVB_OK;
}

struct kvb_checkpoint_source kvb_checkpoint_file_source(struct kvb_checkpoint_file *file)
{
    return (struct kvb_checkpoint_source){ .read = read_file, .context = file };
}
