#include "say.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

static char said[8192];

void say_nothing(void)
{
    said[0] = '\0';
}

const char *what_was_said(void)
{
    return said + (said[0] == ' ');
}

void say(const char *format, ...)
{
    const size_t len = strlen(said);
    va_list values;

    va_start(values, format);
    (void)vsnprintf(said + len, sizeof said - len, format, values);
    va_end(values);
    assert_true(strlen(said) < sizeof said - 1);
}

void say_text(const char *label, const char *text)
{
    if (text[0] != '\0') {
        say(" %s %s", label, text);
    }
}

void say_number(bool is_given, const char *label, uint64_t number)
{
    if (is_given) {
        say(" %s %llu", label, (unsigned long long)number);
    }
}

void say_figures(const struct kvb_load *load, unsigned figures)
{
    static const char *const labels[KVB_FIGURE_COUNT] = { "active",  "slots", "used", "total",
                                                          "waiting", "usage", "hits" };

    for (unsigned i = 0; i < KVB_FIGURE_COUNT; i++) {
        const void *figure = (const char *)load + kvb_load_fields[i].offset;
        const bool is_ratio = kvb_load_fields[i].is_ratio;
        const double value =
            is_ratio ? (double)*(const float *)figure : (double)*(const uint64_t *)figure;
        if (!(figures >> i & 1)) {
            assert_true(value == 0);
        } else if (is_ratio) {
            say(" %s %.8g", labels[i], value);
        } else {
            say_number(true, labels[i], *(const uint64_t *)figure);
        }
    }
}
