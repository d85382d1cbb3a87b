#include "bus/link.h"
#include "bus/server_url.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/own.h"
#include "core/url_show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    connect_timeout_ms = 1000,
    write_deadline_ms = 200,
    ping_interval_ms = 1000,
    pings_without_pong = 2,
    max_retry_ms = 1000,
    first_retry_ms = 100,
};

kvb_status kvb_bus_from_nats(natsStatus status)
{
    switch (status) {
    case NATS_OK:
        return KVB_OK;
    case NATS_CONNECTION_CLOSED:
    case NATS_CONNECTION_DISCONNECTED:
    case NATS_NOT_YET_CONNECTED:
    case NATS_NO_SERVER:
    case NATS_INSUFFICIENT_BUFFER:
    case NATS_DRAINING:
        return KVB_AGAIN;
    case NATS_NO_RESPONDERS:
        return KVB_NOT_FOUND;
    case NATS_MAX_PAYLOAD:
        return KVB_TOO_LARGE;
    case NATS_INVALID_SUBJECT:
        return KVB_BAD_INPUT;
    case NATS_NO_MEMORY:
        return KVB_NO_MEMORY;
    default:
        return KVB_IO;
    }
}

/* This thread's; never NULL. */
static const char *last_nats_error(void)
{
    natsStatus status = NATS_OK;
    const char *text = nats_GetLastError(&status);

    return text ? text : natsStatus_GetText(status);
}

static void drop_options(natsOptions **options)
{
    natsOptions_Destroy(*options); /* NULL is fine */
}

static void drop_text(char **text)
{
    free(*text);
}

/* nats.c itself takes no notice of tls://: it would send a password in clear to a
 * server that does not ask for TLS. */
static natsStatus
set_secrets(natsOptions *options, const char *url, const char *credentials, const char *ca_file)
{
    const bool has_authority = ca_file && ca_file[0];
    natsStatus status = NATS_OK;

    if (credentials && credentials[0]) {
        status = natsOptions_SetUserCredentialsFromFiles(options, credentials, NULL);
    }
    if (status == NATS_OK && (has_authority || kvb_server_url_wants_tls(url))) {
        status = natsOptions_SetSecure(options, true);
    }
    if (status == NATS_OK && has_authority) {
        status = natsOptions_LoadCATrustedCertificates(options, ca_file);
    }
    return status;
}

