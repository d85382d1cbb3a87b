#include "bus/bus.h"
#include "core/own.h"
#include "process.h"

#include "kvb_test.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Files of a login --------------------------------------------------------------------------
 */

#define SEED "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
#define JWT "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------"

static char folder[64];
/* a file whose first line is a seed, and which also looks like a credentials file */
static char secret[128];
static char key[128];         /* of certificate */
static char certificate[128]; /* readable by all */

static void path_of(char out[128], const char *name)
{
    (void)snprintf(out, 128, "%s/%s", folder, name);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* password: NULL for an unencrypted key. */
static void write_key(const char *path, EVP_PKEY *made, char *password)
{
    BIO *bio = BIO_new_file(path, "w");

    assert_int_equal(
        PEM_write_bio_PrivateKey(
            bio, made, password ? EVP_aes_128_cbc() : NULL, NULL, 0, NULL, password),
        1);
    BIO_free(bio);
    assert_int_equal(chmod(path, 0600), 0);
}

static void write_certificate(const char *path, EVP_PKEY *made)
{
    X509 *signed_one = X509_new();
    BIO *bio = BIO_new_file(path, "w");

    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(signed_one), 0));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(signed_one), 3600));
    assert_int_equal(X509_set_pubkey(signed_one, made), 1);
    assert_true(X509_sign(signed_one, made, NULL) > 0);
    assert_int_equal(PEM_write_bio_X509(bio, signed_one), 1);
    BIO_free(bio);
    X509_free(signed_one);
    assert_int_equal(chmod(path, 0644), 0);
}

