#pragma once

#include <stddef.h>
#include <stdint.h>

/* Counts work, not time: how many basic blocks of the rooms core to stream were run, and how many
 * lines of the cache they set or copied at once.  For suites that use the library `counted`, which
 * is those rooms compiled to call back from each basic block (-fsanitize-coverage=trace-pc). */

/* So far. */
uint64_t steps_so_far(void);

/* Steps that something takes when `size` things are there, or come. */
typedef uint64_t (*steps_scene)(size_t size);

/* Four times the things take at most some five times the steps: a linear scene, with what
 * tables cost that grow meanwhile; a quadratic one takes sixteen times as many. */
void assert_linear(steps_scene scene);

/* Four times the things take no more steps, but for a few. */
void assert_constant(steps_scene scene);

/* Numbers whose keyed hash, with the key made of the secret 0, ends alike: whoever knows the key
 * sends such. */
void choose_meeting(uint64_t *numbers, size_t count, uint64_t of);

/* A scene of so many numbers, in tables with this secret. */
typedef uint64_t (*steps_of_numbers)(const uint64_t *numbers, size_t count, uint64_t secret);

/* Numbers that meet with the secret 0 take steps with that, and with another no more than numbers
 * that nobody chose. */
void assert_keyed(steps_of_numbers scene, uint64_t of);
