#include "bus/openssl_exit.h"

#include <openssl/crypto.h>

void kvb_openssl_keep_at_exit(void)
{
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* on failure: as by default */
}
