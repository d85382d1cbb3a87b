#include "core/conf_inside.h"

#include <stdlib.h>
#include <string.h>

/* A partial copy of libconfig's scanner: enough to distinguish numbers from names, strings and
 * comments. */

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static char *end_of_line(char *at)
{
    return at + strcspn(at, "\n");
}

/* NULL: the comment is never closed.  The same below. */
static char *end_of_comment(char *at)
{
    char *end = strstr(at + 2, "*/");

    return end ? end + 2 : NULL;
}

static char *end_of_string(char *at)
{
    at++;
    while (*at != '\0' && *at != '"') {
        at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return *at == '"' ? at + 1 : NULL;
}

static bool is_hex_number(const char *number)
{
    return number[0] == '0' && (number[1] == 'x' || number[1] == 'X');
}

/* `number` is len bytes long and consists of a number's characters only. */
static bool number_fits(const char *number, size_t len)
{
    char *end = NULL;

    if (!is_hex_number(number) && strcspn(number, ".eE") < len) {
        return true; /* a fraction */
    }
    const unsigned long long value = strtoull(
        number + (number[0] == '-' || number[0] == '+'), &end, is_hex_number(number) ? 16 : 10);
    const unsigned long long max = *end == 'L' ? INT64_MAX : INT32_MAX;
    return value <= max; /* beyond 64 bits strtoull() returns the largest value */
}

static char *guard_number(char *number)
{
    const size_t len = strspn(number, DIGITS "abcdefABCDEFxXL.+-");

    if (!number_fits(number, len)) {
        const size_t point = number[len - 1] == 'L' ? 0 : len - 1;
        memset(number, '9', len);
        number[point] = '.';
    }
    return number + len;
}

static char *guard_token(char *at)
{
    if (at[0] == '#' || (at[0] == '/' && at[1] == '/')) {
        return end_of_line(at);
    }
    if (at[0] == '/' && at[1] == '*') {
        return end_of_comment(at);
    }
    if (at[0] == '"') {
        return end_of_string(at);
    }
    if (strchr(LETTERS "*", at[0])) {
        return at + strspn(at, LETTERS DIGITS "-_*");
    }
    return strchr(DIGITS "+-.", at[0]) ? guard_number(at) : at + 1;
}

const char *kvb_conf_guard(char *text, const char **out_why)
{
    char *at = text;

    while (*at != '\0' && *at != '@') {
        char *next = guard_token(at);
        if (!next) {
            *out_why = *at == '"' ? "the string that begins here is never closed"
                                  : "the comment that begins here is never closed";
            return at;
        }
        at = next;
    }
    *out_why = "@include is not supported: write all into one file";
    return *at == '@' ? at : NULL;
}
