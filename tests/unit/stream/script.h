#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A test as one line of text: steps between commas, and in each step a verb and its words.
 *
 *     begin, up, ask 0, reply 0-1, end, EXACT, lists 2
 *
 * What the verbs do is said by stream_script.h, mirror_script.h and replica/follower_script.h.  A
 * failure names the step. */

/* What a verb does; script_says() and the functions below read its words. */
struct script_verb {
    const char *name;
    void (*act)(void);
};

/* Plays all steps.  other: for steps whose verb is in no row. */
void script_play(
    const char *text, const struct script_verb *verbs, size_t verb_count, void (*other)(void));

/* Says where the script stands that has failed; nothing after one that was played to its end. */
void script_tell_failure(void);

/* ---- The step under way; word 0 is the verb ---- */

size_t script_words(void);
const char *script_word(size_t at); /* "": there are fewer */
bool script_says(size_t at, const char *word);

/* The test fails where the word is none. */
uint64_t script_number(size_t at);
unsigned script_index(size_t at, const char *const *names, size_t count);

/* Calls each() for all numbers of the words from `at` on, of which there must be some:
 * 3 5-7.  is_marked: the word ends with ' */
void script_each(size_t at, void (*each)(uint64_t number, bool is_marked));

/* One row of a group of tests. */
#define SCRIPT_OF(name, play, end, text)                                                           \
    {                                                                                              \
        name, play, NULL, end, (char[])                                                            \
        {                                                                                          \
            text                                                                                   \
        }                                                                                          \
    }
