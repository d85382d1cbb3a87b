#include "bus/server_url.h"

#include "core/random.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_url_port(const char *text, size_t len)
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

/* [nats:// | tls://] [user[:password]@] host [:port].  An IPv6 host stands in brackets. */
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
    /* The last one: a password may contain others. */
    const char *at = memrchr(text, '@', len);
    if (at) {
        len -= (size_t)(at + 1 - text);
        text = at + 1;
    }
    /* Colons within the brackets belong to the address. */
    const char *v6_end = len > 0 && text[0] == '[' ? memchr(text, ']', len) : NULL;
    const size_t search_at = v6_end ? (size_t)(v6_end - text) : 0;
    const char *colon = memchr(text + search_at, ':', len - search_at);
    const size_t host_len = colon ? (size_t)(colon - text) : len;
    return host_len > 0 && (!colon || is_url_port(colon + 1, len - host_len - 1));
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
        /* One is enough: nats.c requires TLS of all servers or of none. */
        if (strncmp(url, scheme, strlen(scheme)) == 0) {
            return true;
        }
    }
    return false;
}

/* Host and port of a URL. */
struct place {
    const char *host;
    size_t host_len;
    const char *port; /* "4222" when the URL has none */
};

static struct place place_of(const char *url)
{
    const char *scheme_end = strstr(url, "://");
    const char *begin = scheme_end ? scheme_end + 3 : url;
    const char *at = strrchr(begin, '@');
    const char *host = at ? at + 1 : begin;
    const char *colon = strchr(host + (host[0] == '[' ? strcspn(host, "]") : 0), ':');

    return (struct place){
        .host = host,
        .host_len = colon ? (size_t)(colon - host) : strlen(host),
        .port = colon ? colon + 1 : "4222",
    };
}

bool kvb_server_url_is_same(const char *a, const char *b)
{
    const struct place one = place_of(a);
    const struct place other = place_of(b);

    return one.host_len == other.host_len && strncasecmp(one.host, other.host, one.host_len) == 0 &&
           strcmp(one.port, other.port) == 0;
}

/* ---- Logins ---- */

/* The byte that %XX stands for; -1: text does not begin with such an escape. */
static int escaped_byte(const char *text, const char *end)
{
    const bool is_escape = end - text >= 3 && text[0] == '%' && isxdigit((unsigned char)text[1]) &&
                           isxdigit((unsigned char)text[2]);
    char digits[3] = "";

    if (!is_escape) {
        return -1;
    }
    memcpy(digits, text + 1, 2);
    return (int)strtoul(digits, NULL, 16);
}

/* True when nats.c would misread this login in a url: it does not decode percent-encoded bytes, and
 * does not escape quotes and backslashes in JSON. */
static bool must_be_taken(const char *text, const char *end)
{
    for (; text < end; text++) {
        if (escaped_byte(text, end) >= 0 || *text == '"' || *text == '\\') {
            return true;
        }
    }
    return false;
}

/* Decodes %XX.  A % without two hex digits after it is copied. */
static bool decode_percent(const char *text, const char *end, char out[kvb_server_login_bytes])
{
    size_t len = 0;

    while (text < end && len < kvb_server_login_bytes - 1) {
        const int byte = escaped_byte(text, end);
        if (byte >= 0 && byte < ' ') {
            return false; /* a control character would break the protocol line */
        }
        const unsigned char plain = byte > 0 ? (unsigned char)byte : (unsigned char)*text;
        memcpy(&out[len++], &plain, 1);
        text += byte > 0 ? 3 : 1;
    }
    out[len] = '\0';
    /* Else the loop has stopped because out is full. */
    return text == end;
}

/* Where the login of one server begins; *out_at: the "@" that ends it, or NULL for none. */
static char *begin_of_login(char *url, char **out_at)
{
    char *scheme_end = strstr(url, "://");
    char *begin = scheme_end ? scheme_end + 3 : url;

    *out_at = strrchr(begin, '@');
    return begin;
}

bool kvb_server_url_take_login(char *url, struct kvb_server_login *out)
{
    char *at = NULL;
    char *begin = begin_of_login(url, &at);
    char *colon = at ? memchr(begin, ':', (size_t)(at - begin)) : NULL;
    struct kvb_server_login login = { .is_token = !colon };

    if (!at || !must_be_taken(begin, at) ||
        !decode_percent(begin, colon ? colon : at, login.user) ||
        (colon && !decode_percent(colon + 1, at, login.password))) {
        return false;
    }
    /* For a URL without a login nats.c uses the one of its options. */
    memmove(begin, at + 1, strlen(at + 1) + 1);
    *out = login;
    return true;
}

static bool is_same_login(const struct kvb_server_login *a, const struct kvb_server_login *b)
{
    return a->is_token == b->is_token && strcmp(a->user, b->user) == 0 &&
           strcmp(a->password, b->password) == 0;
}

/* True when kvb_server_url_take_login() had to move this server's login but did not: the login is
 * too long or contains a control character. */
static bool is_login_left(char *server)
{
    char *at = NULL;
    const char *begin = begin_of_login(server, &at);

    return at && must_be_taken(begin, at);
}

const char *kvb_server_url_login_fault(const char *url)
{
    struct kvb_server_login first = { .user = "" };
    struct kvb_server_login next = { .user = "" };
    const char *fault = NULL;
    bool has_first = false;
    char *copy = strdup(url);

    for (char *rest = copy; rest && !fault;) {
        char *server = strsep(&rest, ",");
        const bool is_taken = kvb_server_url_take_login(server, has_first ? &next : &first);
        if (!is_taken && is_login_left(server)) {
            fault =
                "a user, password or token is longer than 255 bytes or has a control character, "
                "%00 to %1F: choose another one";
        } else if (is_taken && has_first && !is_same_login(&first, &next)) {
            fault = "different logins with %XX, quotes or backslashes: use one for all servers";
        }
        has_first |= is_taken;
    }
    free(copy);
    return fault;
}

/* ---- Order ---- */

static void swap_servers(const char **servers, size_t a, size_t b)
{
    const char *server = servers[a];

    servers[a] = servers[b];
    servers[b] = server;
}

/* The Fisher-Yates shuffle. */
static void shuffle(const char **servers, size_t count, uint64_t seed)
{
    for (size_t left = count; left > 1; left--) {
        swap_servers(servers, left - 1, (size_t)kvb_random_below(&seed, left));
    }
}

void kvb_server_list_order(const char **servers, size_t count, const char *left, uint64_t seed)
{
    size_t rest = count;

    shuffle(servers, count, seed);
    for (size_t i = 0; left[0] && i < rest;) {
        if (kvb_server_url_is_same(servers[i], left)) {
            swap_servers(servers, i, --rest); /* next: the server that is now at i */
        } else {
            i++;
        }
    }
}
