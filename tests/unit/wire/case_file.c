#include "case_file.h"

#include "kvb_test.h"

#include "core/buf.h"
#include "vector_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_lets = 64, max_text = 1 << 16 };

struct let {
    const char *name;
    const char *text;
};

static struct let lets[max_lets];
static size_t let_count;

/* Of the case that is being checked. */
static struct {
    const char *file;
    unsigned line;
    struct kvb_buf answer;
} now;

static void append(struct kvb_buf *out, const void *bytes, size_t len)
{
    assert_int_equal(kvb_buf_append(out, bytes, len), 0);
}

/* The text with the names replaced, which may stand for others. */
static void append_named(struct kvb_buf *out, const char *text)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): check_case() asserts that it is there */
    for (const char *at = text; *at;) {
        if (*at != '$') {
            append(out, at++, 1);
            continue;
        }
        const size_t len = strspn(++at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        size_t i = let_count; /* the latest of a name counts */
        while (i > 0 &&
               (strlen(lets[i - 1].name) != len || memcmp(lets[i - 1].name, at, len) != 0)) {
            i--;
        }
        if (i == 0) {
            fail_msg("%s:%u: no such name: %.*s", now.file, now.line, (int)len, at);
        }
        append_named(out, lets[i - 1].text);
        at += len;
    }
}

/* <0a>, <2d2b*40>, <> */
static const char *append_bytes(struct kvb_buf *out, const char *at)
{
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(at, &len);
    const char *end = strchr(at, '>');
    size_t times = 1;

    assert_non_null(end);
    if (at[2 * len] == '*') {
        times = strtoul(at + 2 * len + 1, NULL, 10);
    }
    for (; times > 0; times--) {
        append(out, bytes, len);
    }
    free(bytes);
    return end + 1;
}

/* Names first: their texts may have bytes in them. */
static void resolve(const char *text, struct kvb_buf *out)
{
    struct kvb_buf named;

    kvb_buf_init(&named, max_text);
    kvb_buf_init(out, max_text);
    append_named(&named, text);
    append(&named, "", 1);
    for (const char *at = (const char *)named.data; *at;) {
        if (*at == '<') {
            at = append_bytes(out, at + 1);
        } else {
            append(out, at++, 1);
        }
    }
    kvb_buf_done(&named);
}

static void check_case(const char *text, const char *answer, void (*check)(kvb_span text))
{
    struct kvb_buf bytes;

    assert_non_null(answer);
    resolve(answer, &now.answer);
    append(&now.answer, "", 1);
    resolve(text, &bytes);
    uint8_t *exact = malloc(bytes.len > 0 ? bytes.len : 1);
    assert_non_null(exact);
    if (bytes.len > 0) {
        memcpy(exact, bytes.data, bytes.len);
    }
    check((kvb_span){ exact, bytes.len });
    free(exact);
    kvb_buf_done(&bytes);
    kvb_buf_done(&now.answer);
}

/* Cuts the line in two; returns what stands behind the mark, NULL: it has none. */
static char *cut_at(char *line, const char *mark)
{
    char *at = strstr(line, mark);

    if (at) {
        *at = '\0';
        at += strlen(mark);
    }
    return at;
}

/* Returns the line behind this one.  A line that ends with \\ goes on in the next, behind a line
 * feed. */
static char *end_line(char *line)
{
    char *next = cut_at(line, "\n");

    now.line++;
    for (size_t len = strlen(line); next && len > 0 && line[len - 1] == '\\'; len = strlen(line)) {
        line[len - 1] = '\n';
        memmove(line + len, next, strlen(next) + 1);
        next = cut_at(line + len, "\n");
        now.line++;
    }
    return next;
}

void each_case(const char *file, const char *section, void (*check)(kvb_span text))
{
    char path[128];
    const char *usual = NULL;
    bool is_inside = !section;
    size_t count = 0;

    (void)snprintf(path, sizeof path, "cases/%s", file);
    char *lines = read_text_file(path);
    now.file = file;
    now.line = 0;
    let_count = 0;
    for (char *line = lines, *next = NULL; line; line = next) {
        next = end_line(line);
        if (strncmp(line, "let ", 4) == 0) {
            assert_true(let_count < max_lets);
            lets[let_count].text = cut_at(line, " = ");
            lets[let_count++].name = line + 4;
        } else if (strncmp(line, "= ", 2) == 0) {
            usual = cut_at(line, " | ");
            is_inside = !section || strcmp(line + 2, section) == 0;
        } else if (line[0] != '#' && line[0] != '\0' && is_inside) {
            const char *answer = cut_at(line, " =>");
            check_case(line, answer ? answer + strspn(answer, " ") : usual, check);
            count++;
        }
    }
    free(lines);
    assert_true(count > 0);
}

void assert_answer(const char *answer)
{
    if (strcmp(answer, (const char *)now.answer.data) != 0) {
        fail_msg("%s:%u: %s\ninstead of %s", now.file, now.line, answer, now.answer.data);
    }
}
