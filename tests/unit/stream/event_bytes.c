#include "event_bytes.h"

#include "kvb_test.h"

#include "core/own.h"
#include "script.h"

#include <stdio.h>
#include <string.h>

/* $1 is the first argument. */
static const struct term {
    const char *name;
    size_t arguments;
    const char *text;
} terms[] = {
    { "stored", 0, "ab426c6f636b53746f726564" },
    { "removed", 0, "ac426c6f636b52656d6f766564" },
    { "root", 2, "95 stored 91 $1 c0 91 $2 01" },
    { "child", 3, "95 stored 91 $2 $1 91 $3 01" },
    { "gone", 1, "92 removed 91 $1" },
    { "cleared", 0, "91 b0416c6c426c6f636b73436c6561726564" },
    { "mapped", 3,
      "85 a474797065 stored ac626c6f636b5f686173686573 $2 b1706172656e745f626c6f636b5f68617368 $1 "
      "a9746f6b656e5f696473 $3 aa626c6f636b5f73697a65 01" },
    { "gpu", 0, "a3475055" },
    { "cpu", 0, "a3435055" },
    { "pinned", 0, "aa4350555f50494e4e4544" },
    { "in", 2, "97 stored 91 $2 c0 91 01 01 c0 $1" },
    { "gone-from", 2, "93 removed 91 $2 $1" },
    { "named", 1, "98 stored 91 05 c0 91 01 01 c0 $1 c0" },
    { "keyed", 0, "99 stored 91 05 c0 91 01 01 c0 gpu c0 91 c0" },
    { "grouped", 1, "9a stored 91 05 c0 91 01 01 c0 gpu c0 91 c0 $1" },
    { "typed", 1, "82 aa6576656e745f74797065 a673746f726564 aa7365715f686173686573 91 $1" },
    { "typed-cleared", 0, "81 aa6576656e745f74797065 a7636c6561726564" },
    { "k1", 0, "a26b31" },
    { "k2", 0, "a26b32" },
    { "memory", 0, "91 92 a66d656d6f7279 a0" },
    { "disk", 0, "91 92 a46469736b a0" },
    { "both", 0, "92 92 a66d656d6f7279 a0 92 a46469736b a0" },
    { "nowhere", 0, "90" },
    { "put", 5, "98 af426c6f636b53746f72654576656e74 $1 $2 a16d 10 $3 $4 $5" },
    { "moved", 2, "93 b0426c6f636b5570646174654576656e74 $1 $2" },
    { "remove-all", 0, "91 ae52656d6f7665416c6c4576656e74" },
};

static struct {
    char text[2048];
    size_t len;
} hex;

static void add_hex(const char *word)
{
    const size_t len = strlen(word);

    assert_true(hex.len + len < sizeof hex.text);
    memcpy(hex.text + hex.len, word, len + 1);
    hex.len += len;
}

static const struct term *find_term(const char *word)
{
    for (size_t i = 0; i < KVB_COUNT_OF(terms); i++) {
        if (strcmp(terms[i].name, word) == 0) {
            return &terms[i];
        }
    }
    return NULL;
}

static void add_term(const struct term *term, size_t at);

/* A word that has no arguments. */
static void add_word(const char *word)
{
    const struct term *term = find_term(word);

    if (term) {
        assert_int_equal(term->arguments, 0);
        add_term(term, 0);
    } else {
        add_hex(word);
    }
}

/* The text of a term whose arguments stand in the script from word `at` on. */
static void add_term(const struct term *term, size_t at)
{
    char text[256];
    char *rest = NULL;

    (void)snprintf(text, sizeof text, "%s", term->text);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        add_word(word[0] == '$' ? script_word(at + (size_t)(word[1] - '1')) : word);
    }
}

/* Returns where the next event begins, or the end. */
static size_t add_event(size_t at)
{
    while (at < script_words() && !script_says(at, ";") && !script_says(at, "then")) {
        const struct term *term = find_term(script_word(at));
        if (term) {
            add_term(term, at + 1);
            at += 1 + term->arguments;
        } else {
            add_hex(script_word(at++));
        }
    }
    return at + script_says(at, ";");
}

const char *event_bytes_of_words(size_t at)
{
    static const char digits[] = "0123456789abcdef";
    const size_t at_count = strlen("92019");
    size_t count = 0;

    hex.len = 0;
    add_hex("920190"); /* a time, and the number of events */
    for (; at < script_words() && !script_says(at, "then"); count++) {
        at = add_event(at);
    }
    for (at++; at < script_words(); at++) {
        add_word(script_word(at));
    }
    assert_in_range(count, 0, 15);
    hex.text[at_count] = digits[count];
    return hex.text;
}
