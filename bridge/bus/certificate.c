#include "bus/certificate.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/secret_file.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

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
        ERR_clear_error();
        kvb_detail_set(detail, "%s contains no certificate in PEM", path);
        return KVB_BAD_CONFIG;
    }
    *out_certificate = certificate;
    return KVB_OK;
}

kvb_status kvb_certificate_end(const char *path, int64_t *out_unix_s, struct kvb_detail *detail)
{
    KVB_OWN(drop_certificate) X509 *certificate = NULL;
    struct tm end = { 0 };

    KVB_TRY(read_certificate(path, &certificate, detail));
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) {
        kvb_detail_set(detail, "the certificate in %s has no date of its end", path);
        return KVB_BAD_CONFIG;
    }
    *out_unix_s = timegm(&end);
    return KVB_OK;
}

enum kvb_certificate_state kvb_certificate_state(int64_t end_s, int64_t now_s)
{
    static const int64_t soon_s = INT64_C(7) * 24 * 3600;

    return end_s <= now_s            ? KVB_CERTIFICATE_ENDED
           : end_s - now_s <= soon_s ? KVB_CERTIFICATE_ENDS_SOON
                                     : KVB_CERTIFICATE_LASTS;
}

void kvb_certificate_warn(
    struct kvb_log *log, const struct kvb_certificate *certificate,
    struct kvb_certificate_notice *said)
{
    static const char *const ends[] = {
        [KVB_CERTIFICATE_ENDS_SOON] = "ends within 7 days: replace it",
        [KVB_CERTIFICATE_ENDED] = "has ended: it is accepted by nobody who verifies it: replace it",
    };
    const int64_t now_s = (int64_t)(kvb_clock_wall_us() / 1000000);
    const enum kvb_certificate_state state = kvb_certificate_state(certificate->end_s, now_s);
    const int64_t left_s = certificate->end_s - now_s;
    char sentence[160];
    char left[24];

    if (said->end_s != certificate->end_s) {
        *said = (struct kvb_certificate_notice){ .end_s = certificate->end_s };
    }
    if (state > said->state) {
        (void)snprintf(
            sentence, sizeof sentence, "the certificate in %s %s", certificate->key, ends[state]);
        kvb_log_write(
            log, KVB_LOG_WARNING, certificate->room, sentence, "file", certificate->file,
            "seconds_left", kvb_log_number(left, left_s > 0 ? (uint64_t)left_s : 0), NULL);
        said->state = state;
    }
}

/* Replaces OpenSSL's password callback, which would ask on the terminal. */
static int refuse_password(char *out, int size, int is_for_writing, void *is_wanted)
{
    (void)is_for_writing;
    if (size > 0) {
        out[0] = '\0';
    }
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

kvb_status
kvb_private_key_check(const char *path, const char *certificate_path, struct kvb_detail *detail)
{
    KVB_OWN(drop_certificate) X509 *certificate = NULL;
    KVB_OWN(drop_private_key) EVP_PKEY *key = NULL;

    KVB_TRY(read_private_key(path, &key, detail));
    KVB_TRY(read_certificate(certificate_path, &certificate, detail));
    if (X509_check_private_key(certificate, key) != 1) {
        ERR_clear_error();
        kvb_detail_set(
            detail, "%s is not the key of the certificate in %s", path, certificate_path);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}
