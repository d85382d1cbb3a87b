#include "core/url_show.h"

#include "core/own.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Returns the length of a known scheme with its "://", else 0, because text before another "://"
 * may be a password. */
static size_t scheme_length(const char *url, size_t len)
{
    static const char *const schemes[] = { "nats://", "tls://", "http://", "https://" };

    for (size_t i = 0; i < KVB_COUNT_OF(schemes); i++) {
        const size_t scheme_len = strlen(schemes[i]);
        if (len >= scheme_len && memcmp(url, schemes[i], scheme_len) == 0) {
            return scheme_len;
        }
    }
    return 0;
}

/* Writes the part of url that may be shown.  Returns false when it does not fit. */
static bool append_shown_url(const char *url, size_t len, char *out, size_t size)
{
    const size_t scheme_len = scheme_length(url, len);
    /* Everything before the last @ may be name and password. */
    const char *at = memrchr(url, '@', len);
    const char *rest = at ? at + 1 : url + scheme_len;
    const size_t rest_len = (size_t)(url + len - rest);
    const char *query = memchr(rest, '?', rest_len);
    const size_t shown_len = query ? (size_t)(query - rest) : rest_len;
    const int wrote = snprintf(
        out, size, "%.*s%.*s%s", (int)scheme_len, url, (int)shown_len, rest, query ? "?..." : "");

    return wrote >= 0 && (size_t)wrote < size;
}

const char *kvb_url_show(const char *url, char *out, size_t size)
{
    (void)append_shown_url(url, strlen(url), out, size); /* false: the URL is cut */
    return out;
}

/* Returns the length of the first URL in the list.  The URL ends at the first comma after the last
 * @ before the second "://".  Commas before that @ are part of a password. */
static size_t length_of(const char *urls)
{
    const char *next = strstr(urls, "://");
    const char *stop = next ? strstr(next + 3, "://") : NULL;
    const size_t span = stop ? (size_t)(stop - urls) : strlen(urls);
    const char *at = memrchr(urls, '@', span);
    const char *comma = memchr(at ? at : urls, ',', span - (size_t)((at ? at : urls) - urls));

    return comma ? (size_t)(comma - urls) : strlen(urls);
}

const char *kvb_urls_show(const char *urls, char *out, size_t size)
{
    size_t used = 0;

    out[0] = '\0';
    while (*urls) {
        const size_t len = length_of(urls);
        const size_t comma = used > 0;
        if (size - used <= comma ||
            !append_shown_url(urls, len, out + used + comma, size - used - comma)) {
            out[used] = '\0'; /* drops a URL that was cut */
            break;
        }
        if (comma) {
            out[used] = ',';
        }
        used += strlen(out + used);
        urls += len + (urls[len] == ',');
    }
    return out;
}
