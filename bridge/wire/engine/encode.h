#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "wire/engine/dialect.h"

#include <stdbool.h>

/* Writes a batch as an engine with this dialect would: for the simulated fleet, and for readers of
 * republished events.
 *
 * Appends to out, which is unchanged on failure.  Skipped events and data for which the dialect has
 * no field are left out.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
kvb_status kvb_engine_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_buf *out);

/* The form of republished events: vLLM's form, with the choices that all its readers accept.  It
 * has every field that some reader requires, and a hash always takes 9 bytes. */
enum kvb_republish_form {
    KVB_REPUBLISH_MAP,  /* vLLM 0.24 and later */
    KVB_REPUBLISH_ARRAY /* earlier vLLM; a Stored has 12 elements */
};

/* As kvb_engine_batch_encode(), in the form of republished events.  has_signed_hashes: the
 * engine's hashes are signed, as SGLang's are. */
kvb_status kvb_republished_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_republish_form form, bool has_signed_hashes,
    struct kvb_buf *out);
