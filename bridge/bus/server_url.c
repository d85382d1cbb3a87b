#include "bus/server_url.h"

#include <ctype.h>
#include <string.h>

static bool is_port(const char *text, size_t len)
{
    unsigned port = 0;

    if (len == 0 || len > 5) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i])) {
            return false;
        }
        port = port * 10 + (unsigned)(text[i] - '0');
    }
    return port >= 1 && port <= 65535;
}

/* [nats:// | tls://] [user[:password]@] host [:port], host may be [v6]. */
static bool is_server(const char *text, size_t len)
{
    const char *scheme_end = memmem(text, len, "://", 3);
    if (scheme_end) {
        const size_t scheme_len = (size_t)(scheme_end - text);
        if (!(scheme_len == 4 && memcmp(text, "nats", 4) == 0) &&
            !(scheme_len == 3 && memcmp(text, "tls", 3) == 0)) {
            return false;
        }
        len -= scheme_len + 3;
        text = scheme_end + 3;
    }
    const char *at = memrchr(text, '@', len);
    if (at) {
        len -= (size_t)(at + 1 - text);
        text = at + 1;
    }
    const char *v6_end = len > 0 && text[0] == '[' ? memchr(text, ']', len) : NULL;
    const size_t search_at = v6_end ? (size_t)(v6_end - text) : 0;
    const char *colon = memchr(text + search_at, ':', len - search_at);
    const size_t host_len = colon ? (size_t)(colon - text) : len;
    return host_len > 0 && (!colon || is_port(colon + 1, len - host_len - 1));
}

bool kvb_server_url_is_valid(const char *url)
{
    for (const char *c = url; *c; c++) {
        if (*c <= ' ' || *c > '~') {
            return false;
        }
    }
    for (;;) {
        const size_t len = strcspn(url, ",");
        if (!is_server(url, len)) {
            return false;
        }
        if (url[len] == '\0') {
            return true;
        }
        url += len + 1;
    }
}

bool kvb_server_url_wants_tls(const char *url)
{
    static const char scheme[] = "tls://";

    for (; *url; url += strcspn(url, ",")) {
        url += *url == ',';
        if (strncmp(url, scheme, strlen(scheme)) == 0) {
            return true;
        }
    }
    return false;
}
