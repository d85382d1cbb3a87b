#pragma once

#include <stddef.h>

/* URLs for people: logs, pages, statuses.  Secrets are left out.
 *
 *     http://user:password@host:8000/metrics?key=word   ->   http://host:8000/metrics?...
 *     nats://user:password@one:4222,nats://two:4222     ->   nats://one:4222,nats://two:4222
 *
 * Everything between the scheme and the last @ of a URL is left out: a password may contain a
 * slash or a comma that should have been escaped.
 *
 * Threads: any thread. */

enum { kvb_url_shown_bytes = 256 };

/* One URL; cut at size bytes, the closing NUL included.  Returns out. */
const char *kvb_url_show(const char *url, char *out, size_t size);

/* Several, with commas between them; those that do not fit are left out.  Returns out. */
const char *kvb_urls_show(const char *urls, char *out, size_t size);
