#include "bus/certificate.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/secret_file.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <time.h>

static const uint64_t warn_before_s = UINT64_C(7) * 24 * 3600;

static void drop_bio(BIO **bio)
{
    (void)BIO_free(*bio); /* NULL is fine */
}

static void drop_certificate(X509 **certificate)
{
    X509_free(*certificate); /* NULL is fine */
}

kvb_status kvb_certificate_end(const char *path, int64_t *out_unix_s, struct kvb_detail *detail)
{
    struct tm end = { 0 };

    KVB_TRY(kvb_secret_file_check(path, KVB_FILE_OF_ANYONE, detail));
    KVB_OWN(drop_bio) BIO *bio = BIO_new_file(path, "r");
    KVB_OWN(drop_certificate)
    X509 *certificate = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) {
        kvb_detail_set(detail, "%s contains no certificate in PEM", path);
        return KVB_BAD_CONFIG;
    }
    *out_unix_s = timegm(&end);
    return KVB_OK;
}

void kvb_certificate_warn(
    struct kvb_log *log, const struct kvb_certificate *certificate, uint64_t *said_end_s)
{
    const uint64_t now_s = kvb_clock_wall_us() / 1000000;
    char sentence[160];
    char left[24];

    if (certificate->end_s >= now_s + warn_before_s || certificate->end_s == *said_end_s) {
        return;
    }
    *said_end_s = certificate->end_s;
    (void)snprintf(
        sentence, sizeof sentence, "the certificate in %s ends within 7 days: replace it",
        certificate->key);
    kvb_log_write(
        log, KVB_LOG_WARNING, certificate->room, sentence, "file", certificate->file,
        "seconds_left",
        kvb_log_u64(left, certificate->end_s > now_s ? certificate->end_s - now_s : 0), NULL);
}
