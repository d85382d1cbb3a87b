#include "core/limits.h"
#include "core/own.h"
#include "target.h"
#include "wire/engine/answers.h"
#include "wire/json/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_source(struct kvb_json_writer *json, const struct kvb_event_source *source)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "endpoint", source->endpoint);
    kvb_json_write_pair_text(json, "replay_endpoint", source->replay_endpoint);
    kvb_json_write_pair_text(json, "topic", source->topic);
    kvb_json_write_pair_u64(json, "buffer_steps", source->buffer_steps);
    kvb_json_write_end(json, '}');
}

/* The list as vLLM 0.32 would answer. */
static kvb_span write_keyed(const struct kvb_event_sources *sources, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < sources->count; i++) {
        kvb_json_write_key_u64(&json, sources->sources[i].dp_rank);
        write_source(&json, &sources->sources[i]);
    }
    kvb_json_write_end(&json, '}');
    check(json.status == KVB_OK);
    return kvb_buf_span(out);
}

static bool is_same(const struct kvb_event_source *a, const struct kvb_event_source *b)
{
    return a->dp_rank == b->dp_rank && a->buffer_steps == b->buffer_steps &&
           strcmp(a->endpoint, b->endpoint) == 0 &&
           strcmp(a->replay_endpoint, b->replay_endpoint) == 0 && strcmp(a->topic, b->topic) == 0;
}

/* Ranks are sorted, each once and within what a worker may have, each with an address. */
static void check_sources(const struct kvb_event_sources *sources)
{
    check(sources->count <= kvb_max_ranks);
    for (size_t i = 0; i < sources->count; i++) {
        const struct kvb_event_source *source = &sources->sources[i];
        const bool is_sorted = i == 0 || source[-1].dp_rank < source->dp_rank;
        check(is_sorted && source->dp_rank < kvb_max_ranks && source->endpoint[0] != '\0');
    }
}

typedef kvb_status (*decoder)(kvb_span, struct kvb_event_sources *, struct kvb_detail *);

static void check_answer(kvb_span json, decoder decode)
{
    static struct kvb_event_sources sources;
    static struct kvb_event_sources again;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_detail why = { "" };

    sources.count = 0;
    if (decode(json, &sources, &why) != KVB_OK) {
        check(why.text[0] != '\0' && sources.count == 0);
        return;
    }
    check_sources(&sources);
    kvb_buf_init(&buf, kvb_max_event_sources_bytes);
    check(
        kvb_event_sources_decode(write_keyed(&sources, &buf), &again, &why) == KVB_OK &&
        again.count == sources.count);
    for (size_t i = 0; i < sources.count; i++) {
        check(is_same(&sources.sources[i], &again.sources[i]));
    }
}

/* An accepted list, of either engine, is written in vLLM's form and reads as the same; for a
 * refused one there is a sentence, and nothing changes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum kvb_speculation speculation = KVB_SPECULATION_UNKNOWN;

    (void)kvb_server_info_decode((kvb_span){ data, size }, &speculation);
    const kvb_span json = { data, size };

    check_answer(json, kvb_event_sources_decode);
    check_answer(json, kvb_event_sources_decode_server_info);
    return 0;
}
