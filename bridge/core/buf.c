#include "core/buf.h"

#include "core/array.h"
#include "core/decimal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvb_buf_init(struct kvb_buf *buf, size_t ceiling_bytes)
{
    *buf = (struct kvb_buf){ .ceiling = ceiling_bytes };
}

void kvb_buf_done(struct kvb_buf *buf)
{
    free(buf->data);
    *buf = (struct kvb_buf){ 0 };
}

[[gnu::hot]] void kvb_buf_reset(struct kvb_buf *buf)
{
    buf->len = 0;
}

kvb_status kvb_buf_reserve(struct kvb_buf *buf, size_t more_bytes)
{
    size_t need = 0;

    if (__builtin_add_overflow(buf->len, more_bytes, &need)) {
        return KVB_TOO_LARGE;
    }
    return kvb_array_reserve(&buf->data, &buf->capacity, need, 1, buf->ceiling);
}

[[gnu::hot]] kvb_status kvb_buf_append(struct kvb_buf *buf, const void *bytes, size_t len)
{
    if (len == 0) {
        return KVB_OK;
    }
    if (buf->capacity - buf->len < len) { /* rare: appends are short */
        KVB_TRY(kvb_buf_reserve(buf, len));
    }
    memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    return KVB_OK;
}

kvb_status kvb_buf_append_text(struct kvb_buf *buf, const char *text)
{
    return kvb_buf_append(buf, text, strlen(text));
}

kvb_status kvb_buf_append_u64(struct kvb_buf *buf, uint64_t value)
{
    char digits[kvb_decimal_bytes];

    return kvb_buf_append(buf, digits, kvb_decimal_write(digits, value));
}

kvb_status kvb_buf_append_format(struct kvb_buf *buf, const char *format, ...)
{
    va_list values;
    va_list again;

    va_start(values, format);
    va_copy(again, values);
    /* The analyzer does not see it begin just above. NOLINTNEXTLINE(clang-analyzer-valist.*) */
    const int len = vsnprintf(NULL, 0, format, values);
    va_end(values);
    /* Room for the NUL as well, which vsnprintf() always writes. */
    kvb_status status = len < 0 ? KVB_BAD_INPUT : kvb_buf_reserve(buf, (size_t)len + 1);
    if (status == KVB_OK) {
        (void)vsnprintf((char *)buf->data + buf->len, (size_t)len + 1, format, again);
        buf->len += (size_t)len; /* without the NUL */
    }
    va_end(again);
    return status;
}

kvb_span kvb_buf_span(const struct kvb_buf *buf)
{
    return (kvb_span){ .data = buf->data, .len = buf->len };
}
