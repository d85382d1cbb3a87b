#include "bus/link.h"
#include "bus/login.h"
#include "bus/server_url.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/own.h"
#include "core/url_show.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    connect_timeout_ms = 1000,
    write_deadline_ms = 200,
    max_servers = 128,
    dial_wait_ms = 15000, /* a resolver gives up after 10 s */
    /* More for each server.  An interrupt ends whatever nats.c waits for.  At 2,000 ms that was the
     * third server: nats.c gives up two silent ones after connect_timeout_ms each, and resolvers
     * count in whole seconds, too.  So it comes between two of them. */
    dial_wait_each_ms = 2600,
    dial_look_ms = 250, /* whether one must be interrupted */
    no_spins = 0,
    max_dials = 4, /* threads, including those of dials that were given up but have not ended */
};

kvb_status kvb_bus_from_nats(natsStatus status)
{
    switch (status) {
    case NATS_OK:
        return KVB_OK;
    /* Nothing was written, so the caller may send it again on the next link. */
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
    /* A part of the message may be on its way. */
    default:
        return KVB_IO;
    }
}

/* The last error of this thread; never NULL. */
static const char *last_nats_error(void)
{
    natsStatus status = NATS_OK;
    const char *text = nats_GetLastError(&status);

    return text ? text : natsStatus_GetText(status);
}

/* Skips the source position with which an error text of nats.c begins. */
const char *kvb_nats_error_words(void)
{
    const char *text = last_nats_error();
    const char *words = text[0] == '(' ? strstr(text, "): ") : NULL;

    return words ? words + 3 : text;
}

static void drop_options(natsOptions **options)
{
    natsOptions_Destroy(*options); /* NULL is fine */
}

/* Reads the files in the way that a dial does. */
static kvb_status
check_login(const struct kvb_bus_login *login, const char *url, struct kvb_detail *detail)
{
    KVB_OWN(drop_options) natsOptions *trial = NULL;

    KVB_TRY(kvb_bus_from_nats(natsOptions_Create(&trial)));
    return kvb_login_apply(login, url, trial, detail);
}

/* nats.c is started by its first call, and then waits for its locks in a loop of some 50 us.  In a
 * responder the threads that read, deliver and answer take turns with each message, and the one
 * that holds a lock may wait for this core: there a lock is waited for asleep. */
static void open_nats(bool is_responder)
{
    if (is_responder) {
        (void)nats_Open(no_spins); /* a failure returns with the next call of nats.c */
    }
}

kvb_status kvb_bus_check_options(const struct kvb_bus_options *options, struct kvb_detail *detail)
{
    open_nats(options->sends_at_once);
    if (!options->url || !kvb_server_url_is_valid(options->url)) {
        char shown[128];
        kvb_detail_set(
            detail, "nats.url: expected nats://host:port, or several with commas, not \"%s\"",
            kvb_urls_show(options->url ? options->url : "", shown, sizeof shown));
        return KVB_BAD_CONFIG;
    }
    const char *fault = kvb_server_url_login_fault(options->url);
    if (fault) {
        kvb_detail_set(detail, "nats.url: %s", fault);
        return KVB_BAD_CONFIG;
    }
    return options->login ? check_login(options->login, options->url, detail) : KVB_OK;
}

/* The bus's address and the process id give different numbers to clients that dial in the same
 * nanosecond. */
static uint64_t dial_random(const struct kvb_bus *bus, uint64_t now_ns)
{
    const kvb_span seed = { (const uint8_t *)&now_ns, sizeof now_ns };

    return kvb_hash64(seed, (uint64_t)(uintptr_t)bus ^ (uint64_t)getpid());
}

uint32_t kvb_bus_retry_ms(const struct kvb_bus *bus)
{
    const uint32_t max_ms = (uint32_t)(bus->pauses.pause_ns / KVB_NS_PER_MS);

    /* At least half of the pause; the random rest keeps clients of one server apart. */
    return max_ms / 2 + (uint32_t)(dial_random(bus, kvb_clock_monotonic_ns()) % (max_ms / 2 + 1));
}

/* ---- Callbacks of nats.c, on its callback thread, in order -------------------- */

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
            kvb_log_number(text, count), NULL);
    }
}

