#pragma once

#include "core/status.h"

#include <stddef.h>

/* Small files that hold a password, a token or a key.
 *
 * The file of a secret must be a regular file.  Only its owner and its group may be able to read or
 * write it.  The group may do so because root may own the file of a daemon.
 * Symbolic links are followed, because mounted secrets of Kubernetes are links.
 *
 * Threads: any thread.
 *
 * Errors of all functions: KVB_BAD_CONFIG, and detail names the file and the remedy. */

enum kvb_file_access {
    KVB_FILE_PRIVATE,  /* a secret, as above */
    KVB_FILE_OF_ANYONE /* certificates; tokens that Kubernetes mounts, which all may read */
};

/* Reads the whole file and adds a NUL.  Refuses a file that is empty or has `size` bytes or more.
 * out_len may be NULL.  After a failure, out is unchanged or all 0. */
kvb_status kvb_secret_file_read(
    const char *path, enum kvb_file_access access, char *out, size_t size, size_t *out_len,
    struct kvb_detail *detail);

/* Reads the first line, without the line end.  Refuses an empty line. */
kvb_status kvb_secret_file_read_line(
    const char *path, enum kvb_file_access access, char *out, size_t size,
    struct kvb_detail *detail);

/* Checks that the file can be opened for reading, is allowed, and is not empty. */
kvb_status
kvb_secret_file_check(const char *path, enum kvb_file_access access, struct kvb_detail *detail);
