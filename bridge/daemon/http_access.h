#pragma once

#include "core/log.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "daemon/http_tls.h"

#include <stdbool.h>
#include <stdint.h>

/* Who may send a request: TLS and bearer tokens of a listener.  gRPC has TLS alone.
 *
 *     rule of the path        what a request must carry
 *     KVB_HTTP_OPEN           nothing
 *     KVB_HTTP_GUARDED        the token of token_file, if configured
 *     KVB_HTTP_OF_METRICS     the same, or nothing with open_metrics
 *     KVB_HTTP_OF_REGISTER    the token of register.token_file
 *
 * Certificate, key and the token of token_file are read at the start, and at each reload.  When the
 * new files cannot be used, this is logged, and the loaded ones stay in use.  The token to register
 * is read for each request; an error in reading it is logged once.
 *
 * Threads: any. */
struct kvb_http_access;

/* A path without a rule is KVB_HTTP_GUARDED. */
enum kvb_http_rule { KVB_HTTP_GUARDED, KVB_HTTP_OPEN, KVB_HTTP_OF_METRICS, KVB_HTTP_OF_REGISTER };

enum kvb_http_verdict {
    KVB_HTTP_GRANTED,
    KVB_HTTP_NO_TOKEN, /* missing or wrong */
    KVB_HTTP_REGISTER_DISABLED,
    KVB_HTTP_REGISTER_UNREADABLE,
    KVB_HTTP_VERDICT_COUNT
};

/* True: clients must speak TLS. */
bool kvb_http_security_is_tls(const struct kvb_http_security *security);

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

/* True when a guarded path requires a token. */
bool kvb_http_access_is_guarded(const struct kvb_http_access *access);
bool kvb_http_access_is_tls(const struct kvb_http_access *access);

/* Reads all files again.  New handshakes use the new certificate, and the next request of each
 * connection needs the new token. */
void kvb_http_access_reload(struct kvb_http_access *access);

/* The newest files, for a handshake.  There must be TLS.  The caller drops the reference when the
 * session is freed. */
struct kvb_http_tls *kvb_http_access_tls(struct kvb_http_access *access);

/* Decides about one request. */
enum kvb_http_verdict kvb_http_access_check(
    struct kvb_http_access *access, enum kvb_http_rule rule, const char authorization[]);
