#pragma once

#include "core/span.h"

#include <stdint.h>

/* The worker id of a pod, computed from the pod's name exactly as Dynamo's stand-alone endpoint
 * picker does.  A router that reads both sees one id for one worker.
 *
 *     SipHash-1-3, key 0, over the bytes of the name and 0xff; the low 53 bits are kept
 *
 * This is what Rust's DefaultHasher returns for a string.  A double represents 53 bits exactly, so
 * JSON readers that store numbers as doubles do not round the id.  Source: Aumasson and Bernstein,
 * "SipHash: a fast short-input PRF".
 * Threads: any thread. */
uint64_t kvb_pod_name_hash(kvb_span name);
