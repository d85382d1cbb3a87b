#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Programs that a test starts, and waiting for what they do.
 *
 * Nothing here sleeps for a fixed time: every wait ends when its condition holds,
 * or fails at its deadline.  Threads: only the thread that made it. */

/* True when what the test waits for has happened; context is the test's. */
typedef bool (*condition)(void *context);

/* False when it did not hold within timeout_ms. */
bool wait_until(condition holds, void *context, uint32_t timeout_ms);

/* Starts a program, found on PATH or in /usr/sbin, with argv closed by NULL; its
 * stdout and stderr go to the file log_path (NULL: to ours).  It is killed when the
 * thread that started it ends.  A program that is not there ends with 127. */
kvb_status process_start(const char *const argv[], const char *log_path, pid_t *out_pid);

/* Sends a signal (0: none) and waits for the end; SIGKILL after timeout_ms.
 * *out_exit is the exit status, or 128 + the signal that ended it. */
kvb_status process_end(pid_t pid, int signal, uint32_t timeout_ms, int *out_exit);

/* True once, when the process has ended, with how it ended; false in later calls. */
bool process_has_ended(pid_t pid, int *out_exit);

/* An empty folder below /tmp, and its removal with all that lies in it. */
kvb_status folder_make(char out_path[64]);
void folder_remove(const char *path);

/* A whole small file, NUL-terminated; KVB_NOT_FOUND, KVB_TOO_LARGE. */
kvb_status file_read(const char *path, char *out, size_t size);

/* A real nats-server on a port that it draws itself, or on a given one. */
struct nats_server {
    pid_t pid;
    uint16_t port;
    char folder[64];
    char url[64];
};

/* Returns when it listens.  port 0: any.  config: more of its configuration, as
 * text; NULL for none. */
kvb_status nats_server_start(struct nats_server *server, uint16_t port, const char *config);

/* SIGKILL; the port stays in the struct for nats_server_start(). */
void nats_server_kill(struct nats_server *server);

/* Before and after a group of cmocka's tests: the state of each is a struct nats_server that
 * listens. */
int nats_server_for_group(void **state);
int nats_server_after_group(void **state);

/* A TCP port on 127.0.0.1 where nobody listens just now. */
kvb_status free_port(uint16_t *out_port);
