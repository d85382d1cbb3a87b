#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stddef.h>

/* Payloads that are no batch, as a broken engine or a bad link makes them: nothing
 * that is msgpack, lengths that lie, nesting without end, good batches cut or glued.
 * A reader must refuse each, and no other engine may suffer for it.
 * Threads: any thread. */
enum { kvb_malformed_kinds = 24 };

/* "lying_array", ...; kind < kvb_malformed_kinds. */
const char *kvb_malformed_name(size_t kind);

/* KVB_NOT_FOUND */
kvb_status kvb_malformed_find(const char *name, size_t *out_kind);

/* Appends one payload of the kind; some are made of a good one.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); out is as before */
kvb_status kvb_malformed_make(size_t kind, kvb_span good, struct kvb_buf *out);
