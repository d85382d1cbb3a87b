#include "ingest/zmq/curve.h"

#include "core/hash.h"
#include "core/own.h"
#include "core/secret_file.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    z85_bytes = 40,
    key_text_bytes = 512, /* of a file of one key; further lines are ignored */
    list_bytes = kvb_curve_max_clients * 2 * z85_bytes,
};

static void wipe_key_text(char (*text)[key_text_bytes])
{
    explicit_bzero(*text, sizeof *text);
}

bool kvb_curve_is_available(void)
{
    return zmq_has("curve") == 1;
}

static kvb_status refuse_key(const char *path, struct kvb_detail *detail)
{
    kvb_detail_set(
        detail, "%s has no CURVE key: a key is a line of %d characters of Z85", path, z85_bytes);
    return KVB_BAD_CONFIG;
}

static kvb_status
decode_key(const char *path, const char *text, uint8_t *out, struct kvb_detail *detail)
{
    /* Checks the length first, because zmq_z85_decode() accepts texts of other lengths. */
    return strlen(text) == z85_bytes && zmq_z85_decode(out, text) ? KVB_OK
                                                                  : refuse_key(path, detail);
}

/* Rejects NUL bytes: text after one would be ignored silently. */
static kvb_status read_key_file(
    const char *path, enum kvb_file_access access, char *text, size_t size,
    struct kvb_detail *detail)
{
    size_t len = 0;

    KVB_TRY(kvb_secret_file_read(path, access, text, size, &len, detail));
    if (strlen(text) == len) {
        return KVB_OK;
    }
    kvb_detail_set(detail, "%s contains a NUL byte: it is no text", path);
    return KVB_BAD_CONFIG;
}

static kvb_status
read_key(const char *path, enum kvb_file_access access, uint8_t *out, struct kvb_detail *detail)
{
    KVB_OWN(wipe_key_text) char text[key_text_bytes] = "";

    KVB_TRY(read_key_file(path, access, text, sizeof text, detail));
    text[strcspn(text, "\r\n")] = '\0';
    return decode_key(path, text, out, detail);
}

/* Computes the public key from the secret key, so that the two always belong together. */
static kvb_status compute_public_key(struct kvb_curve *curve, struct kvb_detail *detail)
{
    char secret[z85_bytes + 1] = "";
    char public[z85_bytes + 1] = "";
    const bool is_computed = zmq_z85_encode(secret, curve->secret_key, kvb_curve_key_bytes) &&
                             zmq_curve_public(public, secret) == 0 &&
                             zmq_z85_decode(curve->public_key, public);

    explicit_bzero(secret, sizeof secret);
    if (!is_computed) {
        kvb_detail_set(detail, "libzmq has no CURVE: use one that is built with libsodium");
    }
    return is_computed ? KVB_OK : KVB_BAD_CONFIG;
}

static kvb_status
check_public_key(const char *path, const struct kvb_curve *curve, struct kvb_detail *detail)
{
    uint8_t key[kvb_curve_key_bytes];

    if (path[0] == '\0') {
        return KVB_OK;
    }
    KVB_TRY(read_key(path, KVB_FILE_OF_ANYONE, key, detail));
    if (memcmp(key, curve->public_key, sizeof key) != 0) {
        kvb_detail_set(detail, "%s does not have the public key of the secret key", path);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status
read_client_keys(const char *path, struct kvb_curve *curve, struct kvb_detail *detail)
{
    char text[list_bytes];
    char *rest = text;
    const char *line = NULL;

    if (path[0] == '\0') {
        return KVB_OK;
    }
    KVB_TRY(read_key_file(path, KVB_FILE_OF_ANYONE, text, sizeof text, detail));
    while ((line = strsep(&rest, "\r\n"))) {
        if (line[strspn(line, " \t")] == '\0') {
            continue;
        }
        if (curve->client_count == kvb_curve_max_clients) {
            kvb_detail_set(detail, "%s has more than %d keys", path, kvb_curve_max_clients);
            return KVB_BAD_CONFIG;
        }
        KVB_TRY(decode_key(path, line, curve->client_keys[curve->client_count], detail));
        curve->client_count++;
    }
    return curve->client_count > 0 ? KVB_OK : refuse_key(path, detail);
}

/* Puts the configuration key before an error about its file. */
static kvb_status name_curve_key(kvb_status status, const char *key, struct kvb_detail *detail)
{
    if (status != KVB_OK && detail) {
        const struct kvb_detail why = *detail;
        kvb_detail_set(detail, "%s: %s", key, why.text);
    }
    return status;
}

static kvb_status
read_keys(const struct kvb_curve_files *files, struct kvb_curve *curve, struct kvb_detail *detail)
{
    KVB_TRY(name_curve_key(
        read_key(files->secret_key, KVB_FILE_PRIVATE, curve->secret_key, detail), "secret_key_file",
        detail));
    KVB_TRY(compute_public_key(curve, detail));
    KVB_TRY(name_curve_key(
        check_public_key(files->public_key, curve, detail), "public_key_file", detail));
    if (files->server_key[0] != '\0') {
        KVB_TRY(name_curve_key(
            read_key(files->server_key, KVB_FILE_OF_ANYONE, curve->server_key, detail),
            "server_key_file", detail));
    }
    return name_curve_key(
        read_client_keys(files->client_keys, curve, detail), "client_keys_file", detail);
}

kvb_status kvb_curve_read(
    const struct kvb_curve_files *files, struct kvb_curve *out_curve, struct kvb_detail *detail)
{
    *out_curve = (struct kvb_curve){ .client_count = 0 };
    const kvb_status status = read_keys(files, out_curve, detail);
    if (status != KVB_OK) {
        kvb_curve_forget(out_curve);
    }
    return status;
}

uint64_t kvb_curve_digest(const struct kvb_curve *curve)
{
    const kvb_span parts[] = {
        { curve->server_key, kvb_curve_key_bytes },
        { curve->secret_key, kvb_curve_key_bytes },
        { curve->client_keys[0], curve->client_count * kvb_curve_key_bytes },
    };

    return kvb_hash64_parts(parts, sizeof parts / sizeof parts[0], 0);
}

bool kvb_curve_allows(const struct kvb_curve *curve, const uint8_t *key, size_t len)
{
    for (size_t i = 0; i < curve->client_count && len == kvb_curve_key_bytes; i++) {
        if (memcmp(curve->client_keys[i], key, len) == 0) {
            return true;
        }
    }
    return false;
}

bool kvb_curve_keeps_clients(const struct kvb_curve *before, const struct kvb_curve *after)
{
    if (memcmp(before->secret_key, after->secret_key, kvb_curve_key_bytes) != 0) {
        return false;
    }
    for (size_t i = 0; i < before->client_count; i++) {
        if (!kvb_curve_allows(after, before->client_keys[i], kvb_curve_key_bytes)) {
            return false;
        }
    }
    return true;
}

kvb_status kvb_curve_copy(const struct kvb_curve *curve, struct kvb_curve **out_copy)
{
    struct kvb_curve *copy = NULL;

    if (curve) {
        copy = malloc(sizeof *copy);
        if (!copy) {
            return KVB_NO_MEMORY;
        }
        *copy = *curve;
    }
    *out_copy = copy;
    return KVB_OK;
}

void kvb_curve_free(struct kvb_curve *curve)
{
    if (curve) {
        kvb_curve_forget(curve);
        free(curve);
    }
}

void kvb_curve_forget(struct kvb_curve *curve)
{
    explicit_bzero(curve, sizeof *curve);
}