static void on_closed(natsConnection *nats, void *closure)
{
    struct kvb_link *link = closure;
    struct kvb_bus *bus = link->bus;
    const char *reason = "";

    pthread_mutex_lock(&bus->lock);
    /* What the bus has broken or closed itself is no news for the log, nor what ends with it. */
    const bool is_ours = link->is_broken || bus->is_stopping;
    link->is_closed = true;
    pthread_mutex_unlock(&bus->lock);
    if (!is_ours) {
        (void)natsConnection_GetLastError(nats, &reason); /* only for the log */
        log_trouble(bus, &bus->error_log, "connection ended, reconnecting", "", reason);
    }
    kvb_link_break(link);
    /* Last: this may be the last use, which destroys the connection. */
    kvb_link_release(link);
}

/* lock is held. */
static enum kvb_denial_update note_denial(struct kvb_link *link, const char *text)
{
    struct kvb_denials *denials = &link->denials;
    const uint64_t publishes = denials->publishes;
    const uint64_t subscriptions = denials->subscriptions;
    const enum kvb_denial_update update = kvb_denials_note(denials, text, kvb_clock_monotonic_ns());

    link->bus->denied_publishes += denials->publishes - publishes;
    link->bus->denied_subscriptions += denials->subscriptions - subscriptions;
    return update;
}

/* Logs a denied subject once for each connection, and publishes outside the contract with a rate
 * limit. */
static void take_denial(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;
    const char *text = last_nats_error(); /* of this error; others may follow */

    pthread_mutex_lock(&bus->lock);
    enum kvb_denial_update update = note_denial(link, text);
    /* A link that was left, or is not used yet, is counted but not logged: its denials say nothing
     * about the current one. */
    if (bus->link && bus->link != link) {
        update = KVB_DENIAL_KNOWN;
    }
    pthread_mutex_unlock(&bus->lock);
    if (update == KVB_DENIAL_NEW) {
        kvb_log_write(
            bus->log, KVB_LOG_WARNING, "bus", "no permission", "url", bus->shown_url, "reason",
            text, NULL);
    } else if (update == KVB_DENIAL_ELSEWHERE) {
        log_trouble(bus, &bus->error_log, "no permission", "", text);
    }
}

/* Reports slow consumers (kvb_bus_dropped() counts their drops), denials and other errors. */
static void on_error(natsConnection *nats, natsSubscription *sub, natsStatus status, void *closure)
{
    struct kvb_bus *bus = ((struct kvb_link *)closure)->bus;
    const bool is_slow = status == NATS_SLOW_CONSUMER;
    const char *reason = "";

    if (status == NATS_NOT_PERMITTED) {
        take_denial(closure);
        return;
    }

    (void)natsConnection_GetLastError(nats, &reason); /* only for the log */
    log_trouble(
        bus, is_slow ? &bus->slow_log : &bus->error_log, natsStatus_GetText(status),
        sub ? natsSubscription_GetSubject(sub) : "", reason);
}

/* Wakes the connection manager, which dials another server. */
static void on_lame_duck(natsConnection *nats, void *closure)
{
    struct kvb_link *link = closure;
    struct kvb_bus *bus = link->bus;

    (void)nats;
    pthread_mutex_lock(&bus->lock);
    /* nats.c calls this again with each later INFO of the server; only the first call counts. */
    const bool is_new = !link->is_lame;
    link->is_lame = true;
    kvb_bus_wake_manager(bus);
    pthread_mutex_unlock(&bus->lock);
    if (is_new) {
        atomic_fetch_add_explicit(&bus->lame_ducks, 1, memory_order_relaxed);
    }
}

/* ---- Dialing ------------------------------------------------------------------ */

/* nats.c neither decodes percent-encoded bytes in a URL's login nor escapes quotes.  Such a login
 * is moved from the URL into the options. */
static natsStatus set_login(natsOptions *options, char *server)
{
    struct kvb_server_login login = { .user = "" };
    char user[2 * kvb_server_login_bytes];
    char password[2 * kvb_server_login_bytes];

    if (!kvb_server_url_take_login(server, &login)) {
        return NATS_OK;
    }
    kvb_login_escape(login.user, user);
    kvb_login_escape(login.password, password);
    /* nats.c copies both, so nothing here keeps a secret. */
    const natsStatus status = login.is_token ? natsOptions_SetToken(options, user)
                                             : natsOptions_SetUserInfo(options, user, password);
    explicit_bzero(&login, sizeof login);
    explicit_bzero(user, sizeof user);
    explicit_bzero(password, sizeof password);
    return status;
}

