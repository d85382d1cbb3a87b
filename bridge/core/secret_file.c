#include "core/secret_file.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void close_secret(const int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); /* no error matters: the file was only read */
    }
}

static kvb_status
check_secret(int fd, const char *path, enum kvb_file_access access, struct kvb_detail *detail)
{
    struct stat about;

    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        kvb_detail_set(detail, "%s is no regular file", path);
    } else if (access == KVB_FILE_PRIVATE && (about.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        kvb_detail_set(detail, "every user may read or write this secret: chmod o-rw %s", path);
    } else if (about.st_size == 0) {
        kvb_detail_set(detail, "%s is empty", path);
    } else {
        return KVB_OK;
    }
    return KVB_BAD_CONFIG;
}

/* Opens and checks the file.  Without O_NONBLOCK, opening a named pipe waits for its writer. */
static kvb_status
open_secret(const char *path, enum kvb_file_access access, int *out_fd, struct kvb_detail *detail)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        kvb_detail_set(detail, "cannot read %s: %s", path, strerrordesc_np(errno));
        return KVB_BAD_CONFIG;
    }
    const kvb_status status = check_secret(fd, path, access, detail);
    if (status == KVB_OK) {
        *out_fd = fd;
    } else {
        (void)close(fd); /* as in close_secret() */
    }
    return status;
}

kvb_status kvb_secret_file_read(
    const char *path, enum kvb_file_access access, char *out, size_t size, size_t *out_len,
    struct kvb_detail *detail)
{
    KVB_OWN(close_secret) int fd = -1;
    size_t len = 0;
    ssize_t got = 0;

    KVB_TRY(open_secret(path, access, &fd, detail));
    do {
        got = read(fd, out + len, size - len);
        len += got > 0 ? (size_t)got : 0;
    } while ((got > 0 && len < size) || (got < 0 && errno == EINTR));
    if (got >= 0 && len > 0 && len < size) {
        out[len] = '\0';
        if (out_len) {
            *out_len = len;
        }
        return KVB_OK;
    }
    /* No part of a secret remains where the caller expects none. */
    explicit_bzero(out, size);
    if (got < 0) {
        kvb_detail_set(detail, "cannot read %s: %s", path, strerrordesc_np(errno));
    } else if (len == size) {
        kvb_detail_set(detail, "%s is too long: at most %zu bytes", path, size - 1);
    } else {
        kvb_detail_set(detail, "%s is empty", path);
    }
    return KVB_BAD_CONFIG;
}

kvb_status kvb_secret_file_read_line(
    const char *path, enum kvb_file_access access, char *out, size_t size,
    struct kvb_detail *detail)
{
    size_t len = 0;

    KVB_TRY(kvb_secret_file_read(path, access, out, size, &len, detail));
    const size_t line = strcspn(out, "\r\n");
    /* The rest of the file may be secret as well. */
    explicit_bzero(out + line, len - line);
    if (line == 0) {
        kvb_detail_set(detail, "the first line of %s is empty", path);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

kvb_status
kvb_secret_file_check(const char *path, enum kvb_file_access access, struct kvb_detail *detail)
{
    KVB_OWN(close_secret) int fd = -1;

    return open_secret(path, access, &fd, detail);
}
