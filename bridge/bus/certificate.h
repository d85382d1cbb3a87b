#pragma once

#include "core/status.h"

/* Certificates and private keys in files, as PEM.
 *
 * Threads: any thread.
 *
 * Errors: KVB_BAD_CONFIG, and detail names the file and the remedy. */

/* Checks that the file begins with a certificate. */
kvb_status kvb_certificate_check(const char *path, struct kvb_detail *detail);

/* Checks that the file contains an unencrypted private key, which belongs to the certificate. */
kvb_status
kvb_private_key_check(const char *path, const char *certificate_path, struct kvb_detail *detail);