static kvb_status check_file(const char *what, const char *path, struct kvb_detail *detail)
{
    if (path && path[0] && access(path, R_OK) != 0) {
        kvb_detail_set(detail, "nats.%s: cannot read %s: %s", what, path, strerrordesc_np(errno));
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* Reads the files as dialing will. */
static kvb_status check_secrets(const struct kvb_bus_options *options, struct kvb_detail *detail)
{
    KVB_OWN(drop_options) natsOptions *trial = NULL;

    KVB_TRY(kvb_bus_from_nats(natsOptions_Create(&trial)));
    if (set_secrets(trial, options->url, options->credentials, options->ca_file) != NATS_OK) {
        kvb_detail_set(detail, "nats.credentials, nats.tls: %s", last_nats_error());
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

kvb_status kvb_bus_check_options(const struct kvb_bus_options *options, struct kvb_detail *detail)
{
    if (!options->url || !kvb_server_url_is_valid(options->url)) {
        char shown[128];
        kvb_detail_set(
            detail, "nats.url: \"%s\" is no nats://host:port, nor several with commas",
            kvb_urls_show(options->url ? options->url : "", shown, sizeof shown));
        return KVB_BAD_CONFIG;
    }
    if (!kvb_server_url_has_one_login(options->url)) {
        kvb_detail_set(detail, "nats.url: servers with different logins spelt with %%XX");
        return KVB_BAD_CONFIG;
    }
    KVB_TRY(check_file("credentials", options->credentials, detail));
    KVB_TRY(check_file("tls", options->ca_file, detail));
    return check_secrets(options, detail);
}

uint32_t kvb_bus_retry_ms(const struct kvb_bus *bus, unsigned attempt)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const kvb_span seed = { (const uint8_t *)&now_ns, sizeof now_ns };
    const unsigned doublings = attempt > 4 ? 4 : attempt - (attempt > 0);
    uint32_t most_ms = (uint32_t)first_retry_ms << doublings;

    if (most_ms > max_retry_ms) {
        most_ms = max_retry_ms;
    }
    /* The address and the process differ where two start in one nanosecond. */
    const uint64_t random = kvb_hash64(seed, (uint64_t)(uintptr_t)bus ^ (uint64_t)getpid());
    return most_ms / 2 + (uint32_t)(random % (most_ms / 2 + 1));
}

static int64_t retry_delay(natsConnection *nats, int attempts, void *closure)
{
    const struct kvb_link *link = closure;

    (void)nats;
    return kvb_bus_retry_ms(link->bus, attempts < 1 ? 1 : (unsigned)attempts);
}

/* ---- What nats.c tells, on its callback thread, in order ---------------------- */

static void set_up(struct kvb_link *link, bool is_up)
{
    struct kvb_bus *bus = link->bus;

    pthread_mutex_lock(&bus->lock);
    link->is_up = is_up;
    link->saw_loss |= !is_up;
    if (bus->link == link && !link->is_broken) {
        atomic_fetch_add_explicit(&bus->connects, is_up, memory_order_relaxed);
        atomic_store_explicit(&bus->is_connected, is_up, memory_order_release);
        pthread_cond_broadcast(&bus->changed);
    }
    pthread_mutex_unlock(&bus->lock);
}

/* natsConnection_Connect() calls nobody back when it succeeds at once; the loss
 * of that connection may have been called back before we come to say so. */
static void set_up_now(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    link->is_up |= !link->saw_loss;
    pthread_mutex_unlock(&link->bus->lock);
}

static void on_up(natsConnection *nats, void *closure)
{
    (void)nats;
    set_up(closure, true);
}

static void on_lost(natsConnection *nats, void *closure)
{
    (void)nats;
    set_up(closure, false);
}

static void log_trouble(
    struct kvb_bus *bus, struct kvb_log_limit *limit, const char *message, const char *subject,
    const char *reason)
{
    char text[24];
    uint64_t count = 0;

    pthread_mutex_lock(&bus->lock);
    const bool is_due = kvb_log_limit_due(limit, kvb_clock_monotonic_ns(), &count);
    pthread_mutex_unlock(&bus->lock);
    if (is_due) {
        kvb_log_write(
            bus->log, KVB_LOG_WARNING, "bus", message, "url", bus->shown_url, "subject",
            subject ? subject : "", "reason", reason ? reason : "", "count",
            kvb_log_u64(text, count), NULL);
    }
}

static void on_closed(natsConnection *nats, void *closure)
{
    struct kvb_link *link = closure;
    struct kvb_bus *bus = link->bus;
    const char *reason = "";

    pthread_mutex_lock(&bus->lock);
    const bool is_ours = link->is_broken || bus->is_stopping;
    pthread_mutex_unlock(&bus->lock);
    if (!is_ours) {
        (void)natsConnection_GetLastError(nats, &reason); /* only for the log */
        log_trouble(bus, &bus->error_log, "the server hung up, dialing anew", "", reason);
    }
    kvb_link_break(link);
    kvb_link_release(link);
}

/* Slow consumers (whose drops kvb_bus_dropped() counts) and refused subjects. */
static void on_error(natsConnection *nats, natsSubscription *sub, natsStatus status, void *closure)
{
    struct kvb_bus *bus = ((struct kvb_link *)closure)->bus;
    const bool is_slow = status == NATS_SLOW_CONSUMER;
    const char *reason = "";

    (void)natsConnection_GetLastError(nats, &reason); /* only for the log */
    log_trouble(
        bus, is_slow ? &bus->slow_log : &bus->error_log, natsStatus_GetText(status),
        sub ? natsSubscription_GetSubject(sub) : "", reason);
}

/* ---- Dialing ------------------------------------------------------------------ */

/* nats.c writes user and password between quotes of JSON as they are. */
static void escape(const char *text, char out[2 * kvb_server_login_bytes])
{
    size_t len = 0;

    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            out[len++] = '\\';
        }
        out[len++] = *text;
    }
    out[len] = '\0';
}

/* nats.c does not decode %40 and the like: such a login is taken out of the URL. */
static natsStatus set_login(natsOptions *options, char *server)
{
    struct kvb_server_login login = { .user = "" };
    char user[2 * kvb_server_login_bytes];
    char password[2 * kvb_server_login_bytes];

    if (!kvb_server_url_take_login(server, &login)) {
        return NATS_OK;
    }
    escape(login.user, user);
    escape(login.password, password);
    const natsStatus status = login.is_token ? natsOptions_SetToken(options, user)
                                             : natsOptions_SetUserInfo(options, user, password);
    explicit_bzero(&login, sizeof login);
    explicit_bzero(user, sizeof user);
    explicit_bzero(password, sizeof password);
    return status;
}

static natsStatus set_servers(natsOptions *options, const char *url)
{
    enum { max_servers = 64 };
    KVB_OWN(drop_text) char *copy = strdup(url);
    const char *servers[max_servers];
    natsStatus status = NATS_OK;
    char *rest = copy;
    int count = 0;

    if (!copy) {
        return NATS_NO_MEMORY;
    }
    while (rest && count < max_servers && status == NATS_OK) {
        char *server = strsep(&rest, ",");
        status = set_login(options, server);
        servers[count++] = server;
    }
    return status == NATS_OK ? natsOptions_SetServers(options, servers, count) : status;
}

static natsStatus set_callbacks(struct kvb_link *link, natsOptions *options)
{
    const natsStatus each[] = {
        natsOptions_SetReconnectedCB(options, on_up, link),
        natsOptions_SetDisconnectedCB(options, on_lost, link),
        natsOptions_SetClosedCB(options, on_closed, link),
        natsOptions_SetErrorHandler(options, on_error, link),
        natsOptions_SetCustomReconnectDelay(options, retry_delay, link),
    };

    for (size_t i = 0; i < KVB_COUNT_OF(each); i++) {
        if (each[i] != NATS_OK) {
            return each[i];
        }
    }
    return NATS_OK;
}

static natsStatus set_times(natsOptions *options)
{
    const natsStatus each[] = {
        natsOptions_SetMaxReconnect(options, -1), /* for ever */
        natsOptions_SetTimeout(options, connect_timeout_ms),
        natsOptions_SetPingInterval(options, ping_interval_ms),
        natsOptions_SetMaxPingsOut(options, pings_without_pong),
        natsOptions_SetWriteDeadline(options, write_deadline_ms),
        /* 0 means 8 MiB: one byte is the least, and lets at most one message in
         * that raced with the loss. */
        natsOptions_SetReconnectBufSize(options, 1),
        natsOptions_SetFailRequestsOnDisconnect(options, true),
        natsOptions_SetIgnoreDiscoveredServers(options, false),
    };

    for (size_t i = 0; i < KVB_COUNT_OF(each); i++) {
        if (each[i] != NATS_OK) {
            return each[i];
        }
    }
    return NATS_OK;
}

static kvb_status make_options(struct kvb_link *link, natsOptions **out_options)
{
    KVB_OWN(drop_options) natsOptions *options = NULL;
    struct kvb_bus *bus = link->bus;

    KVB_TRY(kvb_bus_from_nats(natsOptions_Create(&options)));
    KVB_TRY(kvb_bus_from_nats(set_servers(options, bus->url)));
    KVB_TRY(kvb_bus_from_nats(natsOptions_SetName(options, bus->name)));
    KVB_TRY(kvb_bus_from_nats(natsOptions_SetSendAsap(options, bus->sends_at_once)));
    KVB_TRY(kvb_bus_from_nats(set_times(options)));
    KVB_TRY(kvb_bus_from_nats(set_callbacks(link, options)));
    KVB_TRY(kvb_bus_from_nats(set_secrets(options, bus->url, bus->credentials, bus->ca_file)));
    *out_options = options;
    options = NULL;
    return KVB_OK;
}

/* Why a dial failed, in words; nats.c's begin with a place in its source.  To a client that
 * shows no certificate a server of TLS 1.3 says so only after the handshake, by its end. */
static void note_failure(struct kvb_bus *bus, natsStatus status)
{
    const char *text = last_nats_error();
    const char *words = text[0] == '(' ? strstr(text, "): ") : NULL;
    const bool is_ended = status == NATS_PROTOCOL_ERROR && strstr(text, "got ''");
    const bool is_secure = (bus->ca_file && bus->ca_file[0]) || kvb_server_url_wants_tls(bus->url);

    kvb_detail_set(
        &bus->dial_failure, "%s",
        is_ended && is_secure ? "the server ended the connection after the TLS handshake, as one "
                                "does that requires a client certificate"
        : words               ? words + 3
                              : text);
}

/* natsConnection_Connect() can fail with the closed callback posted, but only when
 * it is out of memory or threads: then the link is left to that callback. */
static bool may_call_back(natsStatus answer)
{
    return answer == NATS_NO_MEMORY || answer == NATS_SYS_ERROR;
}

static kvb_status dial_once(struct kvb_link *link, natsOptions *options)
{
    const natsStatus answer = natsConnection_Connect(&link->nats, options);

    if (answer == NATS_OK) {
        set_up_now(link);
        return KVB_OK;
    }
    note_failure(link->bus, answer);
    if (!may_call_back(answer)) {
        free(link);
    }
    return kvb_bus_from_nats(answer);
}

kvb_status kvb_link_dial(struct kvb_bus *bus, struct kvb_link **out_link)
{
    KVB_OWN(drop_options) natsOptions *options = NULL;
    struct kvb_link *link = calloc(1, sizeof *link);

    if (!link) {
        return KVB_NO_MEMORY;
    }
    *link = (struct kvb_link){ .bus = bus, .uses = 2 }; /* the caller's, on_closed()'s */
    const kvb_status status = make_options(link, &options);
    if (status != KVB_OK) {
        note_failure(bus, NATS_ERR);
        free(link);
        return status;
    }
    KVB_TRY(dial_once(link, options));
    pthread_mutex_lock(&bus->lock);
    bus->links++;
    pthread_mutex_unlock(&bus->lock);
    *out_link = link;
    return KVB_OK;
}
