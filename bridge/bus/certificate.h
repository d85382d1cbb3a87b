#pragma once

#include "core/log.h"
#include "core/status.h"

#include <stdint.h>

/* Until when the first certificate of a PEM file is valid, in seconds since 1970.
 * Threads: any thread.
 * KVB_BAD_CONFIG  it cannot be read or contains no certificate; detail names the file
 * KVB_NO_MEMORY */
kvb_status kvb_certificate_end(const char *path, int64_t *out_unix_s, struct kvb_detail *detail);

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
