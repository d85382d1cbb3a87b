#include "bus/login.h"

#include "bus/bus.h"
#include "bus/contract.h"
#include "bus/link.h"
#include "bus/nkey.h"
#include "bus/server_url.h"
#include "bus/subject.h"
#include "core/hash.h"
#include "core/own.h"
#include "core/secret_file.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

enum { secret_bytes = 4096, max_secret_bytes = 2 * secret_bytes };

void kvb_openssl_keep_at_exit(void)
{
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* on failure: as by default */
}

/* ---- Checks without a server ---- */

/* The ways to log in, each with the option that selects it.  A connection has at most one. */
static const struct {
    const char *key;
    size_t offset;
} login_kinds[] = {
    { "user", offsetof(struct kvb_bus_login, user) },
    { "token_file", offsetof(struct kvb_bus_login, token_file) },
    { "credentials", offsetof(struct kvb_bus_login, credentials) },
    { "nkey_seed_file", offsetof(struct kvb_bus_login, nkey_seed_file) },
};

/* Pairs of options of which each requires the other. */
static const struct {
    const char *key;
    size_t offset;
    const char *other_key;
    size_t other_offset;
} login_pairs[] = {
    { "user", offsetof(struct kvb_bus_login, user), "password_file",
      offsetof(struct kvb_bus_login, password_file) },
    { "cert_file", offsetof(struct kvb_bus_login, cert_file), "key_file",
      offsetof(struct kvb_bus_login, key_file) },
};

static const char *text_of(const struct kvb_bus_login *login, size_t offset)
{
    return (const char *)login + offset;
}

/* True when text contains a control character.  nats.c does not write these as JSON escapes
 * (\u00XX): a line end in a password would end the protocol line. */
static bool login_has_control(const char *text)
{
    while ((unsigned char)*text >= ' ') {
        text++;
    }
    return *text != '\0';
}

static kvb_status check_one_login(
    const struct kvb_bus_login *login, const char *url, const char **out_key,
    struct kvb_detail *detail)
{
    /* A login in the URL is one, too. */
    const char *first = strchr(url, '@') ? "url" : NULL;

    for (size_t i = 0; i < KVB_COUNT_OF(login_kinds); i++) {
        if (text_of(login, login_kinds[i].offset)[0] == '\0') {
            continue;
        }
        if (first) {
            *out_key = login_kinds[i].key;
            kvb_detail_set(
                detail,
                "a connection has one login, and nats.%s contains one: remove one of the two",
                first);
            return KVB_BAD_CONFIG;
        }
        first = login_kinds[i].key;
    }
    return KVB_OK;
}

static kvb_status
check_pairs(const struct kvb_bus_login *login, const char **out_key, struct kvb_detail *detail)
{
    for (size_t i = 0; i < KVB_COUNT_OF(login_pairs); i++) {
        const bool has_one = text_of(login, login_pairs[i].offset)[0] != '\0';
        const bool has_other = text_of(login, login_pairs[i].other_offset)[0] != '\0';
        if (has_one != has_other) {
            *out_key = has_one ? login_pairs[i].key : login_pairs[i].other_key;
            kvb_detail_set(
                detail, "needs nats.%s, too",
                has_one ? login_pairs[i].other_key : login_pairs[i].key);
            return KVB_BAD_CONFIG;
        }
    }
    return KVB_OK;
}

/* ---- What the files contain ---- */

