#include "daemon/http_tls.h"

#include "core/own.h"
#include "core/secret_file.h"

#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kvb_http_tls {
    atomic_uint references;
    gnutls_x509_crt_t *chain; /* owned, with its items; freed by GnuTLS */
    unsigned chain_count;
    gnutls_x509_privkey_t key;
    /* The same for handshakes.  Made once: that costs as much time as a signature. */
    gnutls_pcert_st shown[kvb_http_tls_max_chain];
    unsigned shown_count;
    gnutls_privkey_t signing_key;
    /* The same for sessions of kvb_http_tls_use(). */
    gnutls_certificate_credentials_t credentials;
    bool has_client_ca;
};

/* ---- Files ---------------------------------------------------------------------------- */

struct pem_file {
    char *text; /* owned; of kvb_http_tls_file_bytes */
    size_t len;
};

/* Zeroes the text, which may be a private key. */
static void drop_pem_file(struct pem_file *file)
{
    if (file->text) {
        explicit_bzero(file->text, file->len);
        free(file->text);
    }
}

static kvb_status read_pem_file(
    const char *path, enum kvb_file_access access, struct pem_file *out_file,
    struct kvb_detail *detail)
{
    out_file->text = malloc(kvb_http_tls_file_bytes);
    if (!out_file->text) {
        return KVB_NO_MEMORY;
    }
    return kvb_secret_file_read(
        path, access, out_file->text, kvb_http_tls_file_bytes, &out_file->len, detail);
}

static gnutls_datum_t datum_of(const struct pem_file *file)
{
    return (gnutls_datum_t){ .data = (unsigned char *)file->text, .size = (unsigned)file->len };
}

static kvb_status
say_not_pem(const char *what, const char *path, int error, struct kvb_detail *detail)
{
    if (error == GNUTLS_E_MEMORY_ERROR) {
        return KVB_NO_MEMORY;
    }
    kvb_detail_set(detail, "%.120s holds no %s in PEM: %s", path, what, gnutls_strerror(error));
    return KVB_BAD_CONFIG;
}

