#pragma once

#include "core/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* Notices that files have changed.
 *
 *     directory of the file, and of what it links to --inotify, SIGIO--> no more for 200 ms
 *                                                                            |
 *     every 10 s: file systems that report nothing, such as NFS -----------> stat of each file
 *
 * Directories are watched and not the files, because a new file is renamed into the place of the
 * old one: by editors, and by Kubernetes, whose ConfigMaps are links that all change at once
 * (kvbridge.cfg -> ..data/kvbridge.cfg, ..data -> ..2026_11_23).
 *
 * A file is another one when its inode, size or time of change differs.  One that is missing is
 * unchanged: it is on its way.
 *
 * Threads: only the main thread, which has SIGIO blocked (kvb_daemon_block_signals). */

enum { kvb_max_watched_files = 2 };

struct kvb_file_watch {
    int fd; /* of inotify; owned; -1: there is none, and only the 10 s count */
    size_t count;
    struct {
        const char *path; /* borrowed */
        struct stat seen;
    } files[kvb_max_watched_files];
    uint64_t compare_ns; /* the files are compared then; 0: nothing is watched */
};

/* The time as file systems write it: the clock at the newest tick of the kernel. */
struct timespec kvb_file_watch_now(void);

/* Watches these files from now on, and no others; the paths are borrowed until the next call.
 * since: kvb_file_watch_now() before they were read: what changed later counts as a change.  What
 * inotify refuses is logged. */
void kvb_file_watch_set(
    struct kvb_file_watch *watch, const char *const *paths, size_t count, struct timespec since,
    struct kvb_log *log);

void kvb_file_watch_close(struct kvb_file_watch *watch);

/* After SIGIO. */
void kvb_file_watch_take_events(struct kvb_file_watch *watch, uint64_t now_ns);

/* True once after each change of a file. */
bool kvb_file_watch_has_changed(struct kvb_file_watch *watch, uint64_t now_ns);

/* When kvb_file_watch_has_changed() is to be called; UINT64_MAX: nothing is watched. */
uint64_t kvb_file_watch_due_ns(const struct kvb_file_watch *watch);
