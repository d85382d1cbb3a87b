#include "cost/steps.h"
#include "kvb_test.h"

#include "core/hash.h"

#include <string.h>

enum { small = 5000, line = 64 };

static uint64_t steps;

/* Compilers and linker prescribe these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */

/* gcc and clang call this from each basic block of code compiled with -fsanitize-coverage=trace-pc.
 */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    steps++;
}

/* With -Wl,--wrap */
void *__real_memset(void *to, int value, size_t bytes);
void *__wrap_memset(void *to, int value, size_t bytes);
void *__wrap_memset(void *to, int value, size_t bytes)
{
    steps += bytes / line;
    return __real_memset(to, value, bytes);
}

void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__wrap_memcpy(void *to, const void *from, size_t bytes);
void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    steps += bytes / line;
    return __real_memcpy(to, from, bytes);
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

uint64_t steps_so_far(void)
{
    return steps;
}

void assert_linear(steps_scene scene)
{
    const uint64_t few = scene(small);
    const uint64_t many = scene((size_t)4 * small);

    if (few == 0 || many > few * 6) {
        fail_msg("%ju steps for %d, %ju for four times as many", few, small, many);
    }
}

void assert_constant(steps_scene scene)
{
    const uint64_t few = scene(small);
    const uint64_t many = scene((size_t)4 * small);

    if (few == 0 || many > few + few / 2) {
        fail_msg("%ju steps with %d, %ju with four times as many", few, small, many);
    }
}

/* ---- Chosen numbers ---- */

enum { chosen = 2000, same_bits = 0xfff };

void choose_meeting(uint64_t *numbers, size_t count, uint64_t of)
{
    const struct kvb_hash_key key = kvb_hash_key_of(0);
    size_t found = 0;

    for (uint64_t number = 1; found < count; number++) {
        if ((kvb_hash_keyed(&key, number, of) & same_bits) == 0) {
            numbers[found++] = number;
        }
    }
}

void assert_keyed(steps_of_numbers scene, uint64_t of)
{
    static uint64_t meeting[chosen];
    static uint64_t any[chosen];
    static const uint64_t secret = UINT64_C(0x243f6a8885a308d3);

    choose_meeting(meeting, chosen, of);
    for (size_t i = 0; i < chosen; i++) {
        any[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    }
    const uint64_t known = scene(meeting, chosen, 0);
    const uint64_t unknown = scene(meeting, chosen, secret);
    const uint64_t usual = scene(any, chosen, secret);
    if (known < 2 * usual || unknown > usual + usual / 4) {
        fail_msg(
            "%ju steps where the key is known, %ju where not, %ju usual", known, unknown, usual);
    }
}
