#include "daemon/http_access.h"

#include "daemon/bearer_token.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The files of enum kvb_http_tls_fault come first. */
enum { file_of_token = KVB_HTTP_TLS_CLIENT_CA + 1, file_count };

/* How logs and errors name a listener and its files. */
static const struct listener_words {
    const char *room;
    const char *keys[file_count];
    const char *rejected;
    const char *read_again;
} listener_words[] = {
    [KVB_LISTENER_HTTP] = { .room = "http",
                            .keys = { [KVB_HTTP_TLS_CERT] = "http_security.cert_file",
                                      [KVB_HTTP_TLS_KEY] = "http_security.key_file",
                                      [file_of_token] = "http_security.token_file" },
                            .rejected = "certificates and token rejected; keeping the running ones",
                            .read_again = "certificates and token read again" },
    [KVB_LISTENER_GRPC] = { .room = "grpc",
                            .keys = { [KVB_HTTP_TLS_CERT] = "grpc.tls.cert_file",
                                      [KVB_HTTP_TLS_KEY] = "grpc.tls.key_file" },
                            .rejected = "certificates rejected; keeping the running ones",
                            .read_again = "certificates read again" },
    [KVB_LISTENER_GATEWAY] = { .room = "gateway",
                               .keys = { [KVB_HTTP_TLS_CERT] = "gateway.tls.cert_file",
                                         [KVB_HTTP_TLS_KEY] = "gateway.tls.key_file",
                                         [KVB_HTTP_TLS_CLIENT_CA] = "gateway.tls.client_ca_file" },
                               .rejected = "certificates rejected; keeping the running ones",
                               .read_again = "certificates read again" },
};

/* The loaded content of the files. */
struct access_material {
    struct kvb_http_tls *tls; /* owned; NULL: no TLS */
    char token[kvb_bearer_token_bytes];
};

struct kvb_http_access {
    const struct listener_words *words;
    const struct kvb_http_security *security; /* borrowed, like the next two */
    const char *register_token_file;
    struct kvb_log *log;
    pthread_rwlock_t lock; /* guards the next */
    struct access_material material;
    pthread_mutex_t register_lock; /* guards the next */
    struct kvb_detail unreadable;  /* why the token to register is unreadable; "": it is not */
};

bool kvb_http_security_is_tls(const struct kvb_http_security *security)
{
    return security->cert_file[0] != '\0' || security->is_self_signed;
}

bool kvb_http_access_is_tls(const struct kvb_http_access *access)
{
    return kvb_http_security_is_tls(access->security);
}

bool kvb_http_access_is_guarded(const struct kvb_http_access *access)
{
    return access->security->token_file[0] != '\0';
}

/* ---- Reading the files ---------------------------------------------------------------- */

static void drop_material(struct access_material *material)
{
    kvb_http_tls_drop(material->tls);
    explicit_bzero(material, sizeof *material);
}

static kvb_status load_tls_files(
    const struct kvb_http_access *access, struct kvb_http_tls **out_tls, const char **out_key,
    struct kvb_detail *detail)
{
    const struct kvb_http_security *security = access->security;
    const struct kvb_http_tls_files files = { .cert_file = security->cert_file,
                                              .key_file = security->key_file,
                                              .is_self_signed = security->is_self_signed,
                                              .client_ca_file = security->client_ca_file };
    enum kvb_http_tls_fault fault = KVB_HTTP_TLS_CERT;
    const kvb_status status = kvb_http_tls_load(&files, out_tls, &fault, detail);

    if (status != KVB_OK) {
        *out_key = access->words->keys[fault];
    }
    return status;
}

static kvb_status load_material(
    const struct kvb_http_access *access, struct access_material *out_material,
    const char **out_key, struct kvb_detail *detail)
{
    const struct kvb_http_security *security = access->security;
    struct access_material material = { 0 };
    kvb_status status = KVB_OK;

    if (kvb_http_security_is_tls(security)) {
        status = load_tls_files(access, &material.tls, out_key, detail);
    }
    if (status == KVB_OK && security->token_file[0] != '\0') {
        *out_key = access->words->keys[file_of_token];
        status = kvb_bearer_token_read(security->token_file, material.token, detail);
    }
    /* All or nothing: new certificates beside an old token are a state that nobody configured. */
    if (status != KVB_OK) {
        drop_material(&material);
        return status;
    }
    *out_material = material;
    return KVB_OK;
}

