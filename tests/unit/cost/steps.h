#pragma once

#include <stddef.h>
#include <stdint.h>

/* Counts work instead of time: how many basic blocks of the rooms core to stream were run, and how
 * many cache lines they set or copied with memset() and memcpy(). For suites that link the library
 * `counted`: those rooms, compiled to call back from each basic block
 * (-fsanitize-coverage=trace-pc). */

/* The number of steps so far. */
uint64_t steps_so_far(void);

/* Returns the steps that an operation takes with `size` items. */
typedef uint64_t (*steps_scene)(size_t size);

/* Four times the items may take at most about five times the steps: linear, plus the cost of tables
 * that grow meanwhile. A quadratic scene takes sixteen times as many and fails. */
void assert_linear(steps_scene scene);

/* Four times the items may take only a few more steps. */
void assert_constant(steps_scene scene);

/* Chooses numbers whose keyed hashes, with the key derived from secret 0, collide: what an attacker
 * who knows the key would send. */
void choose_meeting(uint64_t *numbers, size_t count, uint64_t of);

/* Returns the steps of a scene with these numbers, in tables whose key is derived from this secret.
 */
typedef uint64_t (*steps_of_numbers)(const uint64_t *numbers, size_t count, uint64_t secret);

/* Numbers that collide under secret 0 must take more steps there, and under another secret no more
 * than arbitrary numbers. */
void assert_keyed(steps_of_numbers scene, uint64_t of);
