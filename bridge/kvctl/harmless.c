#include "core/utf8.h"
#include "kvctl/kvctl.h"

#include <stdarg.h>
#include <stdlib.h>

/* The character of 2 or 3 bytes at text. */
static unsigned code_point(const unsigned char *text, size_t len)
{
    return len == 2 ? (text[0] & 0x1fU) << 6U | (text[1] & 0x3fU)
                    : (text[0] & 0x0fU) << 12U | (text[1] & 0x3fU) << 6U | (text[2] & 0x3fU);
}

static bool is_control(unsigned point)
{
    return point < 0x20 || (point >= 0x7f && point <= 0x9f) ||      /* C0, DEL, C1 */
           point == 0x061c || point == 0x200e || point == 0x200f || /* marks of direction */
           (point >= 0x2028 && point <= 0x202e) || /* ends of lines, embedding, overriding */
           (point >= 0x2066 && point <= 0x2069);   /* isolating */
}

size_t kvctl_control_at(const char *text, size_t left, unsigned *out_point)
{
    const unsigned char *at = (const unsigned char *)text;
    const size_t len = kvb_utf8_len(at, left);
    const unsigned point = len == 2 || len == 3 ? code_point(at, len) : at[0];

    *out_point = point;
    /* A byte that is not UTF-8 may be C1 in another encoding. */
    return len == 0 ? 1 : len < 4 && is_control(point) ? len : 0;
}

void kvctl_put(FILE *out, const void *text, size_t len)
{
    const char *const bytes = text;
    size_t from = 0;
    unsigned point = 0;

    for (size_t at = 0; at < len;) {
        const size_t control = bytes[at] == '\n' || bytes[at] == '\t'
                                   ? 0
                                   : kvctl_control_at(bytes + at, len - at, &point);
        if (control == 0) {
            at++; /* the other bytes of a longer character are found harmless with its first */
            while (at < len && ((unsigned char)bytes[at] & 0xc0U) == 0x80) {
                at++;
            }
            continue;
        }
        /* First what stood harmless before it. */
        (void)fwrite(bytes + from, 1, at - from, out);
        (void)fprintf(out, "\\u%04x", point);
        at += control;
        from = at;
    }
    (void)fwrite(bytes + from, 1, len - from, out);
}

void kvctl_print(FILE *out, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    kvctl_print_list(out, format, arguments);
    va_end(arguments);
}

void kvctl_print_list(FILE *out, const char *format, va_list arguments)
{
    char *text = NULL;
    const int len = vasprintf(&text, format, arguments);

    if (len >= 0) {
        kvctl_put(out, text, (size_t)len);
        free(text);
    }
}
