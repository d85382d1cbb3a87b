#pragma once

#include "core/status.h"

#include <stddef.h>

/* Small files that hold a password, a token or a key.
 *
 * A file of a secret must be regular, and neither readable nor writable by users who are neither
 * its owner nor of its group: its group may be that of a daemon when root owns the file.
 * Symbolic links are followed, because mounted secrets of Kubernetes are links.
 *
 * Threads: any thread.
 *
 * Errors of all functions: KVB_BAD_CONFIG, and detail names the file and the remedy. */

enum kvb_file_access {
    KVB_FILE_PRIVATE,  /* as said above */
    KVB_FILE_OF_ANYONE /* certificates; tokens that Kubernetes mounts, which all may read */
};

/* The whole file; refused when empty or of `size` bytes or more.  out[*out_len] is 0.  out_len may
 * be NULL.  After a failure, out is as before or all 0. */
kvb_status kvb_secret_file_read(
    const char *path, enum kvb_file_access access, char *out, size_t size, size_t *out_len,
    struct kvb_detail *detail);

/* Its first line, without the line end.  Refused when the line is empty. */
kvb_status kvb_secret_file_read_line(
    const char *path, enum kvb_file_access access, char *out, size_t size,
    struct kvb_detail *detail);

/* Only whether it could be read, and is not empty. */
kvb_status
kvb_secret_file_check(const char *path, enum kvb_file_access access, struct kvb_detail *detail);
