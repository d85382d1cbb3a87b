#include "daemon/bearer_token.h"

#include "core/secret_file.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { file_bytes = 1024 };

static bool is_token_word(const char *text, size_t len, size_t min)
{
    for (size_t i = 0; i < len; i++) {
        if (!isgraph((unsigned char)text[i])) {
            return false;
        }
    }
    return len >= min && len < kvb_bearer_token_bytes;
}

/* The length of the first line.  A NUL byte does not end it: the token would be cut there without a
 * message. */
static size_t first_line_len(const char *text, size_t len)
{
    size_t line = 0;

    while (line < len && text[line] != '\r' && text[line] != '\n') {
        line++;
    }
    return line;
}

static kvb_status read_token(
    const char *path, size_t min, char out_token[kvb_bearer_token_bytes], struct kvb_detail *detail)
{
    char text[file_bytes];
    size_t file_len = 0;

    KVB_TRY(kvb_secret_file_read(path, KVB_FILE_PRIVATE, text, sizeof text, &file_len, detail));
    const size_t len = first_line_len(text, file_len);
    /* Blanks are refused and not trimmed: a token other than its owner believes it to be would be
     * refused at each request, and nobody would see why. */
    const bool is_token = is_token_word(text, len, min);
    if (is_token) {
        text[len] = '\0';
        memcpy(out_token, text, len + 1);
    } else {
        kvb_detail_set(
            detail, "the first line of %s is no token: write %zu .. %d printable bytes, no blanks",
            path, min, kvb_bearer_token_bytes - 1);
    }
    explicit_bzero(text, sizeof text);
    return is_token ? KVB_OK : KVB_BAD_CONFIG;
}

kvb_status kvb_bearer_token_read(
    const char *path, char out_token[kvb_bearer_token_bytes], struct kvb_detail *detail)
{
    return read_token(path, kvb_bearer_token_min, out_token, detail);
}

kvb_status
kvb_api_key_read(const char *path, char out_key[kvb_bearer_token_bytes], struct kvb_detail *detail)
{
    return read_token(path, 1, out_key, detail);
}

bool kvb_bearer_token_is_shown(const char authorization[], const char token[kvb_bearer_token_bytes])
{
    static const char scheme[] = "Bearer ";
    const size_t len = sizeof scheme - 1;
    char wanted[kvb_bearer_token_bytes] = { 0 };
    char shown[kvb_bearer_token_bytes] = { 0 };
    unsigned char differences = 0;

    /* The name of the scheme has any case (RFC 9110).  What is longer than any token is none. */
    if (strncasecmp(authorization, scheme, len) != 0 ||
        strlen(authorization + len) >= sizeof shown) {
        return false;
    }
    memcpy(shown, authorization + len, strlen(authorization + len));
    memcpy(wanted, token, strnlen(token, sizeof wanted - 1));
    /* Constant-time comparison: all bytes are compared, with zeros behind the shorter one, so the
     * time reveals nothing about the token. */
    for (size_t i = 0; i < sizeof shown; i++) {
        differences |= (unsigned char)(shown[i] ^ wanted[i]);
    }
    /* An empty token equals one that was never read. */
    const bool is_shown = differences == 0 && shown[0] != '\0';
    explicit_bzero(wanted, sizeof wanted);
    explicit_bzero(shown, sizeof shown);
    return is_shown;
}
