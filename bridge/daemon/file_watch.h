#pragma once

#include "core/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Detects that files have changed.
 *
 *     directory of the file, and of its link's target --inotify, SIGIO--> quiet for 200 ms
 *                                                                            |
 *     every 10 s: file systems that report nothing, such as NFS -----------> stat of each file
 *
 * The directories are watched instead of the files, because editors rename a new file to the
 * old name.  Kubernetes does so, too: the files of a ConfigMap are links through one directory
 * link, which it replaces (kvbridge.cfg -> ..data/kvbridge.cfg, ..data -> ..2026_11_23).
 *
 * A file has changed when its device, inode, size or modification time differs.  A missing file
 * counts as unchanged, because it is probably being replaced.
 *
 * Threads: only the main thread, which has SIGIO blocked (kvb_daemon_block_signals). */

enum { kvb_max_watched_files = 2 };

struct kvb_file_watch {
    int fd; /* of inotify; owned; -1: none, only the check every 10 s */
    size_t count;
    struct {
        const char *path; /* borrowed */
        struct stat seen;
    } files[kvb_max_watched_files];
    uint64_t compare_ns; /* when the files are compared next; 0: nothing is watched */
};

/* The time with which file systems stamp files: the realtime clock at the kernel's newest tick. */
struct timespec kvb_file_watch_now(void);

/* Watches only these files from now on; the paths are borrowed until the next call.
 * since: kvb_file_watch_now() before the caller read them; a later modification counts as a change.
 * Logs when inotify cannot be used. */
void kvb_file_watch_set(
    struct kvb_file_watch *watch, const char *const *paths, size_t count, struct timespec since,
    struct kvb_log *log);

void kvb_file_watch_close(struct kvb_file_watch *watch);

/* Call it after SIGIO. */
void kvb_file_watch_take_events(struct kvb_file_watch *watch, uint64_t now_ns);

/* True once after each change of a file. */
bool kvb_file_watch_has_changed(struct kvb_file_watch *watch, uint64_t now_ns);

/* When to call kvb_file_watch_has_changed(); UINT64_MAX: nothing is watched. */
uint64_t kvb_file_watch_due_ns(const struct kvb_file_watch *watch);
