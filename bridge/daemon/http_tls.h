#pragma once

#include "core/status.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>

/* The TLS files of a server, read as PEM: its certificate chain and key, and who signs those of its
 * clients.  Or a certificate that signs itself, made here; its key is on no disk.
 *
 * Connections refer to the one of their handshake, so that it can be replaced while older ones
 * continue.  It is freed with its last reference.
 *
 * Threads: constant once loaded, and the references are counted atomically: any thread.
 * Memory:  at most kvb_http_tls_file_bytes for each file. */
struct kvb_http_tls;

enum { kvb_http_tls_file_bytes = 256 << 10, kvb_http_tls_max_chain = 8 };

struct kvb_http_tls_files {
    const char *cert_file;      /* the server's certificate, then those that signed it */
    const char *key_file;       /* not readable by other users */
    bool is_self_signed;        /* instead of these two: P-256, valid for 10 years */
    const char *client_ca_file; /* clients must show a certificate that one of these signed; "":
                                   they need none */
};

/* Which of the files is at fault. */
enum kvb_http_tls_fault { KVB_HTTP_TLS_CERT, KVB_HTTP_TLS_KEY, KVB_HTTP_TLS_CLIENT_CA };

/* On KVB_OK the caller has a reference, and drops it with kvb_http_tls_drop().
 * KVB_BAD_CONFIG  a file cannot be read or is not valid PEM, or the key belongs to another
 *                 certificate; *out_fault and detail say which
 * KVB_NO_MEMORY */
kvb_status kvb_http_tls_load(
    const struct kvb_http_tls_files *files, struct kvb_http_tls **out_tls,
    enum kvb_http_tls_fault *out_fault, struct kvb_detail *detail);

/* One reference more; returns tls. */
struct kvb_http_tls *kvb_http_tls_ref(struct kvb_http_tls *tls);

/* One reference less.  NULL is fine. */
void kvb_http_tls_drop(struct kvb_http_tls *tls);

/* The chain and the key for a handshake, borrowed from tls until the session is freed.  GnuTLS must
 * not free them (no GNUTLS_CERT_RETR_DEINIT_ALL). */
void kvb_http_tls_show(
    struct kvb_http_tls *tls, gnutls_pcert_st **out_chain, unsigned *out_count,
    gnutls_privkey_t *out_key);

/* Has a session use the files, and check its client where client_ca_file says so.  tls is kept
 * until the session is freed.  KVB_NO_MEMORY */
kvb_status kvb_http_tls_use(const struct kvb_http_tls *tls, gnutls_session_t session);
