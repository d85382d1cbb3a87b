#include "daemon/http_access.h"

#include "daemon/bearer_token.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
                                      [KVB_HTTP_TLS_CLIENT_CA] = "http_security.client_ca_file",
                                      [file_of_token] = "http_security.token_file" },
                            .rejected = "certificates and token rejected; keeping the running ones",
                            .read_again = "certificates and token read again" },
    [KVB_LISTENER_GRPC] = { .room = "grpc",
                            .keys = { [KVB_HTTP_TLS_CERT] = "grpc.tls.cert_file",
                                      [KVB_HTTP_TLS_KEY] = "grpc.tls.key_file",
                                      [KVB_HTTP_TLS_CLIENT_CA] = "grpc.tls.client_ca_file" },
                            .rejected = "certificates rejected; keeping the running ones",
                            .read_again = "certificates read again" },
};

/* Identifies the content of a file without reading it. */
struct file_mark {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec changed;
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
    pthread_rwlock_t lock; /* guards material and generation */
    struct access_material material;
    uint32_t generation;                /* counts loads of material; from 1 on */
    char *client_ca;                    /* owned; NULL: none */
    pthread_mutex_t register_lock;      /* guards the next */
    struct kvb_detail unreadable;       /* why the token to register is unreadable; "": it is not */
    struct file_mark marks[file_count]; /* used by the refreshing thread only, like the next */
    struct kvb_detail rejected;         /* why the newest files are unusable; "": they are used */
};

bool kvb_http_access_is_tls(const struct kvb_http_access *access)
{
    return access->security->cert_file[0] != '\0';
}

bool kvb_http_access_is_guarded(const struct kvb_http_access *access)
{
    return access->security->token_file[0] != '\0' || access->security->client_ca_file[0] != '\0';
}

char *kvb_http_access_client_ca(const struct kvb_http_access *access)
{
    return access->client_ca;
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

    if (security->cert_file[0] != '\0') {
        status = load_tls_files(access, &material.tls, out_key, detail);
    }
    if (status == KVB_OK && security->token_file[0] != '\0') {
        *out_key = access->words->keys[file_of_token];
        status = kvb_bearer_token_read(security->token_file, material.token, detail);
    }
    if (status != KVB_OK) {
        drop_material(&material);
        return status;
    }
    *out_material = material;
    return KVB_OK;
}

static bool has_files(const struct kvb_http_access *access)
{
    return kvb_http_access_is_tls(access) || access->security->token_file[0] != '\0';
}

/* True when one of the files has changed since the last call. */
static bool note_marks(struct kvb_http_access *access)
{
    const struct kvb_http_security *security = access->security;
    const char *const paths[file_count] = { security->cert_file, security->key_file,
                                            security->client_ca_file, security->token_file };
    bool has_changed = false;

    for (size_t i = 0; i < file_count; i++) {
        struct file_mark mark;
        struct stat about;
        memset(&mark, 0, sizeof mark); /* memcmp() compares padding, too */
        if (paths[i][0] != '\0' && stat(paths[i], &about) == 0) {
            mark.device = about.st_dev;
            mark.inode = about.st_ino;
            mark.bytes = about.st_size;
            mark.changed = about.st_ctim;
        }
        has_changed = has_changed || memcmp(&mark, &access->marks[i], sizeof mark) != 0;
        memcpy(&access->marks[i], &mark, sizeof mark);
    }
    return has_changed;
}

/* Stores the reason, and logs it when it is new or is_due. */
static void
reject_files(struct kvb_http_access *access, bool is_due, const char *key, const char *why)
{
    const struct kvb_detail before = access->rejected;

    kvb_detail_set(&access->rejected, "%s: %s", key, why);
    if (is_due || strcmp(before.text, access->rejected.text) != 0) {
        kvb_log_write(
            access->log, KVB_LOG_ERROR, access->words->room, access->words->rejected, "key", key,
            "why", why, NULL);
    }
}

static void exchange_material(struct kvb_http_access *access, struct access_material *material)
{
    (void)pthread_rwlock_wrlock(&access->lock);
    struct access_material old = access->material;
    access->material = *material;
    access->generation++;
    (void)pthread_rwlock_unlock(&access->lock);
    drop_material(&old);
    explicit_bzero(material, sizeof *material);
    access->rejected.text[0] = '\0';
    kvb_log_write(access->log, KVB_LOG_INFO, access->words->room, access->words->read_again, NULL);
}

