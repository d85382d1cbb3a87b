#pragma once

#include "core/span.h"

#include <stdint.h>

/* The worker id of a pod, as Dynamo's stand-alone picker makes it of the pod's name, so that
 * routers that read both know a worker by one number.
 *
 *     SipHash-1-3, key 0, over the bytes of the name and 0xff; the low 53 bits
 *
 * That is what Rust's DefaultHasher makes of a string.  53 bits: readers that keep numbers as
 * doubles have it whole.  Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF".
 * Threads: any thread. */
uint64_t kvb_pod_name_hash(kvb_span name);
