#include "fleet/engine/request.h"

#include "core/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

kvb_status kvb_request_new(
    const uint32_t *prompt, uint32_t count, uint32_t output_length, uint32_t block_size,
    struct kvb_request **out_request)
{
    if (count == 0) {
        return KVB_BAD_INPUT;
    }
    struct kvb_request *request = calloc(1, sizeof *request);
    if (!request) {
        return KVB_NO_MEMORY;
    }

    const size_t token_capacity = (size_t)count + output_length;
    const size_t block_capacity = (token_capacity + block_size - 1) / block_size;
    request->tokens = calloc(token_capacity, sizeof *request->tokens);
    request->hashes = calloc(block_capacity, sizeof *request->hashes);
    request->blocks = calloc(block_capacity, sizeof *request->blocks);
    if (!request->tokens || !request->hashes || !request->blocks) {
        kvb_request_free(request);
        return KVB_NO_MEMORY;
    }
    memcpy(request->tokens, prompt, count * sizeof *prompt);
    request->token_count = count;
    request->output_left = output_length;
    *out_request = request;
    return KVB_OK;
}

void kvb_request_free(struct kvb_request *request)
{
    if (!request) {
        return;
    }
    free(request->tokens);
    free(request->hashes);
    free(request->blocks);
    free(request);
}

void kvb_request_append(struct kvb_request *request, uint32_t token)
{
    assert(request->output_left > 0);
    request->tokens[request->token_count++] = token;
    request->output_left--;
}

/* What stands in the place of a parent's hash at the root. */
static uint64_t root_of(const struct kvb_request *request, uint64_t seed)
{
    const char *salt = request->salt;

    return salt ? kvb_hash64((kvb_span){ (const uint8_t *)salt, strlen(salt) }, seed) : seed;
}

void kvb_request_hash(struct kvb_request *request, uint32_t block_size, uint64_t seed)
{
    const size_t block_bytes = block_size * sizeof *request->tokens;

    while ((size_t)(request->hash_count + 1) * block_size <= request->token_count) {
        const uint32_t at = request->hash_count;
        const uint32_t *tokens = request->tokens + (size_t)at * block_size;
        const uint64_t chained[2] = {
            at == 0 ? root_of(request, seed) : request->hashes[at - 1].value,
            kvb_hash64((kvb_span){ (const uint8_t *)tokens, block_bytes }, seed),
        };
        request->hashes[at].value =
            kvb_hash64((kvb_span){ (const uint8_t *)chained, sizeof chained }, seed);
        request->hash_count++;
    }
}
