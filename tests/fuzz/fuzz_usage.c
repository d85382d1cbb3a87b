#include "core/limits.h"
#include "target.h"
#include "wire/gateway/usage.h"

#include <stdlib.h>
#include <string.h>

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Reads the number behind a name that ends before `at`. */
static bool read_number(const uint8_t *data, size_t size, size_t at, uint64_t *out)
{
    uint64_t value = 0;
    unsigned digits = 0;

    while (at < size && is_blank(data[at])) {
        at++;
    }
    for (; at < size && data[at] >= '0' && data[at] <= '9'; at++, digits++) {
        if (digits == 10) {
            return false;
        }
        value = value * 10 + (uint64_t)(data[at] - '0');
    }
    *out = value;
    return digits > 0 && at < size && (is_blank(data[at]) || data[at] == ',' || data[at] == '}');
}

/* The rule, on the whole answer. */
static bool find_slowly(const uint8_t *data, size_t size, uint64_t *out)
{
    static const char name[] = "\"cached_tokens\":";
    const size_t len = sizeof name - 1;
    bool has_found = false;
    size_t found_at = 0;

    for (size_t i = 0; i + len <= size; i++) {
        uint64_t value = 0;
        if (memcmp(data + i, name, len) == 0 && (i == 0 || data[i - 1] != '\\') &&
            read_number(data, size, i + len, &value)) {
            *out = value;
            found_at = i;
            has_found = true;
        }
    }
    return has_found && size - found_at <= kvb_max_gateway_usage_bytes;
}

/* The first byte says where the rest is cut into chunks. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_usage_finder finder = { 0 };
    uint64_t found = 0;
    uint64_t expected = 0;

    if (size == 0) {
        return 0;
    }
    const size_t step = data[0] + 1U;
    for (size_t at = 1; at < size; at += step) {
        const size_t left = size - at;
        kvb_usage_feed(&finder, (kvb_span){ data + at, left < step ? left : step });
    }
    const bool has_found = kvb_usage_cached_tokens(&finder, &found);
    check(
        has_found == find_slowly(data + 1, size - 1, &expected) &&
        (!has_found || found == expected));
    return 0;
}
