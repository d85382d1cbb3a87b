#include "grpc/tls.h"

#include "core/own.h"
#include "daemon/http_access.h"

#include <gnutls/gnutls.h>
#include <stdlib.h>

struct kvb_grpc_tls_server {
    struct kvb_http_access *access; /* borrowed */
    gnutls_priority_t versions;
};

struct kvb_grpc_tls {
    struct kvb_grpc_tls_server *server; /* borrowed */
    gnutls_session_t session;
    struct kvb_http_tls *files; /* a reference: the newest, when the client connected */
    int error;                  /* with which the handshake ended; 0: none */
};

/* ---- What GnuTLS calls during a handshake ---- */

/* GNUTLS_ALPN_MANDATORY refuses a client whose offer lacks "h2", but not one that offers
 * nothing. */
static int check_client_hello(gnutls_session_t session)
{
    gnutls_datum_t protocol = { 0 };

    return gnutls_alpn_get_selected_protocol(session, &protocol) == 0
               ? 0
               : GNUTLS_E_NO_APPLICATION_PROTOCOL;
}

/* ---- The server ---- */

kvb_status
kvb_grpc_tls_server_new(struct kvb_http_access *access, struct kvb_grpc_tls_server **out_server)
{
    static const char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    struct kvb_grpc_tls_server *server = calloc(1, sizeof *server);

    if (!server) {
        return KVB_NO_MEMORY;
    }
    server->access = access;
    if (gnutls_priority_init(&server->versions, versions, NULL) < 0) {
        kvb_grpc_tls_server_free(server);
        return KVB_NO_MEMORY;
    }
    *out_server = server;
    return KVB_OK;
}

void kvb_grpc_tls_server_free(struct kvb_grpc_tls_server *server)
{
    if (!server) {
        return;
    }
    if (server->versions) {
        gnutls_priority_deinit(server->versions);
    }
    free(server);
}

/* ---- One connection ---- */

static kvb_status set_up_session(struct kvb_grpc_tls *tls, int fd)
{
    const struct kvb_grpc_tls_server *server = tls->server;
    unsigned char name[] = "h2";
    const gnutls_datum_t protocol = { .data = name, .size = sizeof name - 1 };
    gnutls_session_t session = tls->session;

    if (gnutls_priority_set(session, server->versions) < 0 ||
        kvb_http_tls_use(tls->files, session) != KVB_OK ||
        gnutls_alpn_set_protocols(session, &protocol, 1, GNUTLS_ALPN_MANDATORY) < 0) {
        return KVB_NO_MEMORY;
    }
    gnutls_transport_set_int(session, fd);
    /* The longest that a client sends is the chain of its certificate. */
    gnutls_handshake_set_max_packet_length(session, kvb_grpc_tls_message_bytes);
    gnutls_handshake_set_post_client_hello_function(session, check_client_hello);
    return KVB_OK;
}

kvb_status
kvb_grpc_tls_new(struct kvb_grpc_tls_server *server, int fd, struct kvb_grpc_tls **out_tls)
{
    struct kvb_grpc_tls *tls = calloc(1, sizeof *tls);

    if (!tls) {
        return KVB_NO_MEMORY;
    }
    /* The reference keeps what the session uses, whatever is loaded meanwhile. */
    tls->server = server;
    tls->files = kvb_http_access_tls(server->access);
    kvb_status status = KVB_NO_MEMORY;
    if (gnutls_init(
            &tls->session,
            GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS) == 0) {
        status = set_up_session(tls, fd);
    }
    if (status != KVB_OK) {
        kvb_grpc_tls_free(tls);
        return status;
    }
    *out_tls = tls;
    return KVB_OK;
}

void kvb_grpc_tls_free(struct kvb_grpc_tls *tls)
{
    if (!tls) {
        return;
    }
    if (tls->session) {
        gnutls_deinit(tls->session);
    }
    kvb_http_tls_drop(tls->files);
    free(tls);
}

kvb_status kvb_grpc_tls_shake(struct kvb_grpc_tls *tls)
{
    const int error = gnutls_handshake(tls->session);

    if (error == GNUTLS_E_SUCCESS || !gnutls_error_is_fatal(error)) {
        return error == GNUTLS_E_SUCCESS ? KVB_OK : KVB_AGAIN;
    }
    tls->error = error;
    /* Nobody is there who could read an alert. */
    if (error == GNUTLS_E_PREMATURE_TERMINATION || error == GNUTLS_E_PULL_ERROR ||
        error == GNUTLS_E_PUSH_ERROR) {
        return KVB_IO;
    }
    (void)gnutls_alert_send_appropriate(tls->session, error); /* else the client sees the end */
    return KVB_BAD_INPUT;
}

bool kvb_grpc_tls_wants_write(const struct kvb_grpc_tls *tls)
{
    return gnutls_record_get_direction(tls->session) == 1;
}

enum kvb_grpc_handshake kvb_grpc_tls_handshake(const struct kvb_grpc_tls *tls)
{
    return tls->error == GNUTLS_E_SUCCESS                   ? KVB_GRPC_HANDSHAKE_OK
           : tls->error == GNUTLS_E_NO_APPLICATION_PROTOCOL ? KVB_GRPC_HANDSHAKE_ALPN
                                                            : KVB_GRPC_HANDSHAKE_OTHER;
}

const char *kvb_grpc_tls_reason(const struct kvb_grpc_tls *tls)
{
    const char *reason = gnutls_strerror(tls->error);

    return reason ? reason : "unknown";
}

/* ---- Bytes ---- */

/* A client that requests another handshake (TLS 1.2) ends the connection. */
static kvb_status status_of_record(ssize_t result)
{
    return result == GNUTLS_E_REHANDSHAKE             ? KVB_IO
           : result == GNUTLS_E_PREMATURE_TERMINATION ? KVB_CLOSED
           : gnutls_error_is_fatal((int)result) == 0  ? KVB_AGAIN
                                                      : KVB_IO;
}

kvb_status kvb_grpc_tls_read(struct kvb_grpc_tls *tls, uint8_t *bytes, size_t size, size_t *out_len)
{
    const ssize_t len = gnutls_record_recv(tls->session, bytes, size);

    if (len <= 0) {
        return len == 0 ? KVB_CLOSED : status_of_record(len);
    }
    *out_len = (size_t)len;
    return KVB_OK;
}

bool kvb_grpc_tls_has_pending(const struct kvb_grpc_tls *tls)
{
    return gnutls_record_check_pending(tls->session) > 0;
}

kvb_status kvb_grpc_tls_write(struct kvb_grpc_tls *tls, kvb_span bytes, size_t *out_sent)
{
    const ssize_t sent = gnutls_record_send(tls->session, bytes.data, bytes.len);

    if (sent < 0) {
        return status_of_record(sent);
    }
    *out_sent = (size_t)sent;
    return KVB_OK;
}

void kvb_grpc_tls_close(struct kvb_grpc_tls *tls)
{
    (void)gnutls_bye(tls->session, GNUTLS_SHUT_WR); /* the socket's end follows */
}
