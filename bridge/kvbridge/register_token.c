#include "kvbridge/register_token.h"

#include "core/hash.h"
#include "core/own.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static void drop_token_file(FILE **file)
{
    if (*file) {
        (void)fclose(*file); /* was only read */
    }
}

static bool is_token_word(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!isgraph((unsigned char)text[i])) {
            return false;
        }
    }
    return len >= kvb_register_token_min && len < kvb_register_token_bytes;
}

/* Its group may read it: that of the daemon, when root keeps the file. */
static bool is_private(FILE *file)
{
    struct stat about;

    return fstat(fileno(file), &about) == 0 && (about.st_mode & (S_IROTH | S_IWOTH)) == 0;
}

kvb_status kvb_register_token_read(
    const char *path, char out_token[kvb_register_token_bytes], struct kvb_detail *detail)
{
    KVB_OWN(drop_token_file) FILE *file = fopen(path, "re");
    char text[kvb_register_token_bytes + 1] = "";

    if (!file) {
        kvb_detail_set(detail, "cannot read %s: %s", path, strerrordesc_np(errno));
        return KVB_BAD_CONFIG;
    }
    if (!is_private(file)) {
        kvb_detail_set(
            detail, "every user may read or write %s, which holds a secret: chmod o-rw it", path);
        return KVB_BAD_CONFIG;
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    const size_t len = strcspn(text, "\r\n");
    if (!is_token_word(text, len)) {
        kvb_detail_set(
            detail, "the first line of %s is no token: write %d .. %d printable bytes, no blanks",
            path, kvb_register_token_min, kvb_register_token_bytes - 1);
        return KVB_BAD_CONFIG;
    }
    memcpy(out_token, text, len);
    out_token[len] = '\0';
    return KVB_OK;
}

/* Compares hashes: the time until they differ shows nothing of the token. */
bool kvb_register_token_is_shown(
    const char authorization[], const char token[kvb_register_token_bytes])
{
    static const char scheme[] = "Bearer ";
    const size_t len = sizeof scheme - 1;

    if (strncasecmp(authorization, scheme, len) != 0) {
        return false;
    }
    const char *shown = authorization + len;
    const struct kvb_hash128 one =
        kvb_hash128((kvb_span){ (const uint8_t *)shown, strlen(shown) }, 0);
    const struct kvb_hash128 other =
        kvb_hash128((kvb_span){ (const uint8_t *)token, strlen(token) }, 0);
    return ((one.low ^ other.low) | (one.high ^ other.high)) == 0 && strcmp(shown, token) == 0;
}
