#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_http_access;

/* TLS of the gRPC server, by GnuTLS as that of HTTP: 1.2 or 1.3, with ALPN "h2" (RFC 9113 section
 * 3.2), on sockets that do not block.
 *
 *     shake() --KVB_AGAIN: wait for the socket--> shake() --KVB_OK--> read(), write() --> close()
 *        |
 *        +--KVB_BAD_INPUT: refused; the client was sent an alert
 *
 * Each connection uses the certificate of daemon/http_access.h that is the newest when it comes,
 * and is refused without one of its own where that demands it.  A client that does not offer "h2"
 * is refused before the server signs anything.  There is no resumption and no renegotiation.
 *
 * GnuTLS reads no record ahead: as long as has_pending() is false, what was not read is in the
 * socket, and epoll reports it.
 *
 * Threads: one server and its connections belong to one thread.
 * Memory:  some 40 KiB for a connection; a handshake message has at most
 *          kvb_grpc_tls_message_bytes. */
struct kvb_grpc_tls_server;

/* The TLS side of one connection. */
struct kvb_grpc_tls;

enum { kvb_grpc_tls_message_bytes = 32 << 10 };

/* How a handshake ended. */
enum kvb_grpc_handshake {
    KVB_GRPC_HANDSHAKE_OK,
    KVB_GRPC_HANDSHAKE_ALPN, /* the client does not offer "h2" */
    KVB_GRPC_HANDSHAKE_OTHER /* not TLS, an old version, or the client refused ours */
};

/* access: borrowed until kvb_grpc_tls_server_free().  KVB_NO_MEMORY */
kvb_status
kvb_grpc_tls_server_new(struct kvb_http_access *access, struct kvb_grpc_tls_server **out_server);

/* NULL is fine.  No connection may be left. */
void kvb_grpc_tls_server_free(struct kvb_grpc_tls_server *server);

/* fd is the caller's, and does not block.  KVB_NO_MEMORY */
kvb_status
kvb_grpc_tls_new(struct kvb_grpc_tls_server *server, int fd, struct kvb_grpc_tls **out_tls);

/* NULL is fine. */
void kvb_grpc_tls_free(struct kvb_grpc_tls *tls);

/* Goes on with the handshake.
 * KVB_AGAIN      call again when the socket can be read, or written (wants_write())
 * KVB_BAD_INPUT  refused; kvb_grpc_tls_handshake() says why
 * KVB_IO         the client is gone */
kvb_status kvb_grpc_tls_shake(struct kvb_grpc_tls *tls);

/* What the handshake waits for. */
bool kvb_grpc_tls_wants_write(const struct kvb_grpc_tls *tls);

/* How the handshake ended, and in words of GnuTLS, which are static. */
enum kvb_grpc_handshake kvb_grpc_tls_handshake(const struct kvb_grpc_tls *tls);
const char *kvb_grpc_tls_reason(const struct kvb_grpc_tls *tls);

/* Reads one record at most; size: 16 KiB or more.
 * KVB_AGAIN  nothing is there   KVB_CLOSED  the client has ended it   KVB_IO  it is broken */
kvb_status
kvb_grpc_tls_read(struct kvb_grpc_tls *tls, uint8_t *bytes, size_t size, size_t *out_len);

/* True when a record was received of which read() has not returned everything. */
bool kvb_grpc_tls_has_pending(const struct kvb_grpc_tls *tls);

/* Sends a part of the bytes.  After KVB_AGAIN the next call must begin with the same bytes.
 * KVB_IO  it is broken */
kvb_status kvb_grpc_tls_write(struct kvb_grpc_tls *tls, kvb_span bytes, size_t *out_sent);

/* Tells the client that nothing follows, as far as that can be sent at once. */
void kvb_grpc_tls_close(struct kvb_grpc_tls *tls);
