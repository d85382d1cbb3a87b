#include "name_server.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    max_asked = 1024,
    name_bytes = 256,
    packet_bytes = 512,
    header_bytes = 12,
    type_a = 1,
    type_aaaa = 28,
    code_servfail = 2,
    code_nxdomain = 3,
};

struct name_server {
    int fd;
    const struct name_row *rows;
    pthread_t thread;
    pthread_mutex_t lock;
    size_t count;
    char asked[max_asked][name_bytes];
};

/* ---- Namespaces ---- */

static bool raise_loopback(void)
{
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = { .ifr_flags = IFF_UP | IFF_RUNNING };

    (void)snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
    const bool is_up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return is_up;
}

/* Mounts an empty file of the test over this file. */
static bool hide_file(const char *path)
{
    char own[] = "/tmp/kvb-name-XXXXXX";
    const int fd = mkstemp(own);
    const bool is_hidden = fd >= 0 && mount(own, path, NULL, MS_BIND, NULL) == 0;

    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(own);
    }
    return is_hidden;
}

bool name_server_isolate(void)
{
    const int spaces = CLONE_NEWNS | CLONE_NEWNET;

    if (unshare(spaces) != 0 && unshare(spaces | CLONE_NEWUSER) != 0) {
        return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && raise_loopback() &&
           hide_file("/etc/resolv.conf") && hide_file("/etc/hosts");
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

void name_server_settings(const char *resolv_conf, const char *hosts)
{
    write_file("/etc/resolv.conf", resolv_conf);
    write_file("/etc/hosts", hosts);
}

/* ---- Questions and answers, RFC 1035 ---- */

/* The name of the question; returns the length of the question. */
static size_t read_name(const uint8_t *packet, size_t len, char out_name[name_bytes])
{
    size_t at = header_bytes;
    size_t out = 0;

    while (at < len && packet[at] != 0 && out + packet[at] + 1 < name_bytes) {
        if (out > 0) {
            out_name[out++] = '.';
        }
        memcpy(out_name + out, packet + at + 1, packet[at]);
        out += packet[at];
        at += packet[at] + 1U;
    }
    out_name[out] = '\0';
    return at + 5 - header_bytes; /* the root label, type, class */
}

static bool is_name_of(const struct name_row *row, const char *name)
{
    const char *end = row->name + 1;

    return row->name[0] != '*'           ? strcasecmp(row->name, name) == 0
           : strlen(name) >= strlen(end) ? strcasecmp(name + strlen(name) - strlen(end), end) == 0
                                         : false;
}

static const struct name_row *find_row(const struct name_server *server, const char *name)
{
    for (const struct name_row *row = server->rows; row->name; row++) {
        if (is_name_of(row, name)) {
            return row;
        }
    }
    return NULL;
}

/* Returns the length of the record; 0 when the name has no address of this type. */
static size_t write_record(const struct name_row *row, uint8_t type, uint8_t *out)
{
    const bool is_ipv6 = strchr(row->address, ':') != NULL;
    const uint8_t head[] = { 0xc0, header_bytes,    0, type, 0, 1, 0, 0, 0, 1, /* TTL in seconds */
                             0,    is_ipv6 ? 16 : 4 };

    if (row->address[0] == '\0' || type != (is_ipv6 ? type_aaaa : type_a)) {
        return 0;
    }
    memcpy(out, head, sizeof head);
    assert_int_equal(inet_pton(is_ipv6 ? AF_INET6 : AF_INET, row->address, out + sizeof head), 1);
    return sizeof head + head[11];
}

static size_t answer(const struct name_row *row, uint8_t *packet, size_t question_bytes)
{
    const uint8_t type = packet[header_bytes + question_bytes - 3];
    size_t len = header_bytes + question_bytes;
    size_t record = 0;
    uint8_t code = row ? 0 : code_nxdomain;

    if (row && (row->manner == name_fails || (row->manner == name_half_fails && type == type_a))) {
        code = code_servfail;
    } else if (row) {
        record = write_record(row, type, packet + len);
    }
    packet[2] = 0x81;
    packet[3] = 0x80 | code;
    memset(packet + 6, 0, 6);
    packet[7] = record > 0;
    return len + record;
}

static void *serve(void *context)
{
    struct name_server *server = context;
    uint8_t packet[packet_bytes];
    struct sockaddr_in from;

    for (;;) {
        socklen_t from_len = sizeof from;
        const ssize_t len =
            recvfrom(server->fd, packet, sizeof packet / 2, 0, (struct sockaddr *)&from, &from_len);
        if (len <= header_bytes) {
            return NULL; /* the empty packet that name_server_stop() sends */
        }
        (void)pthread_mutex_lock(&server->lock);
        char *name = server->asked[server->count % max_asked];
        const size_t question_bytes = read_name(packet, (size_t)len, name);
        const struct name_row *row = find_row(server, name);
        server->count++;
        (void)pthread_mutex_unlock(&server->lock);
        if (!row || row->manner != name_silent) {
            const size_t size = answer(row, packet, question_bytes);
            (void)sendto(server->fd, packet, size, 0, (struct sockaddr *)&from, from_len);
        }
    }
}

struct name_server *name_server_start(const char *address, const struct name_row *rows)
{
    struct name_server *server = calloc(1, sizeof *server);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(53) };

    assert_non_null(server);
    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    server->rows = rows;
    server->fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(bind(server->fd, (struct sockaddr *)&at, sizeof at), 0);
    (void)pthread_mutex_init(&server->lock, NULL);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
    return server;
}

void name_server_stop(struct name_server *server)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;

    assert_int_equal(getsockname(server->fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(sendto(server->fd, "", 1, 0, (struct sockaddr *)&at, len), 1);
    (void)pthread_join(server->thread, NULL);
    (void)close(server->fd);
    (void)pthread_mutex_destroy(&server->lock);
    free(server);
}

size_t name_server_asked(struct name_server *server, const char *name)
{
    size_t count = 0;

    (void)pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < server->count && i < max_asked; i++) {
        count += !name || strcasecmp(server->asked[i], name) == 0;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return count;
}
