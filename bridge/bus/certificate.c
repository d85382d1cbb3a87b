#include "bus/certificate.h"

#include "core/own.h"
#include "core/secret_file.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>

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

kvb_status kvb_certificate_check(const char *path, struct kvb_detail *detail)
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
