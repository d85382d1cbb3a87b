#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The keys for the sockets of one worker with CURVE, the encryption and authentication of ZMTP
 * (RFC 26 of ZeroMQ).
 *
 *     our socket               secret_key   server_key                   client_keys
 *     connects                 ours         the engine's public key      none
 *     listens for its engine   ours         only for the replay socket   of engines
 *     listens for readers      ours         none                         of readers
 *
 * client_keys are the public keys of peers that may connect.
 *
 * A file contains keys as Z85 text of 40 characters, as zmq_curve_keypair() makes it.  Each file
 * has one key in its first line; client_keys_file has one key in each line.
 *
 * Threads: plain data. */
enum { kvb_curve_key_bytes = 32, kvb_curve_max_clients = 64 };

struct kvb_curve_files {
    const char *server_key; /* paths; "": none */
    const char *public_key;
    const char *secret_key;
    const char *client_keys;
};

/* Contains a secret: call kvb_curve_forget() at the end. */
struct kvb_curve {
    uint8_t server_key[kvb_curve_key_bytes];
    uint8_t public_key[kvb_curve_key_bytes];
    uint8_t secret_key[kvb_curve_key_bytes];
    size_t client_count;
    uint8_t client_keys[kvb_curve_max_clients][kvb_curve_key_bytes];
};

/* False when this libzmq was built without CURVE. */
bool kvb_curve_is_available(void);

/* The file of the secret key must be private (core/secret_file.h).  The public key is computed from
 * the secret key.  If there is a file of the public key, it must contain this one.
 * KVB_BAD_CONFIG  detail names the key of the configuration, the file and the remedy; *out_curve
 *                 holds no secret */
kvb_status kvb_curve_read(
    const struct kvb_curve_files *files, struct kvb_curve *out_curve, struct kvb_detail *detail);

/* A hash of the keys, to detect changes. */
uint64_t kvb_curve_digest(const struct kvb_curve *curve);

/* True when key has 32 bytes and is one of client_keys. */
bool kvb_curve_allows(const struct kvb_curve *curve, const uint8_t *key, size_t len);

/* True when all peers that `before` allows may stay connected under `after`: our own key is the
 * same, and no client is missing. */
bool kvb_curve_keeps_clients(const struct kvb_curve *before, const struct kvb_curve *after);

/* NULL is copied to NULL.  The caller frees *out_copy with kvb_curve_free().  KVB_NO_MEMORY */
kvb_status kvb_curve_copy(const struct kvb_curve *curve, struct kvb_curve **out_copy);

/* Overwrites the keys, and frees them.  NULL is fine. */
void kvb_curve_free(struct kvb_curve *curve);

void kvb_curve_forget(struct kvb_curve *curve);
