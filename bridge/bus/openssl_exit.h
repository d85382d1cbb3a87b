#pragma once

/* By default OpenSSL frees its tables in exit(), while a thread of nats.c or libcurl may still be
 * ending a connection: that thread then locks a mutex that is gone, and the process crashes at its
 * end.  After this call OpenSSL frees nothing at exit; the end of the process does.
 *
 * Call it first in main(), because the first use of OpenSSL decides.  Threads: no others yet. */
void kvb_openssl_keep_at_exit(void);
