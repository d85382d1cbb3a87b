#include "tokenize/chain.h"

#include "core/hash.h"

#include <stdbool.h>

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

size_t kvb_text_open_bytes(kvb_span body)
{
    size_t bytes = body.len;

    if (bytes < 2) {
        return 0;
    }
    bytes -= 2; /* the brace, and a bracket or the quote */
    /* Blanks inside the quotes are part of the prompt. */
    while (body.data[body.len - 2] == ']' && bytes > 0 && is_blank(body.data[bytes - 1])) {
        bytes--;
    }
    return bytes;
}

void kvb_text_chain_done(struct kvb_text_chain *chain)
{
    kvb_id_table_done(&chain->table);
}

/* A walk over the places of a text, from the first on. */
struct walk {
    const struct kvb_text_view *text;
    size_t open_bytes;
    size_t number; /* of the next place */
    size_t hashed; /* bytes before the place at hand */
    uint64_t hash; /* of them */
};

static struct walk begin_walk(const struct kvb_text_chain *chain, const struct kvb_text_view *text)
{
    return (struct walk){ .text = text,
                          .open_bytes = kvb_text_open_bytes(text->body),
                          .hash = chain->seed };
}

/* Goes to the next place.  False: there is none. */
static bool step(struct walk *walk)
{
    const struct kvb_text_view *text = walk->text;
    size_t end = walk->hashed + kvb_text_chunk_bytes;

    if (text->ends) {
        end = walk->number < text->end_count ? text->ends[walk->number] : SIZE_MAX;
    }
    if (end > walk->open_bytes || end < walk->hashed) {
        return false;
    }
    const kvb_span piece = { text->body.data + walk->hashed, end - walk->hashed };
    /* The hash so far is the seed of the next one: a chain. */
    walk->hash = kvb_hash64(piece, walk->hash);
    walk->hashed = end;
    walk->number++;
    return true;
}

kvb_status kvb_text_chain_put(
    struct kvb_text_chain *chain, const struct kvb_text_view *text, uint32_t id, uint32_t *out_key)
{
    struct walk walk = begin_walk(chain, text);

    while (step(&walk)) { /* ends: the text does */
    }
    if (walk.number == 0) {
        return KVB_NOT_FOUND;
    }
    /* Filed under its last place only: a longer text passes by there. */
    KVB_TRY(kvb_id_table_put(&chain->table, (uint32_t)walk.hash, id));
    *out_key = (uint32_t)walk.hash;
    return KVB_OK;
}

void kvb_text_chain_remove(struct kvb_text_chain *chain, uint32_t key, uint32_t id)
{
    kvb_id_table_remove(&chain->table, key, id);
}

size_t kvb_text_chain_find(
    const struct kvb_text_chain *chain, const struct kvb_text_view *text,
    uint32_t out_ids[kvb_text_candidates])
{
    struct walk walk = begin_walk(chain, text);
    uint32_t newest[kvb_text_candidates]; /* a ring: the walk meets the longest last */
    size_t met = 0;

    while (chain->table.count > 0 && step(&walk)) {
        const uint32_t key = (uint32_t)walk.hash;
        size_t at = kvb_id_table_start(&chain->table, key);
        for (uint32_t id; (id = kvb_id_table_next(&chain->table, key, &at)) != KVB_NO_ID;) {
            newest[met++ % kvb_text_candidates] = id;
        }
    }
    const size_t count = met < kvb_text_candidates ? met : kvb_text_candidates;
    /* Longest first. */
    for (size_t i = 0; i < count; i++) {
        out_ids[i] = newest[(met - 1 - i) % kvb_text_candidates];
    }
    return count;
}
