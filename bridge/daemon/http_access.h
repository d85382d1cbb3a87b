#pragma once

#include "core/log.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "daemon/http_tls.h"

#include <stdbool.h>
#include <stdint.h>

/* Who may send a request: TLS, client certificates and bearer tokens of a listener.  HTTP has all
 * of it; gRPC has certificates, and all of its requests are KVB_HTTP_GUARDED.
 *
 *     rule of the path        what a request must carry
 *     KVB_HTTP_OPEN           nothing
 *     KVB_HTTP_GUARDED        the token of token_file, if configured; a certificate that
 *                             client_ca_file has signed, if configured
 *     KVB_HTTP_OF_METRICS     the same, or nothing with open_metrics
 *     KVB_HTTP_OF_REGISTER    the token of register.token_file; a certificate as above
 *
 * Certificates, the key and the token of token_file are read at the start, and again when a file
 * has changed.  When the new files cannot be used, this is logged, the loaded ones stay in use, and
 * each refresh reads the files again until they can be used.  The token to register is read for
 * each request; an error in reading it is logged once.
 *
 * Threads: any. */
struct kvb_http_access;

/* A path without a rule is KVB_HTTP_GUARDED. */
enum kvb_http_rule { KVB_HTTP_GUARDED, KVB_HTTP_OPEN, KVB_HTTP_OF_METRICS, KVB_HTTP_OF_REGISTER };

enum kvb_http_verdict {
    KVB_HTTP_GRANTED,
    KVB_HTTP_NO_CERTIFICATE,
    KVB_HTTP_NO_TOKEN, /* missing or wrong */
    KVB_HTTP_REGISTER_DISABLED,
    KVB_HTTP_REGISTER_UNREADABLE,
    KVB_HTTP_VERDICT_COUNT
};

struct kvb_http_access_options {
    enum kvb_listener listener;               /* names the keys and the room in errors and logs */
    const struct kvb_http_security *security; /* borrowed until the end, like the next two */
    const char *register_token_file;          /* "" or NULL: none */
    struct kvb_log *log;
};

/* *out_key: the configuration key at fault.
 * KVB_BAD_CONFIG  a file cannot be used; detail says why   KVB_NO_MEMORY */
kvb_status kvb_http_access_new(
    const struct kvb_http_access_options *options, struct kvb_http_access **out_access,
    const char **out_key, struct kvb_detail *detail);

/* NULL is fine. */
void kvb_http_access_free(struct kvb_http_access *access);

/* True when a guarded path requires a token or a client certificate. */
bool kvb_http_access_is_guarded(const struct kvb_http_access *access);
bool kvb_http_access_is_tls(const struct kvb_http_access *access);

/* Reads the files again when one of them has changed, when they were rejected, or with is_forced.
 * Threads: only one, the same for the next. */
void kvb_http_access_refresh(struct kvb_http_access *access, bool is_forced);

/* True while the newest files cannot be used and older ones stay in use. */
bool kvb_http_access_is_rejected(const struct kvb_http_access *access);

/* The authority of client certificates at the start, as PEM, borrowed; NULL: none.  Not const,
 * because libmicrohttpd expects a void *. */
char *kvb_http_access_client_ca(const struct kvb_http_access *access);

/* The newest files, for a handshake.  There must be TLS.  The caller drops the reference when the
 * session is freed. */
struct kvb_http_tls *kvb_http_access_tls(struct kvb_http_access *access);

/* Decides about one request.  session: NULL without TLS.  *verified is 0 for a new connection; it
 * caches that the client's certificate was verified, until the files are read again. */
enum kvb_http_verdict kvb_http_access_check(
    struct kvb_http_access *access, enum kvb_http_rule rule, const char authorization[],
    gnutls_session_t session, uint32_t *verified);
