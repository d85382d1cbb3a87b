#include "bus/nkey.h"

#include "core/own.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    key_bytes = 32,
    crc_bytes = 2,
    seed_bytes = 2 + key_bytes + crc_bytes, /* 58 base32 digits: 290 bits, the last 2 unused */
    public_bytes = 1 + key_bytes + crc_bytes,
    prefix_seed = 18 << 3, /* 'S' */
    prefix_user = 20 << 3, /* 'U' */
};

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

static bool decode_base32(const char *text, size_t chars, uint8_t *out)
{
    uint32_t bits = 0;
    unsigned count = 0;

    for (size_t i = 0; i < chars; i++) {
        /* strchr() would find the NUL behind the digits. */
        const char *at = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (!at) {
            return false;
        }
        bits = bits << 5 | (uint32_t)(at - digits);
        count += 5;
        if (count >= 8) {
            count -= 8;
            *out++ = (uint8_t)(bits >> count);
        }
    }
    return true;
}

/* len is a multiple of 5, so that the bits fill whole digits. */
static void encode_base32(const uint8_t *bytes, size_t len, char *out)
{
    uint32_t bits = 0;
    unsigned count = 0;

    for (size_t i = 0; i < len; i++) {
        bits = bits << 8 | bytes[i];
        for (count += 8; count >= 5;) {
            count -= 5;
            *out++ = digits[bits >> count & 31];
        }
    }
    *out = '\0';
}

/* CRC-16/XMODEM: polynomial 0x1021, initial value 0. */
static uint16_t crc16(const uint8_t *bytes, size_t len)
{
    uint16_t crc = 0;

    for (size_t i = 0; i < len; i++) {
        crc ^= (uint16_t)(bytes[i] << 8);
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (uint16_t)((crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1);
        }
    }
    return crc;
}

static bool has_crc(const uint8_t *bytes, size_t len)
{
    const uint16_t crc = crc16(bytes, len - crc_bytes);

    /* The low byte comes first. */
    return bytes[len - 2] == (uint8_t)crc && bytes[len - 1] == (uint8_t)(crc >> 8);
}

/* Decodes and checks a seed.  It begins with 5 bits for 'S' and 8 bits for the kind of owner. */
static kvb_status decode_seed(const char *text, uint8_t out[seed_bytes], struct kvb_detail *detail)
{
    const char *begin = text + strspn(text, " \t\r\n");
    const size_t len = strcspn(begin, " \t\r\n");

    if (len != kvb_nkey_seed_chars || !decode_base32(begin, len, out)) {
        kvb_detail_set(
            detail, "expected the seed of an NKey: %d characters of A-Z 2-7", kvb_nkey_seed_chars);
    } else if (!has_crc(out, seed_bytes)) {
        kvb_detail_set(detail, "the seed of the NKey has a wrong checksum");
    } else if ((out[0] & 0xf8) != prefix_seed) {
        kvb_detail_set(detail, "expected the seed of an NKey, which begins with S");
    } else if (((out[0] & 7) << 5 | out[1] >> 3) != prefix_user) {
        kvb_detail_set(detail, "expected the seed of a user's NKey, which begins with SU");
    } else {
        return KVB_OK;
    }
    return KVB_BAD_INPUT;
}

static void drop_nkey(EVP_PKEY **key)
{
    EVP_PKEY_free(*key); /* NULL is fine */
}

static kvb_status derive_public(const uint8_t seed[key_bytes], uint8_t out[key_bytes])
{
    KVB_OWN(drop_nkey)
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, key_bytes);
    size_t len = key_bytes;

    return key && EVP_PKEY_get_raw_public_key(key, out, &len) == 1 ? KVB_OK : KVB_NO_MEMORY;
}

kvb_status kvb_nkey_public_of_seed(
    const char *seed, char out[kvb_nkey_public_chars + 1], struct kvb_detail *detail)
{
    uint8_t decoded[seed_bytes];
    uint8_t made[public_bytes] = { prefix_user };
    kvb_status status = decode_seed(seed, decoded, detail);

    if (status == KVB_OK) {
        /* The prefix of a seed takes two bytes, that of a public key one. */
        status = derive_public(decoded + 2, made + 1);
    }
    /* Before the return on failure: a seed with a wrong prefix is a secret, too. */
    explicit_bzero(decoded, sizeof decoded);
    KVB_TRY(status);
    const uint16_t crc = crc16(made, 1 + key_bytes);
    made[1 + key_bytes] = (uint8_t)crc;
    made[2 + key_bytes] = (uint8_t)(crc >> 8);
    encode_base32(made, sizeof made, out);
    return KVB_OK;
}