static natsStatus set_servers(natsOptions *options, const struct kvb_bus *bus)
{
    KVB_OWN(kvb_own_free) char *configured = strdup(bus->url);
    const char *servers[max_servers];
    natsStatus status = NATS_OK;
    char *rest = configured;
    int count = 0;

    if (!configured) {
        return NATS_NO_MEMORY;
    }
    /* What is beyond max_servers is never dialed: the configured servers come first. */
    while (rest && count < max_servers && status == NATS_OK) {
        char *server = strsep(&rest, ",");
        status = set_login(options, server);
        servers[count++] = server;
    }
    for (size_t i = 0; i < bus->discovered_count && count < max_servers; i++) {
        servers[count++] = bus->discovered[i]; /* without a login: nats.c uses that of the others */
    }
    if (status == NATS_OK) {
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        /* For two minutes after lame duck mode the server that was left comes last. */
        const char *left = now_ns < bus->left_until_ns ? bus->left_server : "";
        kvb_server_list_order(servers, (size_t)count, left, dial_random(bus, now_ns));
        status = natsOptions_SetServers(options, servers, count);
    }
    return status;
}

static natsStatus first_failure(const natsStatus *each, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (each[i] != NATS_OK) {
            return each[i];
        }
    }
    return NATS_OK;
}

static natsStatus set_callbacks(struct kvb_link *link, natsOptions *options)
{
    const natsStatus each[] = {
        natsOptions_SetClosedCB(options, on_closed, link),
        natsOptions_SetErrorHandler(options, on_error, link),
        natsOptions_SetLameDuckModeCB(options, on_lame_duck, link),
    };

    return first_failure(each, KVB_COUNT_OF(each));
}

/* Switches off the reconnects and pings of nats.c: they use the realtime clock. */
static natsStatus set_times(natsOptions *options)
{
    const natsStatus each[] = {
        natsOptions_SetAllowReconnect(options, false),
        natsOptions_SetPingInterval(options, 0),
        natsOptions_SetTimeout(options, connect_timeout_ms),
        natsOptions_SetWriteDeadline(options, write_deadline_ms),
        natsOptions_SetIgnoreDiscoveredServers(options, false),
        natsOptions_SetNoRandomize(options, true), /* kvb_server_list_order() has shuffled them */
    };

    return first_failure(each, KVB_COUNT_OF(each));
}

static bool may_attach(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    const bool has_met_tls = bus->has_met_tls;
    pthread_mutex_unlock(&bus->lock);
    /* See the head of socket.c for why neither TLS nor a responder is attached. */
    return !bus->sends_at_once && !has_met_tls && !kvb_login_wants_tls(&bus->login, bus->url);
}

static kvb_status make_options(struct kvb_link *link, natsOptions **out_options)
{
    KVB_OWN(drop_options) natsOptions *options = NULL;
    struct kvb_bus *bus = link->bus;

    KVB_TRY(kvb_bus_from_nats(natsOptions_Create(&options)));
    KVB_TRY(kvb_bus_from_nats(set_servers(options, bus)));
    KVB_TRY(kvb_bus_from_nats(natsOptions_SetName(options, bus->name)));
    KVB_TRY(kvb_bus_from_nats(
        may_attach(bus) ? kvb_socket_attach(link, options)
                        : natsOptions_SetSendAsap(options, bus->sends_at_once)));
    /* One thread for all subscriptions keeps their messages in the order of the connection.  It is
     * a pool of nats.c with as many threads as it is told, which is one. */
    KVB_TRY(kvb_bus_from_nats(natsOptions_UseGlobalMessageDelivery(options, true)));
    KVB_TRY(kvb_bus_from_nats(set_times(options)));
    KVB_TRY(kvb_bus_from_nats(set_callbacks(link, options)));
    /* It reads the files with secrets, and says itself which of them is wrong. */
    KVB_TRY(kvb_login_apply(&bus->login, bus->url, options, &bus->dial_failure));
    *out_options = options;
    options = NULL;
    return KVB_OK;
}

/* ---- One dial, on a thread of its own ------------------------------------------- */

/* One attempt to connect.  nats.c may wait long for a name server.  It waits for ever when a server
 * stops answering in the TLS handshake, to which nats.c 3.4 sets no time limit.  Its other time
 * limits are on the realtime clock. */