void kvb_http_access_reload(struct kvb_http_access *access)
{
    struct access_material material;
    struct kvb_detail why = { .text = "" };
    const char *key = "";

    if (!kvb_http_access_is_tls(access) && access->security->token_file[0] == '\0') {
        return;
    }
    const kvb_status status = load_material(access, &material, &key, &why);
    if (status != KVB_OK) {
        kvb_log_write(
            access->log, KVB_LOG_ERROR, access->words->room, access->words->rejected, "key", key,
            "why", why.text[0] ? why.text : kvb_status_name(status), NULL);
        return;
    }
    (void)pthread_rwlock_wrlock(&access->lock);
    struct access_material old = access->material;
    access->material = material;
    (void)pthread_rwlock_unlock(&access->lock);
    /* Sessions have references of their own: the old certificate is freed with the last of them. */
    drop_material(&old);
    explicit_bzero(&material, sizeof material);
    kvb_log_write(access->log, KVB_LOG_INFO, access->words->room, access->words->read_again, NULL);
}

/* ---- Creating and freeing ------------------------------------------------------------- */

kvb_status kvb_http_access_new(
    const struct kvb_http_access_options *options, struct kvb_http_access **out_access,
    const char **out_key, struct kvb_detail *detail)
{
    struct kvb_http_access *access = calloc(1, sizeof *access);

    /* Before anything can fail, because the caller names a key with each error. */
    *out_key = listener_words[options->listener].keys[KVB_HTTP_TLS_CERT];
    if (!access) {
        return KVB_NO_MEMORY;
    }
    access->words = &listener_words[options->listener];
    access->security = options->security;
    access->register_token_file = options->register_token_file ? options->register_token_file : "";
    access->log = options->log;
    (void)pthread_rwlock_init(&access->lock, NULL); /* cannot fail with glibc, like the next */
    (void)pthread_mutex_init(&access->register_lock, NULL);
    const kvb_status status = load_material(access, &access->material, out_key, detail);
    if (status != KVB_OK) {
        kvb_http_access_free(access);
        return status;
    }
    *out_access = access;
    return KVB_OK;
}

void kvb_http_access_free(struct kvb_http_access *access)
{
    if (access) {
        drop_material(&access->material);
        (void)pthread_rwlock_destroy(&access->lock);
        (void)pthread_mutex_destroy(&access->register_lock);
        free(access);
    }
}

/* ---- Requests ------------------------------------------------------------------------- */

struct kvb_http_tls *kvb_http_access_tls(struct kvb_http_access *access)
{
    (void)pthread_rwlock_rdlock(&access->lock);
    struct kvb_http_tls *tls = kvb_http_tls_ref(access->material.tls);
    (void)pthread_rwlock_unlock(&access->lock);
    return tls;
}

/* Logs each reason once, not at each request.  why: "" when the token was read. */
static void note_register_token(struct kvb_http_access *access, const struct kvb_detail *why)
{
    (void)pthread_mutex_lock(&access->register_lock);
    const bool is_same = strcmp(access->unreadable.text, why->text) == 0;
    access->unreadable = *why;
    (void)pthread_mutex_unlock(&access->register_lock);
    if (is_same) {
        return;
    }
    if (why->text[0]) {
        kvb_log_write(
            access->log, KVB_LOG_ERROR, "http",
            "register.token_file cannot be used: requests to register are refused with 503", "why",
            why->text, NULL);
    } else {
        kvb_log_write(
            access->log, KVB_LOG_INFO, "http", "register.token_file can be used again", NULL);
    }
}

static enum kvb_http_verdict
check_register(struct kvb_http_access *access, const char authorization[])
{
    char token[kvb_bearer_token_bytes];
    struct kvb_detail why = { .text = "" };
    enum kvb_http_verdict verdict = KVB_HTTP_NO_TOKEN;

    if (access->register_token_file[0] == '\0') {
        return KVB_HTTP_REGISTER_DISABLED;
    }
    /* Read for each request: a rotated token counts at once, without a reload. */
    const kvb_status status = kvb_bearer_token_read(access->register_token_file, token, &why);
    note_register_token(access, &why);
    if (status != KVB_OK) {
        return KVB_HTTP_REGISTER_UNREADABLE;
    }
    if (kvb_bearer_token_is_shown(authorization, token)) {
        verdict = KVB_HTTP_GRANTED;
    }
    explicit_bzero(token, sizeof token);
    return verdict;
}

enum kvb_http_verdict kvb_http_access_check(
    struct kvb_http_access *access, enum kvb_http_rule rule, const char authorization[])
{
    if (rule == KVB_HTTP_OPEN || (rule == KVB_HTTP_OF_METRICS && access->security->open_metrics)) {
        return KVB_HTTP_GRANTED;
    }
    /* Never open, even where no other path needs a token: who registers makes the bridge connect to
     * an address of his choice. */
    if (rule == KVB_HTTP_OF_REGISTER) {
        return check_register(access, authorization);
    }
    /* A reload may replace the token now, but not whether one is needed. */
    (void)pthread_rwlock_rdlock(&access->lock);
    const bool is_granted = access->security->token_file[0] == '\0' ||
                            kvb_bearer_token_is_shown(authorization, access->material.token);
    (void)pthread_rwlock_unlock(&access->lock);
    return is_granted ? KVB_HTTP_GRANTED : KVB_HTTP_NO_TOKEN;
}
