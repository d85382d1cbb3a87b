#pragma once

/* One sentence for people about why something failed:
 * "etc/kvbridge.cfg:12: nats.url: expected a string".
 *
 * Functions called at start-up and by queries take a pointer to one, owned by the caller; NULL
 * means that the caller does not need the text.  Threads: the caller locks. */
struct kvb_detail {
    char text[256];
};

/* Replaces the text; cuts it at 255 bytes.  detail may be NULL. */
void kvb_detail_set(struct kvb_detail *detail, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
