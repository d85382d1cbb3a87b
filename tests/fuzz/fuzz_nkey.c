#include "bus/nkey.h"
#include "target.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void check_public(const char *text)
{
    check(strlen(text) == kvb_nkey_public_chars && text[0] == 'U');
    for (const char *at = text; *at; at++) {
        check((*at >= 'A' && *at <= 'Z') || (*at >= '2' && *at <= '7'));
    }
}

/* The checksum covers each character but the last, of which some bits are padding. */
static void check_other_seed(char *seed, uint8_t where)
{
    char other_public[kvb_nkey_public_chars + 1];
    struct kvb_detail detail = { { 0 } };
    char *first = seed;

    while (isspace((unsigned char)*first)) {
        first++;
    }
    char *at = first + where % (kvb_nkey_seed_chars - 1);
    *at = *at == 'A' ? 'B' : 'A';
    check(kvb_nkey_public_of_seed(seed, other_public, &detail) == KVB_BAD_INPUT);
    check(detail.text[0] != '\0');
}

/* What is accepted gives a public key; with one letter changed, it is refused.  The first byte
 * says which letter. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char public_key[kvb_nkey_public_chars + 1] = "";
    struct kvb_detail detail = { { 0 } };

    if (size == 0) {
        return 0;
    }
    char *seed = calloc(1, size);
    check(seed != NULL);
    memcpy(seed, data + 1, size - 1);
    if (kvb_nkey_public_of_seed(seed, public_key, &detail) == KVB_OK) {
        check_public(public_key);
        check_other_seed(seed, data[0]);
    } else {
        check(public_key[0] == '\0');
    }
    free(seed);
    return 0;
}
