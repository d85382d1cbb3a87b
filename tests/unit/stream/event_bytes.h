#pragma once

#include <stddef.h>

/* An engine's bytes in the words of a script: the msgpack of a batch as hex, which is good until
 * the next call.  Events stand between ; and behind `then` come bytes that belong to no event:
 *
 *     root 05 01 ; child 05 06 02 ; 92 removed 91 07 then 00
 *
 * A word is hex, or one of these with its arguments, which are words:
 *
 *     root HASH TOKEN, child PARENT HASH TOKEN, gone HASH, cleared
 *     mapped PARENT HASHES TOKENS   BlockStored as a map; HASHES and TOKENS are arrays
 *     in MEDIUM HASH, gone-from MEDIUM HASH   MEDIUM: gpu, cpu, pinned
 *     named MEDIUM, keyed, grouped GROUP   BlockStored of 8, 9 and 10 elements; vLLM has extra keys
 *                                   from 0.17 on
 *     typed HASH, typed-cleared     of the dialect that counts from 1
 *     put KEY REPLICAS HASH PARENT TOKENS, moved KEY REPLICAS, remove-all   of a pool; KEY: k1, k2;
 *                                   REPLICAS: memory, disk, both, nowhere
 *     stored, removed               the names of events in arrays */
const char *event_bytes_of_words(size_t at);
