#include "bus/subject.h"

#include "core/decimal.h"

#include <stdio.h>
#include <string.h>

enum { max_subject_bytes = 1023 };

static bool is_subject_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

bool kvb_name_is_valid(const char *name)
{
    size_t len = 0;

    /* It also stops at the NUL, which belongs to no name. */
    while (len <= kvb_name_bytes && is_subject_byte(name[len])) {
        len++;
    }
    return len >= 1 && len <= kvb_name_bytes && name[len] == '\0';
}

static bool is_wildcard(const char *token, size_t len, bool is_last)
{
    return len == 1 && (token[0] == '*' || (token[0] == '>' && is_last));
}

static bool is_plain_token(const char *token, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (token[i] <= ' ' || token[i] > '~' || token[i] == '*' || token[i] == '>') {
            return false;
        }
    }
    return len > 0;
}

bool kvb_subject_is_valid(const char *subject, bool allow_wildcards)
{
    if (strnlen(subject, max_subject_bytes + 1) > max_subject_bytes) {
        return false;
    }
    for (const char *token = subject;;) {
        const size_t len = strcspn(token, ".");
        const bool is_last = token[len] == '\0';
        if (!is_plain_token(token, len) && !(allow_wildcards && is_wildcard(token, len, is_last))) {
            return false;
        }
        if (is_last) {
            return true;
        }
        token += len + 1;
    }
}

static bool is_name_or_star(const char *name)
{
    return strcmp(name, "*") == 0 || kvb_name_is_valid(name);
}

kvb_status
kvb_subject_make(char *out, const char *name_space, const char *component, const char *tail)
{
    char made[kvb_subject_bytes];

    if (!is_name_or_star(name_space) || !is_name_or_star(component) ||
        !kvb_subject_is_valid(tail, true)) {
        return KVB_BAD_INPUT;
    }
    const int len =
        snprintf(made, sizeof made, "namespace.%s.component.%s.%s", name_space, component, tail);
    if (len < 0 || (size_t)len >= sizeof made) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, made, (size_t)len + 1);
    return KVB_OK;
}

/* Skips text, with which *rest must begin. */
static kvb_status take_subject_text(const char **rest, const char *text)
{
    const size_t len = strlen(text);

    if (strncmp(*rest, text, len) != 0) {
        return KVB_BAD_INPUT;
    }
    *rest += len;
    return KVB_OK;
}

/* Copies the token at *rest, and skips it. */
static kvb_status take_subject_name(const char **rest, char out[kvb_name_bytes + 1])
{
    const size_t len = strcspn(*rest, ".");

    /* Before the copy: the subject of a stranger may have tokens of any length. */
    if (len > kvb_name_bytes) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, *rest, len);
    out[len] = '\0';
    *rest += len;
    return kvb_name_is_valid(out) ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_subject_split(
    const char *subject, char out_namespace[kvb_name_bytes + 1],
    char out_component[kvb_name_bytes + 1], const char **out_tail)
{
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *rest = subject;

    KVB_TRY(take_subject_text(&rest, "namespace."));
    KVB_TRY(take_subject_name(&rest, name_space));
    KVB_TRY(take_subject_text(&rest, ".component."));
    KVB_TRY(take_subject_name(&rest, component));
    KVB_TRY(take_subject_text(&rest, "."));
    if (!kvb_subject_is_valid(rest, false)) {
        return KVB_BAD_INPUT;
    }
    /* Only now: a subject that is refused leaves all three as they were. */
    memcpy(out_namespace, name_space, sizeof name_space);
    memcpy(out_component, component, sizeof component);
    *out_tail = rest;
    return KVB_OK;
}

/* Reads the token at *rest, decimal digits alone, and skips it. */
static kvb_status take_subject_number(const char **rest, uint64_t max, uint64_t *out_number)
{
    char digits[kvb_decimal_bytes + 1];
    const size_t len = strcspn(*rest, ".");

    /* So many digits are no uint64_t. */
    if (len >= sizeof digits) {
        return KVB_BAD_INPUT;
    }
    memcpy(digits, *rest, len);
    digits[len] = '\0';
    *rest += len;
    return kvb_decimal_read(digits, out_number) && *out_number <= max ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_subject_read_stream(
    const char *subject, const char *name, uint64_t *out_worker_id, uint32_t *out_dp_rank)
{
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;
    uint64_t worker = 0;
    uint64_t rank = 0;

    KVB_TRY(kvb_subject_split(subject, name_space, component, &tail));
    KVB_TRY(take_subject_text(&tail, name));
    KVB_TRY(take_subject_text(&tail, "."));
    KVB_TRY(take_subject_number(&tail, UINT64_MAX, &worker));
    KVB_TRY(take_subject_text(&tail, "."));
    KVB_TRY(take_subject_number(&tail, UINT32_MAX, &rank));
    if (*tail != '\0') {
        return KVB_BAD_INPUT;
    }
    *out_worker_id = worker;
    *out_dp_rank = (uint32_t)rank;
    return KVB_OK;
}

bool kvb_subject_is_of_contract(const char *subject)
{
    static const char first[] = "namespace";

    return strncmp(subject, first, sizeof first - 1) == 0;
}

bool kvb_reply_is_refused(const char *reply)
{
    return reply[0] == '$' || kvb_subject_is_of_contract(reply);
}

/* True when one token of a includes one token of b.  The caller has handled a ">" in a. */
static bool includes_token(const char *a, size_t a_len, const char *b, size_t b_len)
{
    /* A "*" stands for one token, and ">" for any number of them. */
    const bool is_rest = b_len == 1 && b[0] == '>';

    return a_len == 1 && a[0] == '*' ? !is_rest : a_len == b_len && memcmp(a, b, a_len) == 0;
}

bool kvb_subject_includes(const char *a, const char *b)
{
    for (;;) {
        const size_t a_len = strcspn(a, ".");
        const size_t b_len = strcspn(b, ".");
        /* It demands a token, and b has one here. */
        if (a_len == 1 && a[0] == '>') {
            return true;
        }
        if (!includes_token(a, a_len, b, b_len) || (a[a_len] == '\0') != (b[b_len] == '\0')) {
            return false;
        }
        if (a[a_len] == '\0') {
            return true;
        }
        a += a_len + 1;
        b += b_len + 1;
    }
}
