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

/* The states of a certificate, from good to bad. */
enum kvb_certificate_state {
    KVB_CERTIFICATE_LASTS,
    KVB_CERTIFICATE_ENDS_SOON, /* within 7 days */
    KVB_CERTIFICATE_ENDED
};

enum kvb_certificate_state kvb_certificate_state(int64_t end_s, int64_t now_s);

/* Checks that the file contains an unencrypted private key, which belongs to the certificate. */
kvb_status
kvb_private_key_check(const char *path, const char *certificate_path, struct kvb_detail *detail);

/* One of our own certificates. */
struct kvb_certificate {
    const char *room; /* which the log names */
    const char *key;  /* in the configuration, e.g. "nats.cert_file" */
    const char *file;
    int64_t end_s; /* since 1970 */
};

/* What was logged already: the worst state of the certificate that ends at end_s.  First {0}. */
struct kvb_certificate_notice {
    int64_t end_s;
    enum kvb_certificate_state state;
};

/* Logs each bad state of each certificate once.  Threads: the caller locks. */
void kvb_certificate_warn(
    struct kvb_log *log, const struct kvb_certificate *certificate,
    struct kvb_certificate_notice *said);