struct kvb_dialing {
    struct kvb_dialing *next; /* in the bus's list; under lock, like the next three */
    pthread_t thread;         /* the thread runs while this struct is in the list */
    uint64_t interrupt_at_ns;
    bool is_interrupted;
    struct kvb_link *link;     /* owned until is_done */
    natsOptions *options;      /* owned */
    bool is_signed;            /* the login signs a nonce of the server */
    const char *refusal;       /* static; see likely_refusal() */
    natsStatus answer;         /* of nats.c */
    struct kvb_detail failure; /* why it failed, for people */
    bool is_done;              /* then the manager frees this struct; under lock, like the next */
    bool is_given_up;          /* then the dialing thread frees this struct */
};

/* True when the server probably closed the connection after the TLS handshake.  With TLS 1.3 a
 * server rejects a client's certificate in this way.  nats.c notices it in a read or in a write. */
static bool is_ended_after_handshake(natsStatus status, const char *words)
{
    return (status == NATS_PROTOCOL_ERROR && strstr(words, "got ''")) ||
           strncmp(words, "SSL_write error", sizeof "SSL_write error" - 1) == 0;
}

/* The likely reason when the server closes the connection after the handshake; NULL: no TLS. */
static const char *likely_refusal(const struct kvb_bus *bus)
{
    if (!kvb_login_wants_tls(&bus->login, bus->url)) {
        return NULL;
    }
    return bus->login.cert_file[0] == '\0'
               ? "requires a client certificate"
               : "does not accept the certificate in nats.cert_file: it may have ended";
}

/* Stores why a dial failed. */
static void note_failure(struct kvb_dialing *dialing)
{
    /* On the dialing thread: nats.c keeps an error for the thread that met it. */
    const char *words = kvb_nats_error_words();

    if (dialing->refusal && is_ended_after_handshake(dialing->answer, words)) {
        kvb_detail_set(
            &dialing->failure,
            "the server ended the connection after the TLS handshake, as one does that %s",
            dialing->refusal);
    } else {
        kvb_detail_set(&dialing->failure, "%s", words);
    }
}

/* Replaces the error text of an interrupted TLS handshake, which nats.c takes from OpenSSL. */
static void note_silence(struct kvb_dialing *dialing, struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    const bool is_interrupted = dialing->is_interrupted;
    pthread_mutex_unlock(&bus->lock);
    if (is_interrupted && strstr(dialing->failure.text, "handshake error: (null)")) {
        kvb_detail_set(
            &dialing->failure,
            "a server accepts connections but does not answer in the TLS "
            "handshake for %.1f s",
            dial_wait_each_ms / 1000.0);
    }
}

static void on_dial_signal(int number)
{
    (void)number;
}

/* True when nats.c may still call the closed callback after natsConnection_Connect() has failed. It
 * does so only when it is out of memory or threads.  The link must then stay allocated, and so must
 * one that was attached and whose attempt failed afterwards, which nats.c does not do. */
static bool may_call_back(natsStatus answer)
{
    return answer == NATS_NO_MEMORY || answer == NATS_SYS_ERROR;
}

static void free_dialing(struct kvb_dialing *dialing)
{
    drop_options(&dialing->options);
    free(dialing);
}

/* Releases the link of a dial that was given up. */
static void drop_late_link(struct kvb_dialing *dialing)
{
    struct kvb_link *link = dialing->link;

    if (dialing->answer == NATS_OK) {
        /* The other use is that of the closed callback, which follows the close. */
        kvb_socket_close(link);
        kvb_link_release(link);
    } else if (!may_call_back(dialing->answer) && !kvb_socket_is_attached(link)) {
        kvb_link_free(link);
    }
}

/* Lets SIGURG interrupt the system call in which this thread waits.  nats.c then tries the next
 * server, or fails; name look-ups continue. */
static void let_be_interrupted(void)
{
    /* Without SA_RESTART, or the kernel would go on with the call. */
    const struct sigaction action = { .sa_handler = on_dial_signal };
    sigset_t interrupting;

    /* SIGURG, because a process without a handler ignores it. */
    (void)sigemptyset(&interrupting);
    (void)sigaddset(&interrupting, SIGURG);
    (void)sigaction(SIGURG, &action, NULL);
    (void)pthread_sigmask(SIG_UNBLOCK, &interrupting, NULL);
}

