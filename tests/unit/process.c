#include "process.h"

#include "core/clock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { poll_ms = 2, path_bytes = 512, max_words = 32 };

static void pause_shortly(void)
{
    const struct timespec pause = { .tv_nsec = poll_ms * (long)KVB_NS_PER_MS };

    (void)nanosleep(&pause, NULL); /* a signal may shorten it: the caller checks again */
}

bool wait_until(condition holds, void *context, uint32_t timeout_ms)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + timeout_ms * KVB_NS_PER_MS;

    while (!holds(context)) {
        if (kvb_clock_monotonic_ns() >= end_ns) {
            return false;
        }
        pause_shortly();
    }
    return true;
}

/* ---- Programs --------------------------------------------------------------------- */

/* Debian keeps nats-server in /usr/sbin, which is not on everybody's PATH. */
static const char *program_path(const char *name, char path[path_bytes])
{
    (void)snprintf(path, path_bytes, "/usr/sbin/%s", name);
    return access(path, X_OK) == 0 ? path : name;
}

static kvb_status add_output(posix_spawn_file_actions_t *actions, const char *log_path)
{
    if (!log_path) {
        return KVB_OK;
    }
    if (posix_spawn_file_actions_addopen(
            actions, 1, log_path, O_WRONLY | O_CREAT | O_APPEND, 0600) != 0 ||
        posix_spawn_file_actions_adddup2(actions, 1, 2) != 0) {
        return KVB_NO_MEMORY;
    }
    return KVB_OK;
}

/* posix_spawnp() wants pointers that it may not write through. */
static char *const *as_argv(const char *const argv[])
{
    union {
        const char *const *ours;
        char *const *theirs;
    } both = { .ours = argv };

    return both.theirs;
}

kvb_status process_start(const char *const argv[], const char *log_path, pid_t *out_pid)
{
    /* setpriv(1) kills the program when this process ends, also when a test crashes. */
    const char *words[max_words + 5] = { "setpriv", "--pdeathsig", "KILL", "--" };
    posix_spawn_file_actions_t actions;
    char path[path_bytes];
    pid_t pid = 0;

    words[4] = program_path(argv[0], path);
    for (size_t i = 1; argv[i]; i++) {
        if (i == max_words) {
            return KVB_TOO_LARGE;
        }
        words[4 + i] = argv[i];
    }
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return KVB_NO_MEMORY;
    }
    kvb_status status = add_output(&actions, log_path);
    if (status == KVB_OK &&
        posix_spawnp(&pid, words[0], &actions, NULL, as_argv(words), environ) != 0) {
        status = KVB_IO;
    }
    posix_spawn_file_actions_destroy(&actions);
    KVB_TRY(status);
    *out_pid = pid;
    return KVB_OK;
}

bool process_has_ended(pid_t pid, int *out_exit)
{
    int status = 0;

    if (waitpid(pid, &status, WNOHANG) != pid) {
        return false;
    }
    *out_exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

struct ending {
    pid_t pid;
    int exit;
};

static bool has_ended(void *context)
{
    struct ending *ending = context;

    return process_has_ended(ending->pid, &ending->exit);
}

kvb_status process_end(pid_t pid, int signal, uint32_t timeout_ms, int *out_exit)
{
    struct ending ending = { .pid = pid };

    if (signal != 0 && kill(pid, signal) != 0) {
        return KVB_NOT_FOUND;
    }
    const bool in_time = wait_until(has_ended, &ending, timeout_ms);
    if (!in_time) {
        (void)kill(pid, SIGKILL); /* it may have ended just now */
        (void)waitpid(pid, NULL, 0);
        ending.exit = 128 + SIGKILL;
    }
    if (out_exit) {
        *out_exit = ending.exit;
    }
    return in_time ? KVB_OK : KVB_AGAIN;
}

/* ---- Files --------------------------------------------------------------------------- */

kvb_status folder_make(char out_path[64])
{
    char path[] = "/tmp/kvb-test-XXXXXX";

    if (!mkdtemp(path)) {
        return KVB_IO;
    }
    memcpy(out_path, path, sizeof path);
    return KVB_OK;
}

void folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    char file[path_bytes];

    if (!folder) {
        return;
    }
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread uses this folder */
    for (const struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            /* a subfolder that is not empty stays, and this folder with it: visible in /tmp */
            (void)remove(file);
        }
    }
    closedir(folder);
    (void)rmdir(path);
}