static void read_files_again(struct kvb_http_access *access, bool is_due)
{
    struct access_material material;
    struct kvb_detail detail = { .text = "" };
    const char *key = "";
    const kvb_status status = load_material(access, &material, &key, &detail);

    if (status == KVB_OK) {
        exchange_material(access, &material);
    } else {
        reject_files(access, is_due, key, detail.text[0] ? detail.text : kvb_status_name(status));
    }
}

/* Rejected files are read at each call, because the cause may be elsewhere, such as too many open
 * files. */
void kvb_http_access_refresh(struct kvb_http_access *access, bool is_forced)
{
    const bool is_due = note_marks(access) || (is_forced && has_files(access));

    if (is_due || kvb_http_access_is_rejected(access)) {
        read_files_again(access, is_due);
    }
}

bool kvb_http_access_is_rejected(const struct kvb_http_access *access)
{
    return access->rejected.text[0] != '\0';
}

/* ---- Creating and freeing ------------------------------------------------------------- */

/* Copies the text for libmicrohttpd, which keeps the pointer, while the material is replaced. */
static kvb_status copy_client_ca(struct kvb_http_access *access)
{
    const char *text = access->material.tls ? kvb_http_tls_client_ca(access->material.tls) : NULL;

    access->client_ca = text ? strdup(text) : NULL;
    return text && !access->client_ca ? KVB_NO_MEMORY : KVB_OK;
}

kvb_status kvb_http_access_new(
    const struct kvb_http_access_options *options, struct kvb_http_access **out_access,
    const char **out_key, struct kvb_detail *detail)
{
    struct kvb_http_access *access = calloc(1, sizeof *access);

    *out_key = listener_words[options->listener].keys[KVB_HTTP_TLS_CERT];
    if (!access) {
        return KVB_NO_MEMORY;
    }
    access->words = &listener_words[options->listener];
    access->security = options->security;
    access->register_token_file = options->register_token_file ? options->register_token_file : "";
    access->log = options->log;
    access->generation = 1;
    (void)pthread_rwlock_init(&access->lock, NULL); /* cannot fail with glibc, like the next */
    (void)pthread_mutex_init(&access->register_lock, NULL);
    (void)note_marks(access);
    kvb_status status = load_material(access, &access->material, out_key, detail);
    if (status == KVB_OK) {
        status = copy_client_ca(access);
    }
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
        free(access->client_ca);
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

/* Under the lock. */
static bool
is_client_known(const struct kvb_http_access *access, gnutls_session_t session, uint32_t *verified)
{
    if (access->security->client_ca_file[0] == '\0' || *verified == access->generation) {
        return true;
    }
    if (!session || !kvb_http_tls_is_client_known(access->material.tls, session)) {
        return false;
    }
    *verified = access->generation;
    return true;
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

/* Checks all except the token to register.  Under the lock. */
static enum kvb_http_verdict check_guarded(
    const struct kvb_http_access *access, enum kvb_http_rule rule, const char authorization[],
    gnutls_session_t session, uint32_t *verified)
{
    if (!is_client_known(access, session, verified)) {
        return KVB_HTTP_NO_CERTIFICATE;
    }
    return rule == KVB_HTTP_OF_REGISTER || access->security->token_file[0] == '\0' ||
                   kvb_bearer_token_is_shown(authorization, access->material.token)
               ? KVB_HTTP_GRANTED
               : KVB_HTTP_NO_TOKEN;
}

enum kvb_http_verdict kvb_http_access_check(
    struct kvb_http_access *access, enum kvb_http_rule rule, const char authorization[],
    gnutls_session_t session, uint32_t *verified)
{
    if (rule == KVB_HTTP_OPEN || (rule == KVB_HTTP_OF_METRICS && access->security->open_metrics)) {
        return KVB_HTTP_GRANTED;
    }
    (void)pthread_rwlock_rdlock(&access->lock);
    const enum kvb_http_verdict verdict =
        check_guarded(access, rule, authorization, session, verified);
    (void)pthread_rwlock_unlock(&access->lock);
    return verdict == KVB_HTTP_GRANTED && rule == KVB_HTTP_OF_REGISTER
               ? check_register(access, authorization)
               : verdict;
}