/* Reads the first line of a file that contains a secret. */
static kvb_status
read_secret_line(const char *path, char out[secret_bytes], struct kvb_detail *detail)
{
    KVB_TRY(kvb_secret_file_read_line(path, KVB_FILE_PRIVATE, out, secret_bytes, detail));
    if (login_has_control(out)) {
        explicit_bzero(out, secret_bytes);
        kvb_detail_set(detail, "the first line of %s contains a control character", path);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status check_secret_line(const char *path, struct kvb_detail *detail)
{
    char line[secret_bytes];

    KVB_TRY(read_secret_line(path, line, detail));
    explicit_bzero(line, sizeof line);
    return KVB_OK;
}

static kvb_status check_password_line(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return check_secret_line(login->password_file, detail);
}

static kvb_status check_token_line(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return check_secret_line(login->token_file, detail);
}

/* Rejects blanks and carriage returns behind a JWT or a seed: nats.c takes them for a part of it.
 */
static kvb_status check_line_ends(const char *path, const char *content, struct kvb_detail *detail)
{
    static const char jwt_head[3] = { 'e', 'y', 'J' }; /* {" in base64 */

    for (const char *line = content; *line;) {
        const size_t len = strcspn(line, "\n");
        const bool is_read =
            strncmp(line, jwt_head, sizeof jwt_head) == 0 || strncmp(line, "SU", 2) == 0;
        /* A line that begins with one of them is not empty, so len - 1 lies in it. */
        if (is_read && strchr(" \t\r", line[len - 1])) {
            kvb_detail_set(
                detail, "lines end with blanks or carriage returns: sed -i 's/[[:space:]]*$//' %s",
                path);
            return KVB_BAD_CONFIG;
        }
        line += len + (line[len] == '\n');
    }
    return KVB_OK;
}

/* Checks that the JWT and the seed are there. */
static kvb_status check_credentials(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    char content[2 * max_secret_bytes];

    KVB_TRY(kvb_secret_file_read(
        login->credentials, KVB_FILE_PRIVATE, content, sizeof content, NULL, detail));
    /* nats.c does not look: it sends the content of a file without them as if it were a token. */
    const bool has_parts = strstr(content, "BEGIN NATS USER JWT") && strstr(content, "\nSU");
    const kvb_status status = check_line_ends(login->credentials, content, detail);
    /* Both looks at the content come before it is wiped. */
    explicit_bzero(content, sizeof content);
    if (!has_parts) {
        kvb_detail_set(
            detail, "%s does not contain the JWT and the seed of a user", login->credentials);
        return KVB_BAD_CONFIG;
    }
    return status;
}

static kvb_status
read_nkey(const char *path, char out_public[kvb_nkey_public_chars + 1], struct kvb_detail *detail)
{
    char seed[secret_bytes];

    KVB_TRY(kvb_secret_file_read(path, KVB_FILE_PRIVATE, seed, sizeof seed, NULL, detail));
    kvb_status status = check_line_ends(path, seed, detail);
    if (status == KVB_OK) {
        seed[strcspn(seed, "\n")] = '\0';
        status = kvb_nkey_public_of_seed(seed, out_public, detail);
    }
    explicit_bzero(seed, sizeof seed);
    return status == KVB_BAD_INPUT ? KVB_BAD_CONFIG : status;
}

static kvb_status check_nkey(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    char public_key[kvb_nkey_public_chars + 1];

    return read_nkey(login->nkey_seed_file, public_key, detail);
}

/* ---- Certificates and keys, as PEM ---- */

static void drop_bio(BIO **bio)
{
    (void)BIO_free(*bio); /* NULL is fine */
}

static void drop_certificate(X509 **certificate)
{
    X509_free(*certificate); /* NULL is fine */
}

static void drop_private_key(EVP_PKEY **key)
{
    EVP_PKEY_free(*key); /* NULL is fine */
}

/* Reads the first certificate of the file. */
static kvb_status
read_certificate(const char *path, X509 **out_certificate, struct kvb_detail *detail)
{
    KVB_TRY(kvb_secret_file_check(path, KVB_FILE_OF_ANYONE, detail));
    KVB_OWN(drop_bio) BIO *bio = BIO_new_file(path, "r");
    X509 *certificate = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    if (!certificate) {
        /* OpenSSL keeps errors for each thread: nats.c would report this one later. */
        ERR_clear_error();
        kvb_detail_set(detail, "%s contains no certificate in PEM", path);
        return KVB_BAD_CONFIG;
    }
    *out_certificate = certificate;
    return KVB_OK;
}

static kvb_status check_certificate_file(const char *path, struct kvb_detail *detail)
{
    KVB_OWN(drop_certificate) X509 *certificate = NULL;

    return read_certificate(path, &certificate, detail);
}

/* Replaces OpenSSL's password callback, which would ask on the terminal. */
static int refuse_password(char *out, int size, int is_for_writing, void *is_wanted)
{
    (void)is_for_writing;
    if (size > 0) {
        out[0] = '\0';
    }
    /* The one way to tell an encrypted key from what is no key. */
    *(bool *)is_wanted = true;
    return -1;
}

static kvb_status read_private_key(const char *path, EVP_PKEY **out_key, struct kvb_detail *detail)
{
    bool is_encrypted = false;

    KVB_TRY(kvb_secret_file_check(path, KVB_FILE_PRIVATE, detail));
    KVB_OWN(drop_bio) BIO *bio = BIO_new_file(path, "r");
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, refuse_password, &is_encrypted) : NULL;
    if (key) {
        *out_key = key;
        return KVB_OK;
    }
    ERR_clear_error();
    if (is_encrypted) {
        kvb_detail_set(
            detail,
            "the key is encrypted, and nobody is asked for its password: openssl pkey -in %s -out "
            "KEY",
            path);
    } else {
        kvb_detail_set(detail, "%s contains no private key in PEM", path);
    }
    return KVB_BAD_CONFIG;
}

/* The key is not encrypted, and belongs to the certificate. */
static kvb_status check_private_key(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    KVB_OWN(drop_certificate) X509 *certificate = NULL;
    KVB_OWN(drop_private_key) EVP_PKEY *key = NULL;

    /* The key first: this check is the row of key_file, and cert_file has one of its own. */
    KVB_TRY(read_private_key(login->key_file, &key, detail));
    KVB_TRY(read_certificate(login->cert_file, &certificate, detail));
    if (X509_check_private_key(certificate, key) != 1) {
        ERR_clear_error();
        kvb_detail_set(
            detail, "%s is not the key of the certificate in %s", login->key_file,
            login->cert_file);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status check_authority(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return check_certificate_file(login->ca_file, detail);
}

static kvb_status check_certificate(const struct kvb_bus_login *login, struct kvb_detail *detail)
{
    return check_certificate_file(login->cert_file, detail);
}

/* ---- All of them ---- */

/* The options that name files, each with the check of the file's content. */
static const struct {
    const char *key;
    size_t offset;
    kvb_status (*check)(const struct kvb_bus_login *login, struct kvb_detail *detail);
} login_files[] = {
    { "password_file", offsetof(struct kvb_bus_login, password_file), check_password_line },
    { "token_file", offsetof(struct kvb_bus_login, token_file), check_token_line },
    { "credentials", offsetof(struct kvb_bus_login, credentials), check_credentials },
    { "nkey_seed_file", offsetof(struct kvb_bus_login, nkey_seed_file), check_nkey },
    { "ca_file", offsetof(struct kvb_bus_login, ca_file), check_authority },
    { "cert_file", offsetof(struct kvb_bus_login, cert_file), check_certificate },
    { "key_file", offsetof(struct kvb_bus_login, key_file), check_private_key },
};

kvb_status kvb_bus_login_check(
    const struct kvb_bus_login *login, const char *url, const char **out_key,
    struct kvb_detail *detail)
{
    KVB_TRY(check_one_login(login, url, out_key, detail));
    KVB_TRY(check_pairs(login, out_key, detail));
    if (login_has_control(login->user)) {
        *out_key = "user";
        kvb_detail_set(detail, "contains a control character: choose another user");
        return KVB_BAD_CONFIG;
    }
    if (login->inbox_prefix[0] != '\0' && !kvb_subject_is_valid(login->inbox_prefix, false)) {
        *out_key = "inbox_prefix";
        kvb_detail_set(detail, "expected the beginning of a subject, such as _INBOX_kvbridge");
        return KVB_BAD_CONFIG;
    }
    /* Files come last: options that contradict each other are found without a disk. */
    for (size_t i = 0; i < KVB_COUNT_OF(login_files); i++) {
        const char *path = text_of(login, login_files[i].offset);
        *out_key = login_files[i].key;
        if (path[0] != '\0') {
            KVB_TRY(login_files[i].check(login, detail));
        }
    }
    return KVB_OK;
}

const char *kvb_bus_login_inbox(const struct kvb_bus_login *login)
{
    return login->inbox_prefix[0] != '\0' ? login->inbox_prefix : KVB_INBOX_PREFIX;
}

uint64_t kvb_login_print(const struct kvb_bus_login *login)
{
    uint64_t print = kvb_hash64((kvb_span){ (const uint8_t *)login, sizeof *login }, 0);

    for (size_t i = 0; i < KVB_COUNT_OF(login_files); i++) {
        const char *path = text_of(login, login_files[i].offset);
        /* Not the content: secrets are read for a dial only. stat() follows the links by which
         * Kubernetes exchanges a mounted secret. */
        struct stat about = { 0 };
        /* A missing file adds nothing, so that its return is a change. */
        if (path[0] != '\0' && stat(path, &about) == 0) {
            const uint64_t numbers[] = {
                about.st_dev,
                about.st_ino,
                (uint64_t)about.st_size,
                (uint64_t)about.st_mtim.tv_sec,
                (uint64_t)about.st_mtim.tv_nsec,
            };
            print = kvb_hash64((kvb_span){ (const uint8_t *)numbers, sizeof numbers }, print);
        }
    }
    return print;
}

/* ---- Into the options of nats.c ---- */

void kvb_login_escape(const char *text, char *out)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            *out++ = '\\';
        }
        *out++ = *text;
    }
    *out = '\0';
}

