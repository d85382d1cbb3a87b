#include "bus/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdint.h>
#include <string.h>

kvb_status kvb_proof_make(const char *secret, kvb_span message, char out_proof[kvb_proof_bytes])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;

    if (!HMAC(EVP_sha256(), secret, (int)strlen(secret), message.data, message.len, digest, &len) ||
        len != (kvb_proof_bytes - 1) / 2) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < len; i++) {
        out_proof[2 * i] = digits[digest[i] >> 4];
        out_proof[2 * i + 1] = digits[digest[i] & 15];
    }
    out_proof[kvb_proof_bytes - 1] = '\0';
    return KVB_OK;
}

bool kvb_proof_is_right(const char *secret, kvb_span message, const char *proof)
{
    char right[kvb_proof_bytes];

    return strlen(proof) == kvb_proof_bytes - 1 &&
           kvb_proof_make(secret, message, right) == KVB_OK &&
           CRYPTO_memcmp(right, proof, kvb_proof_bytes) == 0;
}
