#include "bus/certificate.h"

#include "core/own.h"
#include "core/secret_file.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <time.h>

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