static kvb_status fail_by_nats(natsStatus status, const char *key, struct kvb_detail *detail)
{
    if (status == NATS_OK) {
        return KVB_OK;
    }
    kvb_detail_set(detail, "nats.%s: %s", key, kvb_nats_error_words());
    return status == NATS_NO_MEMORY ? KVB_NO_MEMORY : KVB_BAD_CONFIG;
}

static kvb_status
read_escaped(const char *path, char out[max_secret_bytes], struct kvb_detail *detail)
{
    char line[secret_bytes];

    KVB_TRY(read_secret_line(path, line, detail));
    kvb_login_escape(line, out);
    explicit_bzero(line, sizeof line);
    return KVB_OK;
}

static kvb_status
set_password(const struct kvb_bus_login *login, natsOptions *options, struct kvb_detail *detail)
{
    char user[2 * sizeof login->user];
    char password[max_secret_bytes];

    KVB_TRY(read_escaped(login->password_file, password, detail));
    kvb_login_escape(login->user, user);
    const natsStatus status = natsOptions_SetUserInfo(options, user, password);
    explicit_bzero(password, sizeof password);
    return fail_by_nats(status, "password_file", detail);
}

static kvb_status
set_token(const struct kvb_bus_login *login, natsOptions *options, struct kvb_detail *detail)
{
    char token[max_secret_bytes];

    KVB_TRY(read_escaped(login->token_file, token, detail));
    const natsStatus status = natsOptions_SetToken(options, token);
    explicit_bzero(token, sizeof token);
    return fail_by_nats(status, "token_file", detail);
}

