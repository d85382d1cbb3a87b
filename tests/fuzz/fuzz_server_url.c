#include "bus/server_url.h"
#include "target.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool can_be_sent(const char *text)
{
    while ((unsigned char)*text >= ' ') {
        text++;
    }
    return *text == '\0';
}

/* nats.c copies a login that is still in the URL into JSON without escapes. */
static void check_server(char *server)
{
    struct kvb_server_login login = { .user = "" };
    const char *at = strrchr(server, '@');
    const bool has_quote = at && memchr(server, '"', (size_t)(at - server));

    if (!kvb_server_url_take_login(server, &login)) {
        check(!has_quote);
        return;
    }
    check(can_be_sent(login.user) && can_be_sent(login.password));
    check(!strchr(server, '@') && kvb_server_url_is_valid(server));
    check(!kvb_server_url_take_login(server, &login));
}

/* A list that is valid and has no fault can be dialed. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *url = calloc(1, size + 1);

    check(url != NULL);
    memcpy(url, data, size);
    if (kvb_server_url_is_valid(url) && !kvb_server_url_login_fault(url)) {
        for (char *rest = url; rest;) {
            check_server(strsep(&rest, ","));
        }
    }
    free(url);
    return 0;
}
