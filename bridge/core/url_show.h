#pragma once

#include <stddef.h>

/* Writes URLs for logs, pages and statuses, without secrets.
 *
 *     http://user:password@host:8000/metrics?key=word   ->   http://host:8000/metrics?...
 *     nats://user:password@one:4222,nats://two:4222     ->   nats://one:4222,nats://two:4222
 *
 * Everything between the scheme and the last @ of a URL is left out, because a password may contain
 * a slash or a comma that is not escaped.
 *
 * Threads: any thread. */

enum { kvb_url_shown_bytes = 256 };

/* Writes one URL, cut to size bytes with its NUL.  Returns out. */
const char *kvb_url_show(const char *url, char *out, size_t size);

/* Writes several URLs with commas between them.  Leaves out those that do not fit.  Returns out. */
const char *kvb_urls_show(const char *urls, char *out, size_t size);
