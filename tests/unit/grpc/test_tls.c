#include "daemon/http_access.h"
#include "grpc/tls.h"

#include "fail_alloc.h"
#include "kvb_test.h"

#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { max_turns = 1000, record_bytes = 16 << 10 };

/* ---- A server and a client, on the two ends of a socket ---- */

struct scene {
    struct kvb_http_security security;
    struct kvb_http_access *access;
    struct kvb_grpc_tls_server *server;
    struct kvb_grpc_tls *tls;
    int fds[2]; /* the server's, the client's */
    gnutls_session_t client;
    gnutls_certificate_credentials_t credentials;
    int client_error; /* with which its handshake ended */
};

static void begin(struct scene *scene)
{
    const struct kvb_http_access_options options = { .listener = KVB_LISTENER_GATEWAY,
                                                     .security = &scene->security };
    struct kvb_detail detail = { .text = "" };
    const char *key = "";

    memset(scene, 0, sizeof *scene);
    scene->security.is_self_signed = true;
    assert_ok(kvb_http_access_new(&options, &scene->access, &key, &detail));
    assert_ok(kvb_grpc_tls_server_new(scene->access, &scene->server));
}

static void connect_sockets(struct scene *scene)
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, scene->fds), 0);
    assert_ok(kvb_grpc_tls_new(scene->server, scene->fds[0], &scene->tls));
}

/* protocol: offered by ALPN; NULL: none. */
static void connect_client(struct scene *scene, const char *protocol)
{
    char text[16] = "";

    connect_sockets(scene);
    assert_int_equal(gnutls_certificate_allocate_credentials(&scene->credentials), 0);
    assert_int_equal(
        gnutls_init(&scene->client, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL), 0);
    assert_int_equal(gnutls_set_default_priority(scene->client), 0);
    assert_int_equal(
        gnutls_credentials_set(scene->client, GNUTLS_CRD_CERTIFICATE, scene->credentials), 0);
    gnutls_transport_set_int(scene->client, scene->fds[1]);
    if (protocol) {
        (void)snprintf(text, sizeof text, "%s", protocol);
        const gnutls_datum_t offer = { (unsigned char *)text, (unsigned)strlen(text) };
        assert_int_equal(gnutls_alpn_set_protocols(scene->client, &offer, 1, 0), 0);
    }
}

/* Both sides in turn, until the server's ends. */
static kvb_status shake_both(struct scene *scene)
{
    kvb_status status = KVB_AGAIN;

    scene->client_error = GNUTLS_E_AGAIN;
    for (int i = 0; i < max_turns && status == KVB_AGAIN; i++) {
        if (scene->client_error == GNUTLS_E_AGAIN) {
            scene->client_error = gnutls_handshake(scene->client);
        }
        status = kvb_grpc_tls_shake(scene->tls);
    }
    for (int i = 0; i < max_turns && scene->client_error == GNUTLS_E_AGAIN; i++) {
        scene->client_error = gnutls_handshake(scene->client);
    }
    return status;
}

static void disconnect(struct scene *scene)
{
    kvb_grpc_tls_free(scene->tls);
    if (scene->client) {
        gnutls_deinit(scene->client);
        gnutls_certificate_free_credentials(scene->credentials);
    }
    (void)close(scene->fds[0]);
    (void)close(scene->fds[1]); /* may be closed */
    scene->tls = NULL;
    scene->client = NULL;
}

static void end(struct scene *scene)
{
    kvb_grpc_tls_server_free(scene->server);
    kvb_http_access_free(scene->access);
}

/* ---- Tests ---- */

