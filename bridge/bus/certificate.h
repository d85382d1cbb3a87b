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

/* Whether the file has a private key that is not encrypted, and that of the certificate. */
kvb_status
kvb_private_key_check(const char *path, const char *certificate_path, struct kvb_detail *detail);

/* A certificate of ours that is in use. */
struct kvb_certificate {
    const char *room;
    const char *key; /* of the configuration: "nats.cert_file" */
    const char *file;
    uint64_t end_s; /* since 1970 */
};

/* Logs once for each certificate that it ends within 7 days.  *said_end_s: the end of the one of
 * which that was said; 0 at first.  Threads: the caller locks. */
void kvb_certificate_warn(
    struct kvb_log *log, const struct kvb_certificate *certificate, uint64_t *said_end_s);