kvb_status file_read(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");

    if (!file) {
        return KVB_NOT_FOUND;
    }
    const size_t len = fread(out, 1, size, file);
    fclose(file);
    if (len == size) {
        return KVB_TOO_LARGE;
    }
    out[len] = '\0';
    return KVB_OK;
}

/* ---- nats-server ------------------------------------------------------------------------ */

enum { server_start_ms = 10000 };

/* Looks for {"nats":["nats://127.0.0.1:4222"], in the file that the server writes
 * when it listens; tls:// where it wants that. */
static bool has_port(void *context)
{
    struct nats_server *server = context;
    char path[path_bytes];
    char text[1024];

    (void)snprintf(path, sizeof path, "%s/nats-server_%d.ports", server->folder, server->pid);
    if (file_read(path, text, sizeof text) != KVB_OK) {
        return false;
    }
    const char *list = strstr(text, "\"nats\"");
    const char *host = list ? strstr(list, "://") : NULL;
    const char *colon = host ? strchr(host + strlen("://"), ':') : NULL;
    if (!colon) {
        return false;
    }
    server->port = (uint16_t)strtoul(colon + 1, NULL, 10);
    return server->port != 0;
}

static kvb_status write_config(const struct nats_server *server, const char *text, char path[])
{
    (void)snprintf(path, path_bytes, "%s/server.conf", server->folder);
    FILE *file = fopen(path, "we");
    if (!file) {
        return KVB_IO;
    }
    fputs(text ? text : "", file);
    return fclose(file) == 0 ? KVB_OK : KVB_IO;
}

kvb_status nats_server_start(struct nats_server *server, uint16_t port, const char *config)
{
    char port_text[16] = "-1";
    char config_path[path_bytes];
    char log_path[path_bytes];

    KVB_TRY(folder_make(server->folder));
    KVB_TRY(write_config(server, config, config_path));
    (void)snprintf(log_path, sizeof log_path, "%s/log", server->folder);
    if (port != 0) {
        (void)snprintf(port_text, sizeof port_text, "%u", port);
    }
    const char *const argv[] = { "nats-server",  "-c",      config_path, "-a", "127.0.0.1",
                                 "-p",           port_text, "-m",        "-1", "--ports_file_dir",
                                 server->folder, NULL };
    KVB_TRY(process_start(argv, log_path, &server->pid));
    if (!wait_until(has_port, server, server_start_ms)) {
        nats_server_kill(server);
        return KVB_IO;
    }
    (void)snprintf(server->url, sizeof server->url, "nats://127.0.0.1:%u", server->port);
    return KVB_OK;
}

void nats_server_kill(struct nats_server *server)
{
    if (server->pid > 0) {
        (void)process_end(server->pid, SIGKILL, server_start_ms, NULL);
        server->pid = 0;
    }
    folder_remove(server->folder);
}

int nats_server_for_group(void **state)
{
    static struct nats_server server;

    *state = &server;
    return nats_server_start(&server, 0, NULL) == KVB_OK ? 0 : -1;
}

int nats_server_after_group(void **state)
{
    nats_server_kill(*state);
    return 0;
}

static bool can_bind(uint16_t port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_bound =
        fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;

    if (fd >= 0) {
        close(fd);
    }
    return is_bound;
}

/* Below the kernel's range of ephemeral ports, so that no other socket gets this port by chance
 * between this call and its use. */
kvb_status free_port(uint16_t *out_port)
{
    enum { first_port = 10000, ports = 10000, tries = 100 };

    for (int i = 0; i < tries; i++) {
        uint16_t random = 0;
        if (getrandom(&random, sizeof random, 0) != sizeof random) {
            return KVB_IO;
        }
        const uint16_t port = (uint16_t)(first_port + random % ports);
        if (can_bind(port)) {
            *out_port = port;
            return KVB_OK;
        }
    }
    return KVB_IO;
}
