#include "wire/gateway/usage.h"

#include "core/limits.h"

#include <string.h>

static const char name[] = "\"cached_tokens\":";

enum { name_len = sizeof name - 1, max_digits = 10 };

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The next byte of the name, as Knuth, Morris and Pratt search: of what matched so far only the
 * quote at the name's end may be the beginning of the name. */
static void read_name_byte(struct kvb_usage_finder *finder, uint8_t c)
{
    if (finder->matched == name_len - 1 && c != ':') {
        finder->matched = 1;
    }
    if (c == (uint8_t)name[finder->matched] && !(finder->matched == 0 && finder->was_backslash)) {
        finder->matched++;
    } else {
        finder->matched = c == '"' && !finder->was_backslash ? 1 : 0;
    }
    /* The last name counts, whatever its number will be: what was found stays until then. */
    if (finder->matched == name_len) {
        finder->name_at = finder->at + 1 - name_len;
        finder->digits = 0;
        finder->number = 0;
    }
}

static void read_number_byte(struct kvb_usage_finder *finder, uint8_t c)
{
    if (c >= '0' && c <= '9' && finder->digits < max_digits) {
        finder->number = finder->number * 10 + (uint64_t)(c - '0');
        finder->digits++;
        return;
    }
    if (is_blank(c) && finder->digits == 0) {
        return;
    }
    /* Only a number that has ended counts: an answer that breaks off may have half of it. */
    if (finder->digits > 0 && (is_blank(c) || c == ',' || c == '}')) {
        finder->has_found = true;
        finder->found = finder->number;
        finder->found_at = finder->name_at;
    }
    finder->matched = 0;
    read_name_byte(finder, c);
}

void kvb_usage_feed(struct kvb_usage_finder *finder, kvb_span chunk)
{
    size_t i = 0;

    if (chunk.len > kvb_max_gateway_usage_bytes) { /* what stands before cannot count */
        i = chunk.len - kvb_max_gateway_usage_bytes;
        finder->matched = 0;
        finder->was_backslash = chunk.data[i - 1] == '\\';
        finder->at += i;
    }
    /* One state for each byte: an answer may be cut anywhere. */
    for (; i < chunk.len; i++, finder->at++) {
        const uint8_t c = chunk.data[i];
        if (finder->matched == name_len) {
            read_number_byte(finder, c);
        } else {
            read_name_byte(finder, c);
        }
        finder->was_backslash = c == '\\';
    }
}

bool kvb_usage_cached_tokens(const struct kvb_usage_finder *finder, uint64_t *out_tokens)
{
    if (!finder->has_found || finder->at - finder->found_at > kvb_max_gateway_usage_bytes) {
        return false;
    }
    *out_tokens = finder->found;
    return true;
}
