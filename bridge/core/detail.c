#include "core/detail.h"

#include <stdarg.h>
#include <stdio.h>

void kvb_detail_set(struct kvb_detail *detail, const char *format, ...)
{
    va_list values;

    if (!detail) {
        return;
    }
    va_start(values, format);
    (void)vsnprintf(detail->text, sizeof detail->text, format, values);
    va_end(values);
}
