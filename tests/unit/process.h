#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Programs that a test starts, and waiting for what they do.
 *
 * Nothing here sleeps for a fixed time: every wait ends when its condition holds,
 * or fails at its deadline.  Threads: only the thread that made it. */

/* True when the condition holds; context is the test's. */
typedef bool (*condition)(void *context);

/* Waits for the condition. False when it did not hold within timeout_ms. */
bool wait_until(condition holds, void *context, uint32_t timeout_ms);

/* Starts a program from PATH or /usr/sbin. argv ends with NULL. stdout and stderr go to the file
 * log_path, or to those of this process when it is NULL. The program is killed when the thread that
 * started it ends. A program that does not exist ends with 127. */
kvb_status process_start(const char *const argv[], const char *log_path, pid_t *out_pid);

/* Sends a signal (0: none) and waits for the end; SIGKILL after timeout_ms.
 * *out_exit is the exit status, or 128 + the signal that ended it. */
kvb_status process_end(pid_t pid, int signal, uint32_t timeout_ms, int *out_exit);

/* True once, when the process has ended, with its exit status; false in later calls. */
bool process_has_ended(pid_t pid, int *out_exit);

/* Makes an empty folder below /tmp; removes it with everything in it. */
kvb_status folder_make(char out_path[64]);
void folder_remove(const char *path);

/* Reads a whole small file and NUL-terminates it. KVB_NOT_FOUND, KVB_TOO_LARGE. */
kvb_status file_read(const char *path, char *out, size_t size);

/* A real nats-server on a given port, or on one that it chooses itself. */
struct nats_server {
    pid_t pid;
    uint16_t port;
    char folder[64];
    char url[64];
};

/* Returns when the server listens. port 0: any. config: further lines of its configuration; NULL
 * for none. */
kvb_status nats_server_start(struct nats_server *server, uint16_t port, const char *config);

/* Sends SIGKILL. The struct keeps the port, so nats_server_start() can start it there again. */
void nats_server_kill(struct nats_server *server);

/* Setup and teardown of a cmocka group: the state of each test is a struct nats_server that
 * listens. */
int nats_server_for_group(void **state);
int nats_server_after_group(void **state);

/* A TCP port on 127.0.0.1 where nobody listens at the moment. */
kvb_status free_port(uint16_t *out_port);
