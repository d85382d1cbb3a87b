#include "core/conf_inside.h"

#include <stdlib.h>
#include <string.h>

/* Reads the text as libconfig's scanner does, as far as needed to tell numbers
 * from names, strings and comments. */

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static char *end_of_line(char *at)
{
    return at + strcspn(at, "\n");
}

/* NULL: it is never closed.  The same below. */
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

static bool is_hex(const char *number)
{
    return number[0] == '0' && (number[1] == 'x' || number[1] == 'X');
}

/* number has len bytes, all of them of a number. */
static bool fits(const char *number, size_t len)
{
    char *end = NULL;

    if (!is_hex(number) && strcspn(number, ".eE") < len) {
        return true; /* a fraction */
    }
    const unsigned long long value =
        strtoull(number + (number[0] == '-' || number[0] == '+'), &end, is_hex(number) ? 16 : 10);
    const unsigned long long most = *end == 'L' ? INT64_MAX : INT32_MAX;
    return value <= most; /* beyond 64 bits strtoull() gives the greatest */
}

static char *guard_number(char *number)
{
    const size_t len = strspn(number, DIGITS "abcdefABCDEFxXL.+-");

    if (!fits(number, len)) {
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
