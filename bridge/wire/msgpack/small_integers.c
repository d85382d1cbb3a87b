#include "wire/msgpack/small_integers.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { code_uint8 = 0xcc, code_uint16 = 0xcd, code_uint32 = 0xce };

/* How to extract a number from 8 big-endian bytes that begin with its code: shift right, then apply
 * the mask.  Mask 0: the code is not that of a small number. */
/* clang-format off */
static const struct small_form {
    uint32_t mask;
    uint8_t shift;
} small_forms[256] = {
    [0x00 ... 0x7f] = {       0x7f, 56 },
    [code_uint8]    = {       0xff, 48 },
    [code_uint16]   = {     0xffff, 40 },
    [code_uint32]   = { 0xffffffff, 24 },
};
/* clang-format on */

static inline uint32_t number_at(const uint8_t *at)
{
    const struct small_form *form = &small_forms[*at];

    return (uint32_t)(kvb_load_be64(at) >> form->shift) & form->mask;
}

/* No branches on the width, because they would be mispredicted often.  Cost: a load and four
 * dependent steps per integer to find the next one. */
[[gnu::hot]] uint32_t kvb_small_integers_scalar(
    const uint8_t *bytes, size_t len, uint32_t count, uint32_t *out, size_t *out_len)
{
    size_t at = 0;
    uint32_t taken = 0;

    for (; taken < count && len - at >= sizeof(uint64_t); taken++) {
        const unsigned code = bytes[at];
        if (small_forms[code].mask == 0) {
            break;
        }
        out[taken] = number_at(bytes + at);
        at += 1 + ((code >> 7U) << (code & 3U));
    }
    *out_len = at;
    return taken;
}

#if defined(__x86_64__)

/* Four integers at once.  They begin within 16 bytes and end within 20, because one has at most 5.
 *
 *     bytes    cd 01 02 | 07 | cc 90 | ce 00 01 00 00 | ...
 *     starts   0           3    4       6
 *     ends     3           4    6       11
 */
enum { quad_count = 4, quad_reads = 20 };

struct quad {
    __m128i starts, ends; /* offset of each integer, in four bytes each */
    uint32_t len;         /* where the last one ends */
};

/* after1[i]: where the next integer begins if one begins at byte i.  This function composed with
 * itself gives the following ones (pointer jumping): after2[i] = after1[after1[i]].  So four
 * integers cost one chain of a load and seven dependent steps. */
[[gnu::target("ssse3")]] static inline struct quad find_quad(__m128i bytes)
{
    const __m128i widths = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 0);
    const __m128i following = _mm_setr_epi8(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
    const __m128i each = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    /* Chosen by the low four bits of a code.  A shuffle gives 0 where the highest bit is set: here,
     * that of a number without a width. */
    const __m128i width = _mm_shuffle_epi8(widths, _mm_xor_si128(bytes, _mm_set1_epi8((char)0x80)));
    const __m128i after1 = _mm_add_epi8(following, width);
    const __m128i after2 = _mm_shuffle_epi8(after1, after1);
    const __m128i after3 = _mm_shuffle_epi8(after1, after2);
    const __m128i after4 = _mm_shuffle_epi8(after2, after2);
    const __m128i four =
        _mm_unpacklo_epi16(_mm_unpacklo_epi8(after1, after2), _mm_unpacklo_epi8(after3, after4));

    return (struct quad){ .starts = _mm_shuffle_epi8(_mm_slli_epi32(four, 8), each),
                          .ends = _mm_shuffle_epi8(four, each),
                          .len = (uint32_t)_mm_cvtsi128_si32(after4) & 0xff };
}

/* Whether all four begin with the code of a small integer.  Behind another code the offsets have no
 * meaning, but stay within the 16 bytes. */
[[gnu::target("ssse3")]] static inline bool
are_quad_small(__m128i bytes, __m128i has_width, const struct quad *quad)
{
    const __m128i above = _mm_sub_epi8(bytes, _mm_set1_epi8((char)code_uint8));
    const __m128i is_uint = _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(2)), above);
    const __m128i is_other = _mm_andnot_si128(is_uint, has_width);

    return _mm_movemask_epi8(_mm_shuffle_epi8(is_other, quad->starts)) == 0;
}

/* The byte n of a number is the one n + 1 before its end; those from its code on are 0, but a
 * number without a width is its code. */
[[gnu::target("ssse3")]] static inline __m128i
quad_numbers(__m128i bytes, __m128i bytes_from_16, const struct quad *quad)
{
    const __m128i before = _mm_setr_epi8(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4);
    const __m128i is_lowest = _mm_setr_epi8(-1, 0, 0, 0, -1, 0, 0, 0, -1, 0, 0, 0, -1, 0, 0, 0);
    const __m128i from = _mm_sub_epi8(quad->ends, before);
    const __m128i is_within = _mm_or_si128(_mm_cmpgt_epi8(from, quad->starts), is_lowest);
    /* A shuffle gives 0 where the highest bit of the offset is set. */
    const __m128i below_16 = _mm_shuffle_epi8(bytes, _mm_add_epi8(from, _mm_set1_epi8(0x70)));
    const __m128i from_16 = _mm_shuffle_epi8(bytes_from_16, _mm_sub_epi8(from, _mm_set1_epi8(16)));

    return _mm_and_si128(_mm_or_si128(below_16, from_16), is_within);
}

/* In place of _mm_loadu_si32(), which GCC before 11.3 puts into the wrong lane. */
[[gnu::target("ssse3")]] static inline __m128i load_four_bytes(const uint8_t *at)
{
    int32_t four = 0;

    memcpy(&four, at, sizeof four);
    return _mm_cvtsi32_si128(four);
}

/* Returns how many bytes the four have, or 0: one of them is another kind of value. */
[[gnu::target("ssse3")]] static inline uint32_t take_quad(const uint8_t *at, uint32_t *out)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    const __m128i has_width = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    const struct quad quad = find_quad(bytes);

    if (!are_quad_small(bytes, has_width, &quad)) {
        return 0;
    }
    const __m128i numbers = quad_numbers(bytes, load_four_bytes(at + 16), &quad);
    _mm_storeu_si128((__m128i *)(void *)out, numbers);
    return quad.len;
}

[[gnu::hot, gnu::target("ssse3")]] static uint32_t small_integers_ssse3(
    const uint8_t *bytes, size_t len, uint32_t count, uint32_t *out, size_t *out_len)
{
    size_t at = 0;
    uint32_t taken = 0;

    for (; count - taken >= quad_count && len - at >= quad_reads; taken += quad_count) {
        const uint32_t read = take_quad(bytes + at, out + taken);
        if (read == 0) {
            break;
        }
        at += read;
    }
    size_t rest = 0;
    taken += kvb_small_integers_scalar(bytes + at, len - at, count - taken, out + taken, &rest);
    *out_len = at + rest;
    return taken;
}

kvb_small_integers *kvb_small_integers_best(void)
{
    return __builtin_cpu_supports("ssse3") ? small_integers_ssse3 : kvb_small_integers_scalar;
}

#else

kvb_small_integers *kvb_small_integers_best(void)
{
    return kvb_small_integers_scalar;
}

#endif
