#pragma once

#include "core/log.h"
#include "core/status.h"

#include <stdint.h>

/* Certificates and private keys in files, as PEM.
 *
 * Threads: any thread.
 *
 * Errors: KVB_BAD_CONFIG, and detail names the file and the remedy. */

/* When the first certificate of a file ends, in seconds since 1970. */
kvb_status kvb_certificate_end(const char *path, int64_t *out_unix_s, struct kvb_detail *detail);

/* How a certificate stands: later states are worse. */
enum kvb_certificate_state {
    KVB_CERTIFICATE_LASTS,
    KVB_CERTIFICATE_ENDS_SOON, /* within 7 days */
    KVB_CERTIFICATE_ENDED
};

enum kvb_certificate_state kvb_certificate_state(int64_t end_s, int64_t now_s);

/* Whether the file has a private key that is not encrypted, and that of the certificate. */
kvb_status
kvb_private_key_check(const char *path, const char *certificate_path, struct kvb_detail *detail);

/* A certificate of ours that is in use. */
struct kvb_certificate {
    const char *room;
    const char *key; /* of the configuration: "nats.cert_file" */
    const char *file;
    int64_t end_s; /* since 1970 */
};

/* What the log says already: of the certificate that ends then, the worst of its states.  {0} at
 * first. */
struct kvb_certificate_notice {
    int64_t end_s;
    enum kvb_certificate_state state;
};

/* Logs each bad state of each certificate once.  Threads: the caller locks. */
void kvb_certificate_warn(
    struct kvb_log *log, const struct kvb_certificate *certificate,
    struct kvb_certificate_notice *said);