static kvb_status load_chain(struct kvb_http_tls *tls, const char *path, struct kvb_detail *detail)
{
    KVB_OWN(drop_pem_file) struct pem_file file = { 0 };

    KVB_TRY(read_pem_file(path, KVB_FILE_OF_ANYONE, &file, detail));
    const gnutls_datum_t datum = datum_of(&file);
    const int error = gnutls_x509_crt_list_import2(
        &tls->chain, &tls->chain_count, &datum, GNUTLS_X509_FMT_PEM,
        GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    if (error < 0) {
        return say_not_pem("certificate chain, the server's own first,", path, error, detail);
    }
    if (tls->chain_count > kvb_http_tls_max_chain) {
        kvb_detail_set(
            detail, "%.120s holds %u certificates: at most %d, the server's own first", path,
            tls->chain_count, kvb_http_tls_max_chain);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status load_key(struct kvb_http_tls *tls, const char *path, struct kvb_detail *detail)
{
    KVB_OWN(drop_pem_file) struct pem_file file = { 0 };

    KVB_TRY(read_pem_file(path, KVB_FILE_PRIVATE, &file, detail));
    const gnutls_datum_t datum = datum_of(&file);
    int error = gnutls_x509_privkey_init(&tls->key);
    if (error == 0) {
        error = gnutls_x509_privkey_import2(tls->key, &datum, GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    return error < 0 ? say_not_pem("private key without a password", path, error, detail) : KVB_OK;
}

/* Checks that the key belongs to the certificate.  Otherwise each handshake would fail. */
static kvb_status
check_pair(const struct kvb_http_tls *tls, const char *key_path, struct kvb_detail *detail)
{
    unsigned char of_cert[64];
    unsigned char of_key[64];
    size_t cert_len = sizeof of_cert;
    size_t key_len = sizeof of_key;

    if (gnutls_x509_crt_get_key_id(tls->chain[0], GNUTLS_KEYID_USE_SHA256, of_cert, &cert_len) ==
            0 &&
        gnutls_x509_privkey_get_key_id(tls->key, GNUTLS_KEYID_USE_SHA256, of_key, &key_len) == 0 &&
        cert_len == key_len && memcmp(of_cert, of_key, cert_len) == 0) {
        return KVB_OK;
    }
    kvb_detail_set(detail, "%.120s is not the key of the certificate in cert_file", key_path);
    return KVB_BAD_CONFIG;
}

/* Nobody checks it, so all in it but the key is arbitrary. */
static kvb_status make_self_signed(struct kvb_http_tls *tls)
{
    static const char name[] = "kvbridge";
    static const unsigned char serial = 1;
    const time_t day_s = 86400;
    const time_t now = time(NULL);
    gnutls_x509_crt_t crt = NULL;

    tls->chain = gnutls_calloc(1, sizeof(gnutls_x509_crt_t));
    if (!tls->chain || gnutls_x509_crt_init(&crt) < 0) {
        return KVB_NO_MEMORY;
    }
    tls->chain[0] = crt;
    tls->chain_count = 1;
    /* Elliptic curves: a key takes a millisecond to make, and a handshake less than with RSA. */
    const bool is_made =
        gnutls_x509_privkey_init(&tls->key) == 0 &&
        gnutls_x509_privkey_generate(
            tls->key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0) == 0 &&
        gnutls_x509_crt_set_version(crt, 3) == 0 &&
        gnutls_x509_crt_set_serial(crt, &serial, 1) == 0 &&
        gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name, sizeof name - 1) ==
            0 &&
        gnutls_x509_crt_set_activation_time(crt, now - day_s) == 0 && /* clocks differ */
        gnutls_x509_crt_set_expiration_time(crt, now + 3650 * day_s) == 0 &&
        gnutls_x509_crt_set_key(crt, tls->key) == 0 &&
        gnutls_x509_crt_sign2(crt, crt, tls->key, GNUTLS_DIG_SHA256, 0) == 0;
    return is_made ? KVB_OK : KVB_NO_MEMORY; /* else it cannot fail */
}

static kvb_status
load_client_ca(struct kvb_http_tls *tls, const char *path, struct kvb_detail *detail)
{
    KVB_OWN(drop_pem_file) struct pem_file file = { 0 };

    KVB_TRY(read_pem_file(path, KVB_FILE_OF_ANYONE, &file, detail));
    const gnutls_datum_t datum = datum_of(&file);
    /* A file without any would let nobody in, which is hardly meant. */
    const int count =
        gnutls_certificate_set_x509_trust_mem(tls->credentials, &datum, GNUTLS_X509_FMT_PEM);
    if (count <= 0) {
        return say_not_pem(
            "certificate", path, count < 0 ? count : GNUTLS_E_NO_CERTIFICATE_FOUND, detail);
    }
    tls->has_client_ca = true;
    return KVB_OK;
}

static kvb_status make_credentials(struct kvb_http_tls *tls)
{
    return gnutls_certificate_allocate_credentials(&tls->credentials) == 0 &&
                   gnutls_certificate_set_x509_key(
                       tls->credentials, tls->chain, (int)tls->chain_count, tls->key) >= 0
               ? KVB_OK
               : KVB_NO_MEMORY;
}

static kvb_status make_shown(struct kvb_http_tls *tls)
{
    while (tls->shown_count < tls->chain_count) {
        const unsigned at = tls->shown_count;
        if (gnutls_pcert_import_x509(&tls->shown[at], tls->chain[at], 0) < 0) {
            return KVB_NO_MEMORY;
        }
        tls->shown_count++;
    }
    return gnutls_privkey_init(&tls->signing_key) == 0 &&
                   gnutls_privkey_import_x509(
                       tls->signing_key, tls->key, GNUTLS_PRIVKEY_IMPORT_COPY) == 0
               ? KVB_OK
               : KVB_NO_MEMORY;
}

static kvb_status load_files(
    struct kvb_http_tls *tls, const struct kvb_http_tls_files *files,
    enum kvb_http_tls_fault *out_fault, struct kvb_detail *detail)
{
    /* Set before each file is read, so that it names the one at fault. */
    *out_fault = KVB_HTTP_TLS_CERT;
    if (files->is_self_signed) {
        KVB_TRY(make_self_signed(tls));
    } else {
        KVB_TRY(load_chain(tls, files->cert_file, detail));
        *out_fault = KVB_HTTP_TLS_KEY;
        KVB_TRY(load_key(tls, files->key_file, detail));
        KVB_TRY(check_pair(tls, files->key_file, detail));
    }
    /* HTTP's library asks for the pair in each handshake, gRPC's sessions have them from the start.
     */
    KVB_TRY(make_shown(tls));
    KVB_TRY(make_credentials(tls));
    *out_fault = KVB_HTTP_TLS_CLIENT_CA;
    return files->client_ca_file[0] ? load_client_ca(tls, files->client_ca_file, detail) : KVB_OK;
}

kvb_status kvb_http_tls_load(
    const struct kvb_http_tls_files *files, struct kvb_http_tls **out_tls,
    enum kvb_http_tls_fault *out_fault, struct kvb_detail *detail)
{
    struct kvb_http_tls *tls = calloc(1, sizeof *tls);

    if (!tls) {
        return KVB_NO_MEMORY;
    }
    atomic_init(&tls->references, 1);
    const kvb_status status = load_files(tls, files, out_fault, detail);
    if (status != KVB_OK) {
        kvb_http_tls_drop(tls);
        return status;
    }
    *out_tls = tls;
    return KVB_OK;
}

struct kvb_http_tls *kvb_http_tls_ref(struct kvb_http_tls *tls)
{
    (void)atomic_fetch_add(&tls->references, 1);
    return tls;
}

void kvb_http_tls_drop(struct kvb_http_tls *tls)
{
    if (!tls || atomic_fetch_sub(&tls->references, 1) > 1) {
        return;
    }
    /* After a failed load only a part of this exists; the rest is NULL, or not counted. */
    for (unsigned i = 0; i < tls->shown_count; i++) {
        gnutls_pcert_deinit(&tls->shown[i]);
    }
    if (tls->signing_key) {
        gnutls_privkey_deinit(tls->signing_key);
    }
    for (unsigned i = 0; i < tls->chain_count; i++) {
        gnutls_x509_crt_deinit(tls->chain[i]);
    }
    gnutls_free(tls->chain);
    if (tls->credentials) {
        gnutls_certificate_free_credentials(tls->credentials);
    }
    if (tls->key) {
        gnutls_x509_privkey_deinit(tls->key);
    }
    free(tls);
}

/* ---- Handshakes ----------------------------------------------------------------------- */

void kvb_http_tls_show(
    struct kvb_http_tls *tls, gnutls_pcert_st **out_chain, unsigned *out_count,
    gnutls_privkey_t *out_key)
{
    *out_chain = tls->shown;
    *out_count = tls->shown_count;
    *out_key = tls->signing_key;
}

kvb_status kvb_http_tls_use(const struct kvb_http_tls *tls, gnutls_session_t session)
{
    /* Else a certificate for servers of the same authority would do. */
    static unsigned char of_clients[] = GNUTLS_KP_TLS_WWW_CLIENT;
    static gnutls_typed_vdata_st purpose = { .type = GNUTLS_DT_KEY_PURPOSE_OID,
                                             .data = of_clients };

    if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, tls->credentials) < 0) {
        return KVB_NO_MEMORY;
    }
    /* GnuTLS then ends the handshake itself: no request comes from who shows no such
     * certificate. */
    if (tls->has_client_ca) {
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
        gnutls_session_set_verify_cert2(session, &purpose, 1, 0);
    }
    return KVB_OK;
}