void kvb_dials_interrupt(struct kvb_bus *bus)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    for (struct kvb_dialing *each = bus->dialings; each; each = each->next) {
        if (bus->is_stopping || now_ns >= each->interrupt_at_ns) {
            /* nats.c goes on with the next server, which gets the same time. */
            each->interrupt_at_ns = now_ns + dial_wait_each_ms * KVB_NS_PER_MS;
            each->is_interrupted = true;
            (void)pthread_kill(each->thread, SIGURG);
        }
    }
}

static void begin_dial(struct kvb_dialing *dialing, struct kvb_bus *bus)
{
    /* Before the thread is in the list: from there on it may be sent the signal. */
    let_be_interrupted();
    pthread_mutex_lock(&bus->lock);
    dialing->thread = pthread_self();
    dialing->interrupt_at_ns = kvb_clock_monotonic_ns() + dial_wait_each_ms * KVB_NS_PER_MS;
    dialing->next = bus->dialings;
    bus->dialings = dialing;
    pthread_mutex_unlock(&bus->lock);
}

/* lock is held. */
static void leave_dialings(struct kvb_dialing *dialing, struct kvb_bus *bus)
{
    struct kvb_dialing **at = &bus->dialings;

    while (*at != dialing) {
        at = &(*at)->next;
    }
    *at = dialing->next;
}

static void end_dial(struct kvb_dialing *dialing, struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    /* Out of the list first: the signal must not be sent to a thread that has ended. */
    leave_dialings(dialing, bus);
    /* Under the lock: either the manager or this thread frees the struct. */
    const bool is_given_up = dialing->is_given_up;
    dialing->is_done = true;
    /* Counted before bus->dials falls, or wait_for_ends() would see neither of them. */
    bus->links += dialing->answer == NATS_OK;
    pthread_mutex_unlock(&bus->lock);
    if (is_given_up) {
        drop_late_link(dialing);
        free_dialing(dialing);
    }
}

/* Connects, and repeats a rejected login that signs a nonce. */
static natsStatus connect_twice(struct kvb_dialing *dialing)
{
    natsStatus answer = natsConnection_Connect(&dialing->link->nats, dialing->options);

    /* nats.c takes a signature that begins with a zero byte for an empty one, and does not send it:
     * the server rejects one of 256 such logins.  The second attempt signs another nonce. */
    if (dialing->is_signed && answer == NATS_CONNECTION_AUTH_FAILED) {
        answer = natsConnection_Connect(&dialing->link->nats, dialing->options);
    }
    return answer;
}

static void *connect_once(void *argument)
{
    struct kvb_dialing *dialing = argument;
    struct kvb_bus *bus = dialing->link->bus;

    begin_dial(dialing, bus);
    dialing->answer = connect_twice(dialing);
    if (dialing->answer != NATS_OK) {
        note_failure(dialing);
        note_silence(dialing, bus);
    }
    end_dial(dialing, bus);
    /* From here on dialing may be gone. */
    pthread_mutex_lock(&bus->lock);
    bus->dials--; /* after the unlock, the bus may be freed */
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->lock);
    return NULL;
}

/* False: the dial was given up. */
static bool wait_for_dial(struct kvb_bus *bus, struct kvb_dialing *dialing, uint32_t wait_ms)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + wait_ms * KVB_NS_PER_MS;

    pthread_mutex_lock(&bus->lock);
    while (!dialing->is_done && !bus->is_stopping && kvb_clock_monotonic_ns() < end_ns) {
        const struct timespec look = kvb_bus_deadline(dial_look_ms);
        (void)pthread_cond_timedwait(&bus->changed, &bus->lock, &look);
        kvb_dials_interrupt(bus);
    }
    /* Decided under the lock under which end_dial() reads it. */
    dialing->is_given_up = !dialing->is_done;
    const bool is_done = dialing->is_done;
    pthread_mutex_unlock(&bus->lock);
    return is_done;
}

/* The time to wait for a dial: nats.c tries all servers of the list in turn. */
static uint32_t patience_ms(const struct kvb_bus *bus)
{
    uint32_t servers = 1 + (uint32_t)bus->discovered_count;

    for (const char *at = bus->url; *at; at++) {
        servers += *at == ',';
    }
    return dial_wait_ms + servers * dial_wait_each_ms;
}

