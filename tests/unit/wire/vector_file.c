#include "kvb_test.h"

#include "vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *read_text_file(const char *name)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", KVB_DATA, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    (void)fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    (void)fseek(file, 0, SEEK_SET);
    char *text = malloc(size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, size, file), size);
    text[size] = '\0';
    (void)fclose(file);
    return text;
}

static int digit(char c)
{
    const char *const digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

uint8_t *bytes_of_hex(const char *hex, size_t *out_len)
{
    size_t len = 0;

    while (digit(hex[2 * len]) >= 0 && digit(hex[2 * len + 1]) >= 0) {
        len++;
    }
    uint8_t *bytes = malloc(len ? len : 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)(16 * digit(hex[2 * i]) + digit(hex[2 * i + 1]));
    }
    *out_len = len;
    return bytes;
}
