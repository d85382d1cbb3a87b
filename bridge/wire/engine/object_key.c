#include "wire/engine/object_key.h"

#include "core/hash.h"
#include "wire/engine/fields.h"

#include <ctype.h>

enum { digits_of_hash = 16, digits_of_sha256 = 64 };

/* The part of the text from `from` to `to`. */
static kvb_span part_of(kvb_span text, size_t from, size_t to)
{
    return (kvb_span){ .data = text.data + from, .len = to - from };
}

/* Where the last part of the text begins, after the separator; 0: there is no separator. */
static size_t last_part(kvb_span text, char separator)
{
    size_t at = text.len;

    while (at > 0 && text.data[at - 1] != (uint8_t)separator) {
        at--;
    }
    return at;
}

static size_t digits_from(kvb_span text, size_t from, int (*is_digit)(int))
{
    size_t at = from;

    while (at < text.len && is_digit(text.data[at])) {
        at++;
    }
    return at - from;
}

static uint64_t number_of_hex(kvb_span digits)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < digits.len; i++) {
        const int digit = tolower(digits.data[i]);
        hash = hash << 4 | (uint64_t)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
    }
    return hash;
}

static uint32_t family_of(kvb_span text, uint64_t form)
{
    const uint32_t family = (uint32_t)(kvb_hash64(text, form) & 0xffffff);

    return family ? family : 1;
}

/* Seeds, so that equal texts of different forms are different families. */
enum key_form { form_ranks = 1, form_pages = 2, form_bare = 3 };

/* ---- MODEL@tp_rank:T@...@HASH ---- */

/* True: the part is one of the ranks between model and hash, as in tp_rank:0 or pcp0. */
static bool is_rank(kvb_span part, bool *out_is_tensor_rank)
{
    static const char *const labels[] = {
        "tp_rank:", "head_or_tp_rank:", "pp_rank:", "group:", "pcp", "dcp"
    };
    enum { tensor_labels = 2 }; /* the first of the labels */

    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        const size_t len = strlen(labels[i]);
        if (part.len > len && memcmp(part.data, labels[i], len) == 0 &&
            digits_from(part, len, isdigit) == part.len - len) {
            *out_is_tensor_rank |= i < tensor_labels;
            return true;
        }
    }
    return false;
}

static kvb_status read_ranks_form(kvb_span key, struct kvb_object_key *out_key)
{
    const size_t hash_at = last_part(key, '@');
    const kvb_span digits = part_of(key, hash_at, key.len);
    bool has_tensor_rank = false;

    if (hash_at == 0 || digits.len < digits_of_hash ||
        digits_from(digits, 0, isxdigit) != digits.len) {
        return KVB_BAD_INPUT;
    }
    /* The ranks stand right before the hash.  What precedes them ends with the model's name; a
     * model or a prefix may contain '@' itself. */
    const kvb_span labels = part_of(key, 0, hash_at - 1);
    kvb_span rest = labels;
    size_t at = last_part(rest, '@');
    while (at > 0 && is_rank(part_of(rest, at, rest.len), &has_tensor_rank)) {
        rest.len = at - 1;
        at = last_part(rest, '@');
    }
    if (!has_tensor_rank || at == rest.len) {
        return KVB_BAD_INPUT;
    }
    *out_key = (struct kvb_object_key){
        .hash = number_of_hex(part_of(digits, digits.len - digits_of_hash, digits.len)),
        .family = family_of(rest, form_ranks),
        .shard = (uint32_t)kvb_hash64(labels, form_ranks),
        .model = part_of(rest, at, rest.len),
    };
    return KVB_OK;
}

/* ---- SHA256_RANK_k ---- */

static kvb_status read_pages_form(kvb_span key, struct kvb_object_key *out_key)
{
    const size_t last = last_part(key, '_');
    size_t at = digits_of_sha256;

    if (digits_from(key, 0, isxdigit) != digits_of_sha256 || last + 1 != key.len ||
        (key.data[last] != 'k' && key.data[last] != 'v')) {
        return KVB_BAD_INPUT;
    }
    while (at + 1 < last) {
        const size_t digits = digits_from(key, at + 1, isdigit);
        if (digits == 0 || key.data[at] != '_') {
            return KVB_BAD_INPUT;
        }
        at += 1 + digits;
    }
    if (at + 1 != last) {
        return KVB_BAD_INPUT;
    }
    *out_key = (struct kvb_object_key){
        .hash = number_of_hex(part_of(key, 0, digits_of_hash)),
        .family = family_of((kvb_span){ 0 }, form_pages),
        .shard = (uint32_t)kvb_hash64(part_of(key, digits_of_sha256, key.len), form_pages),
    };
    return KVB_OK;
}

/* ---- The hash alone ---- */

void kvb_object_key_of_hash(uint64_t hash, struct kvb_object_key *out_key)
{
    *out_key =
        (struct kvb_object_key){ .hash = hash, .family = family_of((kvb_span){ 0 }, form_bare) };
}

static kvb_status read_bare_form(kvb_span key, struct kvb_object_key *out_key)
{
    const bool is_negative = key.len > 1 && key.data[0] == '-' && isdigit(key.data[1]);
    uint64_t hash = 0;

    KVB_TRY(kvb_engine_hash_of_digits(
        is_negative ? part_of(key, 1, key.len) : key, &hash)); /* fails on an empty key, too */
    kvb_object_key_of_hash(is_negative ? 0 - hash : hash, out_key);
    return KVB_OK;
}

kvb_status kvb_object_key_read(kvb_span key, struct kvb_object_key *out_key)
{
    return read_ranks_form(key, out_key) == KVB_OK || read_pages_form(key, out_key) == KVB_OK
               ? KVB_OK
               : read_bare_form(key, out_key);
}