static kvb_status
set_credentials(const struct kvb_bus_login *login, natsOptions *options, struct kvb_detail *detail)
{
    return fail_by_nats(
        natsOptions_SetUserCredentialsFromFiles(options, login->credentials, NULL), "credentials",
        detail);
}

static kvb_status
set_nkey(const struct kvb_bus_login *login, natsOptions *options, struct kvb_detail *detail)
{
    char public_key[kvb_nkey_public_chars + 1];
    const char *path = login->nkey_seed_file;

    KVB_TRY(read_nkey(path, public_key, detail));
    return fail_by_nats(
        natsOptions_SetNKeyFromSeed(options, public_key, path), "nkey_seed_file", detail);
}

/* Requires TLS when the login or the url does. */
static kvb_status set_tls(
    const struct kvb_bus_login *login, const char *url, natsOptions *options,
    struct kvb_detail *detail)
{
    /* nats.c ignores the scheme tls://: it would send a password in clear text to a server that
     * does not require TLS. */
    if (kvb_login_wants_tls(login, url)) {
        KVB_TRY(fail_by_nats(natsOptions_SetSecure(options, true), "url", detail));
    }
    if (login->ca_file[0] != '\0') {
        KVB_TRY(fail_by_nats(
            natsOptions_LoadCATrustedCertificates(options, login->ca_file), "ca_file", detail));
    }
    if (login->server_name[0] != '\0') {
        KVB_TRY(fail_by_nats(
            natsOptions_SetExpectedHostname(options, login->server_name), "server_name", detail));
    }
    return login->cert_file[0] == '\0'
               ? KVB_OK
               : fail_by_nats(
                     natsOptions_LoadCertificatesChain(options, login->cert_file, login->key_file),
                     "cert_file", detail);
}

bool kvb_login_wants_tls(const struct kvb_bus_login *login, const char *url)
{
    return login->ca_file[0] != '\0' || login->cert_file[0] != '\0' ||
           login->server_name[0] != '\0' || kvb_server_url_wants_tls(url);
}

kvb_status kvb_login_apply(
    const struct kvb_bus_login *login, const char *url, natsOptions *options,
    struct kvb_detail *detail)
{
    const struct {
        const char *given;
        kvb_status (*set)(
            const struct kvb_bus_login *login, natsOptions *options, struct kvb_detail *detail);
    } kinds[] = {
        { login->user, set_password },
        { login->token_file, set_token },
        { login->credentials, set_credentials },
        { login->nkey_seed_file, set_nkey },
    };

    const char *key = "";
    struct kvb_detail why = { .text = "" };
    /* Checked before each dial again: the files may have changed since the last one. */
    const kvb_status status = kvb_bus_login_check(login, url, &key, &why);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "nats.%s: %s", key, why.text);
        return status;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        if (kinds[i].given[0] != '\0') {
            KVB_TRY(kinds[i].set(login, options, detail));
        }
    }
    if (login->inbox_prefix[0] != '\0') {
        KVB_TRY(fail_by_nats(
            natsOptions_SetCustomInboxPrefix(options, login->inbox_prefix), "inbox_prefix",
            detail));
    }
    return set_tls(login, url, options, detail);
}