static kvb_status start_dial(struct kvb_bus *bus, struct kvb_dialing *dialing)
{
    pthread_t thread;

    pthread_mutex_lock(&bus->lock);
    const bool has_room = bus->dials < max_dials;
    bus->dials += has_room;
    pthread_mutex_unlock(&bus->lock);
    /* Dials that were given up still wait for a name server, each with its thread. */
    if (!has_room) {
        kvb_detail_set(&bus->dial_failure, "earlier attempts have not ended: does DNS answer?");
        return KVB_IO;
    }
    if (pthread_create(&thread, NULL, connect_once, dialing) != 0) {
        kvb_detail_set(&bus->dial_failure, "cannot start a thread for the attempt");
        pthread_mutex_lock(&bus->lock);
        bus->dials--;
        pthread_mutex_unlock(&bus->lock);
        return KVB_IO;
    }
    pthread_detach(thread);
    return KVB_OK;
}

static kvb_status dial_once(struct kvb_bus *bus, struct kvb_dialing *dialing)
{
    const kvb_status status = start_dial(bus, dialing);

    if (status != KVB_OK) {
        kvb_link_free(dialing->link);
        free_dialing(dialing);
        return status;
    }
    if (!wait_for_dial(bus, dialing, patience_ms(bus))) {
        /* Neither dialing nor its link is touched any more: the dialing thread frees both. */
        kvb_detail_set(&bus->dial_failure, "the attempt has not ended: does DNS answer?");
        return KVB_IO;
    }
    const natsStatus answer = dialing->answer;
    if (answer != NATS_OK) {
        bus->dial_failure = dialing->failure;
        drop_late_link(dialing);
    }
    free_dialing(dialing);
    return kvb_bus_from_nats(answer);
}

static kvb_status prepare_dialing(struct kvb_bus *bus, struct kvb_dialing **out_dialing)
{
    struct kvb_dialing *dialing = calloc(1, sizeof *dialing);
    struct kvb_link *link = kvb_link_new(bus);

    if (!dialing || !link) {
        free(dialing);
        kvb_link_free(link);
        return KVB_NO_MEMORY;
    }
    bus->dial_failure.text[0] = '\0';
    const kvb_status status = make_options(link, &dialing->options);
    if (status != KVB_OK) {
        /* The login has said why; for other options nats.c knows the reason. */
        if (bus->dial_failure.text[0] == '\0') {
            kvb_detail_set(&bus->dial_failure, "%s", kvb_nats_error_words());
        }
        kvb_link_free(link);
        free(dialing);
        return status;
    }
    dialing->link = link;
    dialing->refusal = likely_refusal(bus);
    dialing->is_signed = bus->login.nkey_seed_file[0] != '\0' || bus->login.credentials[0] != '\0';
    *out_dialing = dialing;
    return KVB_OK;
}

kvb_status kvb_link_dial(struct kvb_bus *bus, struct kvb_link **out_link)
{
    struct kvb_dialing *dialing = NULL;

    KVB_TRY(prepare_dialing(bus, &dialing));
    /* Kept apart, because dial_once() frees the struct in any case. */
    struct kvb_link *link = dialing->link;
    KVB_TRY(dial_once(bus, dialing));
    *out_link = link;
    return KVB_OK;
}

/* ---- Servers that a server announces ---------------------------------------------- */

/* Takes server.  Frees it when it is known, or there is no room. */
static void keep_server(char **servers, size_t *count, char *server)
{
    for (size_t i = 0; i < *count; i++) {
        if (kvb_server_url_is_same(servers[i], server)) {
            free(server);
            return;
        }
    }
    if (*count == kvb_max_discovered) {
        free(server);
        return;
    }
    servers[(*count)++] = server;
}

void kvb_link_note_servers(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;
    char *servers[kvb_max_discovered];
    char **announced = NULL;
    size_t kept = 0;
    int count = 0;

    /* With TLS, announced IP addresses cannot be used when certificates contain only host names. */
    if (natsConnection_GetDiscoveredServers(link->nats, &announced, &count) != NATS_OK) {
        return;
    }
    for (int i = 0; i < count; i++) {
        keep_server(servers, &kept, announced[i]);
    }
    free(announced);
    /* nats.c names those alone that the dialed list lacked: the others may still be there.  They
     * come last, so that those announced first make room for new ones. */
    for (size_t i = 0; i < bus->discovered_count; i++) {
        keep_server(servers, &kept, bus->discovered[i]);
    }
    memcpy(bus->discovered, servers, kept * sizeof *servers);
    bus->discovered_count = kept;
}
