#include "kvbridge/republish_numbers.h"

#include "core/hash.h"
#include "core/little_endian.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    at_magic = 0,
    at_version = 4,
    at_end = 8,
    at_boot = 16,
    at_exact = 24,
    at_hash = 32,
    file_bytes = 40,
    version = 1,
    magic = 0x4e42564b, /* "KVBN" */
    path_bytes = 4096
};

/* Batches that were numbered after the newest write that reached the disk before a crash of the
 * machine: seconds' worth.  Readers' numbers have room for 2^31 such jumps. */
static const uint64_t max_lost = UINT64_C(1) << 32;

static uint64_t hash_bytes(const uint8_t *bytes, size_t len)
{
    return kvb_hash64((kvb_span){ .data = bytes, .len = len }, 0);
}

/* A number that changes with each boot of the machine; 0: unknown, which is equal to none. */
static uint64_t boot_of_machine(void)
{
    uint8_t text[64];
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (file < 0) {
        return 0;
    }
    const ssize_t len = read(file, text, sizeof text);
    (void)close(file); /* only read */
    return len > 0 ? hash_bytes(text, (size_t)len) : 0;
}

static kvb_status write_path(char path[path_bytes], const char *directory, const char *name)
{
    const int len = snprintf(path, path_bytes, "%s/%s.numbers", directory, name);

    return len > 0 && len < path_bytes ? KVB_OK : KVB_IO;
}

static bool is_whole(const uint8_t bytes[file_bytes])
{
    return kvb_le_get_u32(bytes + at_magic) == magic &&
           kvb_le_get_u32(bytes + at_version) == version &&
           kvb_le_get_u64(bytes + at_hash) == hash_bytes(bytes, at_hash);
}

static bool counts(const uint8_t bytes[file_bytes])
{
    const uint64_t boot = boot_of_machine();

    return kvb_le_get_u64(bytes + at_exact) == 1 ||
           (boot != 0 && kvb_le_get_u64(bytes + at_boot) == boot);
}

/* KVB_NOT_FOUND  there is no file, or it is damaged */
static kvb_status
read_numbers(const char *directory, const char *name, uint64_t *out_end, bool *out_counts)
{
    char path[path_bytes];
    uint8_t bytes[file_bytes];

    if (write_path(path, directory, name) != KVB_OK) {
        return KVB_NOT_FOUND;
    }
    /* Neither a link nor a pipe of this name may lead elsewhere or stop the process. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        return KVB_NOT_FOUND;
    }
    const ssize_t len = read(file, bytes, sizeof bytes);
    (void)close(file); /* only read */
    if (len != file_bytes || !is_whole(bytes)) {
        return KVB_NOT_FOUND;
    }
    *out_end = kvb_le_get_u64(bytes + at_end);
    *out_counts = counts(bytes);
    return KVB_OK;
}

kvb_status kvb_republish_numbers_read(const char *directory, const char *name, uint64_t *out_end)
{
    bool is_counting = false;

    KVB_TRY(read_numbers(directory, name, out_end, &is_counting));
    return is_counting ? KVB_OK : KVB_NOT_FOUND;
}

static kvb_status write_numbers(
    const char *directory, const char *name, uint64_t end, bool is_exact, bool waits_for_disk)
{
    char path[path_bytes];
    uint8_t bytes[file_bytes];

    kvb_le_put_u32(bytes + at_magic, magic);
    kvb_le_put_u32(bytes + at_version, version);
    kvb_le_put_u64(bytes + at_end, end);
    kvb_le_put_u64(bytes + at_boot, boot_of_machine());
    kvb_le_put_u64(bytes + at_exact, is_exact);
    kvb_le_put_u64(bytes + at_hash, hash_bytes(bytes, at_hash));
    KVB_TRY(write_path(path, directory, name));
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
    if (file < 0) {
        return KVB_IO;
    }
    const bool is_written = pwrite(file, bytes, sizeof bytes, 0) == file_bytes &&
                            (!waits_for_disk || fdatasync(file) == 0);
    if (close(file) == 0 && is_written) {
        return KVB_OK;
    }
    (void)unlink(path); /* an older file must not count: the next process begins at the clock */
    return KVB_IO;
}

kvb_status
kvb_republish_numbers_write(const char *directory, const char *name, uint64_t end, bool is_exact)
{
    return write_numbers(directory, name, end, is_exact, is_exact);
}

struct kvb_republish_numbers kvb_republish_numbers_begin(
    const char *directory, const char *name, uint64_t clock, uint64_t count, bool from_clock)
{
    struct kvb_republish_numbers numbers = { .first = clock };
    uint64_t used = 0;
    bool is_counting = false;

    if (read_numbers(directory, name, &used, &is_counting) == KVB_OK) {
        /* The machine may have lost newer writes of the file. */
        used += is_counting ? 0 : max_lost;
        /* A file that counts is followed even where the clock was set back. */
        numbers.first = (is_counting && !from_clock) || used > clock ? used : clock;
    }
    const uint64_t end = numbers.first + count;
    /* Where the older file counts it must not come back after a power loss: that waits for the
     * disk. */
    numbers.end =
        write_numbers(directory, name, end, false, is_counting) == KVB_OK ? end : numbers.first;
    return numbers;
}

/* Others could make files there that number our batches, or read links of ours. */
static bool is_ours_alone(const char *directory)
{
    struct stat about;

    return lstat(directory, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
           (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

kvb_status kvb_republish_numbers_directory(char out[kvb_republish_directory_bytes])
{
    const char *state = secure_getenv("STATE_DIRECTORY"); /* the first, where there are several */
    const int state_len = state ? (int)strcspn(state, ":") : 0;
    int len = 0;

    if (state_len > 0) {
        len = snprintf(out, kvb_republish_directory_bytes, "%.*s", state_len, state);
    } else {
        len = snprintf(
            out, kvb_republish_directory_bytes, "/var/tmp/kvbridge-%lu", (unsigned long)geteuid());
        (void)mkdir(out, S_IRWXU); /* it is there, or cannot be made: looked at now */
    }
    const bool is_usable = len > 0 && len < kvb_republish_directory_bytes && is_ours_alone(out);
    return is_usable ? KVB_OK : KVB_IO;
}
