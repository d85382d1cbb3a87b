#include "script.h"

#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

enum { step_bytes = 1024, max_words = 256 };

static struct {
    const char *text; /* from the step under way on; NULL: all are over */
    char step[step_bytes];
    char *words[max_words];
    size_t count;
} script;

size_t script_words(void)
{
    return script.count;
}

const char *script_word(size_t at)
{
    return at < script.count ? script.words[at] : "";
}

bool script_says(size_t at, const char *word)
{
    return strcmp(script_word(at), word) == 0;
}

uint64_t script_number(size_t at)
{
    char *end = NULL;
    const char *word = script_word(at);
    const uint64_t value = strtoull(word, &end, 10);

    if (end == word || *end != '\0') {
        fail_msg("no number: \"%s\"", word);
    }
    return value;
}

unsigned script_index(size_t at, const char *const *names, size_t count)
{
    unsigned found = 0;

    while (found < count && !script_says(at, names[found])) {
        found++;
    }
    if (found == count) {
        fail_msg("unknown: \"%s\"", script_word(at));
    }
    return found;
}

void script_each(size_t at, void (*each)(uint64_t number, bool is_marked))
{
    if (at >= script.count) {
        fail_msg("a number is missing");
    }
    for (; at < script.count; at++) {
        char *end = NULL;
        const uint64_t first = strtoull(script.words[at], &end, 10);
        const uint64_t last = *end == '-' ? strtoull(end + 1, &end, 10) : first;
        for (uint64_t count = last - first + 1, i = 0; i < count; i++) {
            each(first + i, *end == '\'');
        }
    }
}

/* Splits the next step into words; returns what follows it. */
static const char *read_step(const char *text)
{
    const size_t len = strcspn(text, ",");
    char *rest = NULL;

    assert_true(len < sizeof script.step);
    memcpy(script.step, text, len);
    script.step[len] = '\0';
    script.count = 0;
    for (char *word = strtok_r(script.step, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(script.count < max_words);
        script.words[script.count++] = word;
    }
    assert_true(script.count > 0);
    return text[len] == ',' ? text + len + 1 : NULL;
}

void script_play(
    const char *text, const struct script_verb *verbs, size_t verb_count, void (*other)(void))
{
    for (script.text = text; script.text;) {
        const char *next = read_step(script.text);
        size_t at = 0;
        while (at < verb_count && !script_says(0, verbs[at].name)) {
            at++;
        }
        if (at < verb_count) {
            verbs[at].act();
        } else {
            other();
        }
        script.text = next;
    }
}

void script_tell_failure(void)
{
    if (script.text) {
        print_error("failed at: %s\n", script.text);
    }
    script.text = NULL;
}