static int make_files(void **state)
{
    EVP_PKEY *made = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");

    (void)state;
    assert_ok(folder_make(folder));
    path_of(secret, "secret");
    path_of(key, "key");
    path_of(certificate, "certificate");
    write_text(secret, SEED "\n" JWT "\n# a blank behind a remark \n" SEED "\n");
    write_key(key, made, NULL);
    write_certificate(certificate, made);
    EVP_PKEY_free(made);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

static void assert_refused(
    const struct kvb_bus_login *login, const char *url, const char *named, const char *why)
{
    struct kvb_detail detail = { 0 };
    const char *found = NULL;

    assert_int_equal(kvb_bus_login_check(login, url, &found, &detail), KVB_BAD_CONFIG);
    assert_string_equal(found, named);
    assert_non_null(strstr(detail.text, why));
}

static void set(char field[kvb_login_text_bytes], const char *path)
{
    (void)snprintf(field, kvb_login_text_bytes, "%s", path);
}

/* ---- Tests
 * ----------------------------------------------------------------------------------------- */

static void refuses_two_logins_and_names_both(void **state)
{
    struct kvb_bus_login login = { .user = "u" };
    struct {
        const char *key;
        char *field;
    } others[] = { { "token_file", login.token_file },
                   { "credentials", login.credentials },
                   { "nkey_seed_file", login.nkey_seed_file } };

    (void)state;
    set(login.password_file, secret);
    assert_refused(&login, "nats://u:p@h", "user", "nats.url");
    assert_refused(&login, "nats://h,nats://t@h", "user", "nats.url");
    for (size_t i = 0; i < KVB_COUNT_OF(others); i++) {
        set(others[i].field, secret);
        assert_refused(&login, "nats://h", others[i].key, "nats.user");
        others[i].field[0] = '\0';
    }
}

static void refuses_one_half_of_a_pair(void **state)
{
    struct kvb_bus_login login = { .user = "u" };

    (void)state;
    assert_refused(&login, "nats://h", "user", "nats.password_file");
    login = (struct kvb_bus_login){ 0 };
    set(login.password_file, secret);
    assert_refused(&login, "nats://h", "password_file", "nats.user");
    login = (struct kvb_bus_login){ 0 };
    set(login.cert_file, certificate);
    assert_refused(&login, "nats://h", "cert_file", "nats.key_file");
    login = (struct kvb_bus_login){ 0 };
    set(login.key_file, key);
    assert_refused(&login, "nats://h", "key_file", "nats.cert_file");
}

static void refuses_a_user_name_that_would_end_the_protocol_line(void **state)
{
    struct kvb_bus_login login = { .user = "u\nPUB a 1" };

    (void)state;
    set(login.password_file, secret);
    assert_refused(&login, "nats://h", "user", "control character");
}

static void refuses_an_inbox_prefix_that_cannot_begin_a_subject(void **state)
{
    struct kvb_bus_login login = { .inbox_prefix = "a b" };

    (void)state;
    assert_refused(&login, "nats://h", "inbox_prefix", "subject");
}

/* ---- What is wrong with each kind of file ---- */

struct file_row {
    const char *key;
    size_t offset;
    bool is_secret;
    const char *content; /* a file that cannot be valid */
    const char *why;
};

/* clang-format off */
static const struct file_row file_rows[] = {
    { "password_file",  offsetof(struct kvb_bus_login, password_file),  true,  "pass\x1bword\n", "control character" },
    { "password_file",  offsetof(struct kvb_bus_login, password_file),  true,  "\nsecond line\n", "first line" },
    { "token_file",     offsetof(struct kvb_bus_login, token_file),     true,  "to\tken\n", "control character" },
    { "credentials",    offsetof(struct kvb_bus_login, credentials),    true,  "nothing like it\n", "JWT and the seed" },
    { "credentials", offsetof(struct kvb_bus_login, credentials), true, "no JWT\nSUA\n", "JWT and the seed" },
    { "nkey_seed_file", offsetof(struct kvb_bus_login, nkey_seed_file), true,  "SUNOTASEED\n", "seed of an NKey" },
    { "nkey_seed_file", offsetof(struct kvb_bus_login, nkey_seed_file), true,  SEED "\r\n", "carriage returns: sed" },
    { "nkey_seed_file", offsetof(struct kvb_bus_login, nkey_seed_file), true,  SEED " ", "carriage returns: sed" },
    { "credentials",    offsetof(struct kvb_bus_login, credentials),    true,  JWT "\n" SEED "\r\n", "carriage returns: sed" },
    { "ca_file",        offsetof(struct kvb_bus_login, ca_file),        false, "no certificate\n", "no certificate in PEM" },
    { "cert_file",      offsetof(struct kvb_bus_login, cert_file),      false, "no certificate\n", "no certificate in PEM" },
    { "key_file",       offsetof(struct kvb_bus_login, key_file),       true,  "no key\n", "no private key in PEM" },
};
/* clang-format on */

/* A login in which this key's file is path. */
static struct kvb_bus_login login_with(const struct file_row *row, const char *path)
{
    struct kvb_bus_login login = { 0 };
    const bool is_certificate =
        strcmp(row->key, "cert_file") == 0 || strcmp(row->key, "key_file") == 0;

    if (is_certificate) {
        set(login.cert_file, certificate);
        set(login.key_file, key);
    }
    set((char *)&login + row->offset, path);
    if (login.password_file[0] != '\0') {
        memcpy(login.user, "u", 2);
    }
    return login;
}

static void each_bad_file_is_named_with_the_remedy(void **state)
{
    char path[128];

    (void)state;
    path_of(path, "bad");
    for (size_t i = 0; i < KVB_COUNT_OF(file_rows); i++) {
        const struct file_row *row = &file_rows[i];
        struct kvb_bus_login login = login_with(row, path);
        (void)remove(path);
        assert_refused(&login, "nats://h", row->key, "cannot read");
        write_text(path, "");
        assert_refused(&login, "nats://h", row->key, "is empty");
        write_text(path, row->content);
        assert_refused(&login, "nats://h", row->key, row->why);
        login = login_with(row, folder);
        assert_refused(&login, "nats://h", row->key, "no regular file");
        assert_int_equal(chmod(path, 0644), 0);
        login = login_with(row, path);
        assert_refused(&login, "nats://h", row->key, row->is_secret ? "chmod o-rw" : row->why);
    }
    (void)remove(path);
}

static void refuses_a_key_that_is_encrypted_or_of_another_certificate(void **state)
{
    struct kvb_bus_login login = { 0 };
    char password[] = "word";
    char other[128];
    EVP_PKEY *made = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");

    (void)state;
    path_of(other, "other");
    set(login.cert_file, certificate);
    set(login.key_file, other);
    write_key(other, made, password);
    assert_refused(&login, "nats://h", "key_file", "openssl pkey -in");
    write_key(other, made, NULL);
    assert_refused(&login, "nats://h", "key_file", "not the key of the certificate");
    EVP_PKEY_free(made);
}

SUITE(login)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_two_logins_and_names_both),
        cmocka_unit_test(refuses_one_half_of_a_pair),
        cmocka_unit_test(refuses_a_user_name_that_would_end_the_protocol_line),
        cmocka_unit_test(refuses_an_inbox_prefix_that_cannot_begin_a_subject),
        cmocka_unit_test(each_bad_file_is_named_with_the_remedy),
        cmocka_unit_test(refuses_a_key_that_is_encrypted_or_of_another_certificate),
    };

    return cmocka_run_group_tests(tests, make_files, remove_files);
}
