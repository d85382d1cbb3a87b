#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/event_batch.h"

#include <stdbool.h>

/* The form of republished events: vLLM's form, with the choices that all its readers accept.  It
 * has every field that some reader requires, and a hash always takes 9 bytes. */
enum kvb_republish_form {
    KVB_REPUBLISH_MAP,  /* vLLM 0.24 and later */
    KVB_REPUBLISH_ARRAY /* earlier vLLM; a Stored has 12 elements */
};

/* Writes a batch as readers of engines expect it.  The batch is one of stream/republish: blocks of
 * full attention without salt or multimodal keys, and clears of every tier.  has_signed_hashes:
 * the engine's hashes are signed, as SGLang's are.
 *
 * Appends to out, which is unchanged on failure.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
kvb_status kvb_republished_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_republish_form form, bool has_signed_hashes,
    struct kvb_buf *out);