static void bytes_cross_in_both_directions_until_the_end(void **state)
{
    struct scene scene;
    static uint8_t bytes[record_bytes];
    size_t len = 0;

    (void)state;
    begin(&scene);
    connect_client(&scene, "h2");
    assert_ok(shake_both(&scene));
    assert_int_equal(scene.client_error, 0);
    assert_int_equal(kvb_grpc_tls_handshake(scene.tls), KVB_GRPC_HANDSHAKE_OK);
    assert_int_equal(kvb_grpc_tls_read(scene.tls, bytes, sizeof bytes, &len), KVB_AGAIN);
    assert_int_equal(gnutls_record_send(scene.client, "ping", 4), 4);
    assert_ok(kvb_grpc_tls_read(scene.tls, bytes, sizeof bytes, &len));
    assert_int_equal(len, 4);
    assert_memory_equal(bytes, "ping", 4);
    assert_false(kvb_grpc_tls_has_pending(scene.tls));
    assert_ok(kvb_grpc_tls_write(scene.tls, (kvb_span){ (const uint8_t *)"pong", 4 }, &len));
    assert_int_equal(len, 4);
    assert_int_equal(gnutls_record_recv(scene.client, bytes, sizeof bytes), 4);
    kvb_grpc_tls_close(scene.tls);
    assert_int_equal(gnutls_record_recv(scene.client, bytes, sizeof bytes), 0);
    assert_int_equal(gnutls_bye(scene.client, GNUTLS_SHUT_WR), 0);
    assert_int_equal(kvb_grpc_tls_read(scene.tls, bytes, sizeof bytes, &len), KVB_CLOSED);
    disconnect(&scene);
    end(&scene);
}

/* What is sent while the client does not read, arrives once and in order. */
static void a_full_socket_is_waited_for(void **state)
{
    enum { total = 4 << 20 };
    struct scene scene;
    uint8_t *sent = malloc(total);
    static uint8_t bytes[record_bytes];
    size_t done = 0;
    size_t received = 0;
    size_t waits = 0;
    size_t part = 0;

    (void)state;
    assert_non_null(sent);
    for (size_t i = 0; i < total; i++) {
        sent[i] = (uint8_t)(i * 7 + i / 251);
    }
    begin(&scene);
    connect_client(&scene, "h2");
    assert_ok(shake_both(&scene));
    while (received < total) { /* ends: one of both sides goes on */
        const kvb_span rest = { sent + done, total - done };
        const kvb_status status = rest.len ? kvb_grpc_tls_write(scene.tls, rest, &part) : KVB_AGAIN;
        if (status == KVB_OK) {
            done += part;
            continue;
        }
        assert_int_equal(status, KVB_AGAIN);
        waits++;
        const ssize_t len = gnutls_record_recv(scene.client, bytes, sizeof bytes);
        if (len > 0) {
            assert_memory_equal(bytes, sent + received, (size_t)len);
            received += (size_t)len;
        }
    }
    assert_true(waits > 0 && done == total);
    disconnect(&scene);
    end(&scene);
    free(sent);
}

static void a_client_that_does_not_offer_h2_is_refused(void **state)
{
    static const char *const offers[] = { NULL, "http/1.1" };
    struct scene scene;

    (void)state;
    begin(&scene);
    for (size_t i = 0; i < 2; i++) {
        connect_client(&scene, offers[i]);
        assert_int_equal(shake_both(&scene), KVB_BAD_INPUT);
        assert_int_equal(kvb_grpc_tls_handshake(scene.tls), KVB_GRPC_HANDSHAKE_ALPN);
        assert_int_equal(scene.client_error, GNUTLS_E_FATAL_ALERT_RECEIVED);
        assert_int_equal(gnutls_alert_get(scene.client), GNUTLS_A_NO_APPLICATION_PROTOCOL);
        disconnect(&scene);
    }
    end(&scene);
}

static void survives_every_allocation_failing(void **state)
{
    struct scene scene;
    struct kvb_grpc_tls_server *server = NULL;
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    begin(&scene);
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = kvb_grpc_tls_server_new(scene.access, &server);
        fail_alloc_after(-1);
    }
    assert_ok(status);
    status = KVB_NO_MEMORY;
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = kvb_grpc_tls_new(server, 0, &scene.tls);
        fail_alloc_after(-1);
    }
    assert_ok(status);
    kvb_grpc_tls_free(scene.tls);
    kvb_grpc_tls_server_free(server);
    end(&scene);
}

SUITE(tls)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_cross_in_both_directions_until_the_end),
        cmocka_unit_test(a_full_socket_is_waited_for),
        cmocka_unit_test(a_client_that_does_not_offer_h2_is_refused),
        cmocka_unit_test(survives_every_allocation_failing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
