#include "kvbridge/worker_spec.h"

#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/config_parts.h"
#include "kvbridge/endpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Copies ---- */

#define TEXT(field) offsetof(struct kvb_worker_spec, field)
static const size_t texts[] = {
    TEXT(pod_uid),
    TEXT(discover),
    TEXT(discover_token_file),
    TEXT(events),
    TEXT(replay),
    TEXT(topic),
    TEXT(model),
    TEXT(lora),
    TEXT(republish.events),
    TEXT(republish.replay),
    TEXT(republish.topic),
    TEXT(load.zmq),
    TEXT(load.prometheus),
    TEXT(load.coordinator),
    TEXT(facts.address),
    TEXT(facts.tokenize),
    TEXT(facts.pod),
    TEXT(facts.pod_namespace),
    TEXT(facts.node),
    TEXT(model_rule),
};
#undef TEXT

static const char *text_at(const struct kvb_worker_spec *spec, size_t offset)
{
    const char *text = NULL;

    memcpy(&text, (const uint8_t *)spec + offset, sizeof text);
    return text;
}

static void set_text_at(struct kvb_worker_spec *spec, size_t offset, const char *text)
{
    memcpy((uint8_t *)spec + offset, &text, sizeof text);
}

void kvb_worker_spec_init(struct kvb_worker_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        set_text_at(spec, texts[i], "");
    }
}

/* Copies a text behind those before it.  An empty one needs no room: there are many. */
static const char *keep_text(char **room, const char *text)
{
    const size_t len = strlen(text);

    if (len == 0) {
        return "";
    }
    char *kept = *room;
    memcpy(kept, text, len + 1);
    *room += len + 1;
    return kept;
}

static size_t kept_bytes(const char *text)
{
    return text[0] != '\0' ? strlen(text) + 1 : 0;
}

kvb_status
kvb_worker_spec_new(const struct kvb_worker_spec *spec, struct kvb_worker_spec **out_spec)
{
    const size_t id_bytes = spec->id_count * sizeof *spec->ids;
    size_t bytes = sizeof *spec + id_bytes + spec->facts.labels.len;

    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        bytes += kept_bytes(text_at(spec, texts[i]));
    }
    struct kvb_worker_spec *copy = malloc(bytes);
    if (!copy) {
        return KVB_NO_MEMORY;
    }
    /* Until all texts are copied below it points to what `spec` borrows. */
    memcpy(copy, spec, sizeof *copy);
    atomic_init(&copy->references, 1);
    uint64_t *ids = (uint64_t *)(copy + 1); /* first, because they must be aligned */
    copy->ids = NULL;
    if (id_bytes > 0) {
        memcpy(ids, spec->ids, id_bytes);
        copy->ids = ids;
    }
    char *room = (char *)ids + id_bytes;
    if (spec->facts.labels.len > 0) {
        memcpy(room, spec->facts.labels.data, spec->facts.labels.len);
        copy->facts.labels.data = (const uint8_t *)room;
        room += spec->facts.labels.len;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        set_text_at(copy, texts[i], keep_text(&room, text_at(spec, texts[i])));
    }
    *out_spec = copy;
    return KVB_OK;
}

struct kvb_worker_spec *kvb_worker_spec_ref(struct kvb_worker_spec *spec)
{
    atomic_fetch_add(&spec->references, 1);
    return spec;
}

void kvb_worker_spec_unref(struct kvb_worker_spec *spec)
{
    if (spec && atomic_fetch_sub(&spec->references, 1) == 1) {
        free(spec);
    }
}

/* ---- Facts ---- */

struct kvb_spec_facts kvb_spec_facts_of(const struct kvb_worker_facts *facts)
{
    return (struct kvb_spec_facts){
        .address = facts->address,
        .tokenize = facts->tokenize,
        .pod = facts->pod,
        .pod_namespace = facts->pod_namespace,
        .node = facts->node,
        .labels = { (const uint8_t *)facts->labels.text, facts->labels.bytes },
        .label_count = facts->labels.count,
        .role = facts->role,
        .ready = facts->ready,
        .is_draining = facts->is_draining,
        .restarts = facts->restarts,
        .speculation_of_arguments = facts->speculation_of_arguments,
    };
}

void kvb_spec_facts_expand(const struct kvb_spec_facts *facts, struct kvb_worker_facts *out)
{
    *out = (struct kvb_worker_facts){
        .role = facts->role,
        .ready = facts->ready,
        .is_draining = facts->is_draining,
        .restarts = facts->restarts,
        .speculation_of_arguments = facts->speculation_of_arguments,
        .labels = { .count = facts->label_count, .bytes = (uint16_t)facts->labels.len },
    };
    (void)snprintf(out->address, sizeof out->address, "%s", facts->address);
    (void)snprintf(out->tokenize, sizeof out->tokenize, "%s", facts->tokenize);
    (void)snprintf(out->pod, sizeof out->pod, "%s", facts->pod);
    (void)snprintf(out->pod_namespace, sizeof out->pod_namespace, "%s", facts->pod_namespace);
    (void)snprintf(out->node, sizeof out->node, "%s", facts->node);
    if (facts->labels.len > 0) {
        memcpy(out->labels.text, facts->labels.data, facts->labels.len);
    }
}

static bool is_same(const char *one, const char *other)
{
    return one == other || strcmp(one, other) == 0;
}

bool kvb_spec_facts_are_same(const struct kvb_spec_facts *one, const struct kvb_spec_facts *other)
{
    return one->role == other->role && one->ready == other->ready &&
           one->is_draining == other->is_draining && one->restarts == other->restarts &&
           one->speculation_of_arguments == other->speculation_of_arguments &&
           is_same(one->address, other->address) && is_same(one->tokenize, other->tokenize) &&
           is_same(one->pod, other->pod) && is_same(one->pod_namespace, other->pod_namespace) &&
           is_same(one->node, other->node) && one->label_count == other->label_count &&
           one->labels.len == other->labels.len &&
           (one->labels.len == 0 ||
            memcmp(one->labels.data, other->labels.data, one->labels.len) == 0);
}

/* ---- Identity ---- */

/* What all ranks of a worker have in common: how its events are read. */
static bool are_read_alike(const struct kvb_worker_spec *one, const struct kvb_worker_spec *other)
{
    return one->bind == other->bind && one->block_size == other->block_size &&
           one->hashes == other->hashes && one->store == other->store &&
           one->has_salts == other->has_salts && one->is_sglang_hybrid == other->is_sglang_hybrid &&
           one->unknown_medium == other->unknown_medium &&
           one->offload_removals == other->offload_removals &&
           one->speculative_drop == other->speculative_drop &&
           one->speculative_drop_groups == other->speculative_drop_groups &&
           one->attention_chunk == other->attention_chunk &&
           one->offload_chunk_blocks == other->offload_chunk_blocks &&
           one->total_blocks == other->total_blocks &&
           one->load.total_slots == other->load.total_slots &&
           one->republish.style == other->republish.style && is_same(one->model, other->model) &&
           is_same(one->lora, other->lora) && is_same(one->pod_uid, other->pod_uid) &&
           is_same(one->republish.topic, other->republish.topic);
}

bool kvb_worker_specs_are_same(
    const struct kvb_worker_spec *one, const struct kvb_worker_spec *other)
{
    return one == other ||
           (one->id == other->id && one->id_count == other->id_count &&
            (one->id_count == 0 ||
             memcmp(one->ids, other->ids, one->id_count * sizeof *one->ids) == 0) &&
            one->first_rank == other->first_rank && one->ranks == other->ranks &&
            one->has_own_addresses == other->has_own_addresses &&
            is_same(one->discover, other->discover) &&
            is_same(one->discover_token_file, other->discover_token_file) &&
            is_same(one->events, other->events) && is_same(one->replay, other->replay) &&
            is_same(one->topic, other->topic) &&
            is_same(one->republish.events, other->republish.events) &&
            is_same(one->republish.replay, other->republish.replay) &&
            is_same(one->load.zmq, other->load.zmq) &&
            is_same(one->load.prometheus, other->load.prometheus) &&
            is_same(one->load.coordinator, other->load.coordinator) &&
            one->load.scrape_ms == other->load.scrape_ms && are_read_alike(one, other));
}

uint64_t kvb_worker_id_of_address(const struct kvb_worker_spec *worker)
{
    static const uint64_t below_2_53 = (UINT64_C(1) << 53) - 1;
    char text[kvb_config_url_bytes + kvb_endpoint_host_bytes + 1];
    char base[kvb_endpoint_bytes] = "";
    char host[kvb_endpoint_host_bytes] = "";
    const char *address = worker->discover;

    /* Not discovered: the socket of its first rank stands for it. */
    if (address[0] == '\0') {
        const bool is_base =
            !worker->has_own_addresses &&
            kvb_endpoint_for_rank(worker->events, worker->first_rank, base) == KVB_OK;
        address = is_base ? base : worker->events;
    }
    /* An address of this host is another engine on each host. */
    if (kvb_endpoint_is_of_this_host(address) ||
        kvb_endpoint_is_this_host(kvb_endpoint_host_of_url(worker->discover))) {
        (void)gethostname(host, sizeof host - 1); /* on failure only the address is used */
    }
    const int len = snprintf(text, sizeof text, "%s %s", host, address);
    return kvb_hash64((kvb_span){ (const uint8_t *)text, (size_t)len }, 0) & below_2_53;
}

uint64_t kvb_worker_id_of_rank(const struct kvb_worker_spec *worker, uint32_t at)
{
    return worker->id_count > 0 ? worker->ids[at] : worker->id;
}

/* ---- What follows from it ---- */

bool kvb_worker_is_republished(const struct kvb_worker_spec *worker)
{
    return worker->republish.events[0] != '\0';
}

size_t kvb_worker_load_sources(const struct kvb_worker_spec *worker)
{
    const bool has_page = worker->load.prometheus[0] != '\0' || worker->discover[0] != '\0';

    return (worker->load.zmq[0] != '\0') + has_page + (worker->load.coordinator[0] != '\0');
}

void kvb_worker_models_url(const struct kvb_worker_spec *worker, char *out)
{
    static const char page[] = "/metrics";
    const bool is_discovered = worker->discover[0] != '\0';
    const char *url = is_discovered ? worker->discover : worker->load.prometheus;
    size_t len = strlen(url);

    if (is_discovered) {
        len -= len > 0 && url[len - 1] == '/';
    } else {
        /* Beside /metrics there is a server of OpenAI's API; of another page nothing is known. */
        const bool is_beside =
            len >= sizeof page - 1 && strcmp(url + len - (sizeof page - 1), page) == 0;
        len = is_beside ? len - (sizeof page - 1) : 0;
    }
    const int written = snprintf(out, kvb_max_page_url_bytes, "%.*s/v1/models", (int)len, url);
    if (len == 0 || written >= kvb_max_page_url_bytes) {
        out[0] = '\0';
    }
}

/* ---- Parts ---- */

struct kvb_part *kvb_part_ref(struct kvb_part *part)
{
    atomic_fetch_add(&part->references, 1);
    return part;
}

void kvb_part_unref(struct kvb_part *part)
{
    if (part && atomic_fetch_sub(&part->references, 1) == 1) {
        kvb_worker_spec_unref(part->worker);
        free(part);
    }
}

void kvb_parts_done(struct kvb_parts *parts)
{
    for (size_t i = 0; i < parts->count; i++) {
        kvb_part_unref(parts->items[i]);
    }
    free((void *)parts->items);
    *parts = (struct kvb_parts){ 0 };
}

/* A text that the worker has too is borrowed: of most workers, all. */
static const char *shared_text(const char *text, const char *of_worker)
{
    return strcmp(text, of_worker) == 0 ? of_worker : text;
}

/* Copies a part whose texts are borrowed from anywhere. */
static kvb_status new_part(const struct kvb_part *from, struct kvb_part **out_part)
{
    const struct kvb_worker_spec *worker = from->worker;
    struct {
        const char *text;
        const char *of_worker;
        size_t offset;
    } rows[] = {
        { from->events, worker->events, offsetof(struct kvb_part, events) },
        { from->replay, worker->replay, offsetof(struct kvb_part, replay) },
        { from->topic, worker->topic, offsetof(struct kvb_part, topic) },
        { from->republish_events, worker->republish.events,
          offsetof(struct kvb_part, republish_events) },
        { from->republish_replay, worker->republish.replay,
          offsetof(struct kvb_part, republish_replay) },
    };
    size_t bytes = sizeof *from;

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        rows[i].text = shared_text(rows[i].text, rows[i].of_worker);
        bytes += rows[i].text == rows[i].of_worker ? 0 : kept_bytes(rows[i].text);
    }
    struct kvb_part *part = malloc(bytes);
    if (!part) {
        return KVB_NO_MEMORY;
    }
    memcpy(part, from, sizeof *part);
    atomic_init(&part->references, 1);
    part->worker = kvb_worker_spec_ref(from->worker);
    char *room = (char *)(part + 1);
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const char *text =
            rows[i].text == rows[i].of_worker ? rows[i].text : keep_text(&room, rows[i].text);
        memcpy((uint8_t *)part + rows[i].offset, &text, sizeof text);
    }
    *out_part = part;
    return KVB_OK;
}

static kvb_status add_part(struct kvb_parts *parts, const struct kvb_part *part)
{
    KVB_TRY(new_part(part, &parts->items[parts->count]));
    parts->count++;
    return KVB_OK;
}

static kvb_status make_room(struct kvb_parts *parts, size_t count)
{
    parts->items = (struct kvb_part **)calloc(count, sizeof(struct kvb_part *));
    return parts->items ? KVB_OK : KVB_NO_MEMORY;
}

/* The configuration gives those of rank 0, also of a worker that is discovered.  A rank that is
 * beyond what they can carry is not republished. */
static void put_republished_addresses(
    const struct kvb_worker_spec *worker, uint32_t dp_rank, struct kvb_part *out,
    char events[kvb_endpoint_bytes], char replay[kvb_endpoint_bytes])
{
    const bool has_replay = worker->republish.replay[0] != '\0';

    out->republish_events = "";
    out->republish_replay = "";
    if (kvb_worker_is_republished(worker) &&
        kvb_endpoint_for_rank(worker->republish.events, dp_rank, events) == KVB_OK &&
        (!has_replay ||
         kvb_endpoint_for_rank(worker->republish.replay, dp_rank, replay) == KVB_OK)) {
        out->republish_events = events;
        out->republish_replay = has_replay ? replay : "";
    }
}

/* The address of one rank.  A source checks that there is one before it gives its list. */
static const char *address_of_rank(
    const struct kvb_worker_spec *worker, const char *base, uint32_t dp_rank,
    char out[kvb_endpoint_bytes])
{
    if (worker->has_own_addresses || base[0] == '\0') {
        return base;
    }
    const kvb_status status = kvb_endpoint_for_rank(base, dp_rank, out);
    assert(status == KVB_OK);
    (void)status;
    return out;
}

static kvb_status add_rank(
    struct kvb_parts *parts, struct kvb_worker_spec *worker, uint32_t at,
    enum kvb_speculation speculation)
{
    char texts_of_rank[4][kvb_endpoint_bytes];
    struct kvb_part part = { .kind = KVB_PART_RANK,
                             .worker = worker,
                             .id = kvb_worker_id_of_rank(worker, at),
                             .dp_rank = worker->first_rank + at,
                             .ranks = 1,
                             .topic = worker->topic,
                             .speculation_of_server = speculation };

    part.events = address_of_rank(worker, worker->events, part.dp_rank, texts_of_rank[0]);
    part.replay = address_of_rank(worker, worker->replay, part.dp_rank, texts_of_rank[1]);
    put_republished_addresses(worker, part.dp_rank, &part, texts_of_rank[2], texts_of_rank[3]);
    return add_part(parts, &part);
}

static kvb_status add_load(struct kvb_parts *parts, struct kvb_worker_spec *worker, uint32_t ranks)
{
    const struct kvb_part part = { .kind = KVB_PART_LOAD,
                                   .worker = worker,
                                   .id = kvb_worker_id_of_rank(worker, 0),
                                   .dp_rank = worker->first_rank,
                                   .ranks = ranks,
                                   .events = "",
                                   .replay = "",
                                   .topic = "",
                                   .republish_events = "",
                                   .republish_replay = "" };

    return kvb_worker_load_sources(worker) > 0 ? add_part(parts, &part) : KVB_OK;
}

static kvb_status
add_all(struct kvb_parts *parts, struct kvb_worker_spec *worker, enum kvb_speculation speculation)
{
    /* The load comes last. */
    KVB_TRY(make_room(parts, worker->ranks + 1));
    for (uint32_t at = 0; at < worker->ranks; at++) {
        KVB_TRY(add_rank(parts, worker, at, speculation));
    }
    return add_load(parts, worker, worker->ranks);
}

/* Gives the parts to the caller, or frees them. */
static kvb_status finish(struct kvb_parts *parts, kvb_status status, struct kvb_parts *out_parts)
{
    if (status == KVB_OK) {
        *out_parts = *parts;
    } else {
        kvb_parts_done(parts);
    }
    return status;
}

kvb_status kvb_parts_of_own_addresses(
    struct kvb_worker_spec *worker, enum kvb_speculation speculation, struct kvb_parts *out_parts)
{
    struct kvb_parts parts = { 0 };

    return finish(&parts, add_all(&parts, worker, speculation), out_parts);
}

kvb_status kvb_parts_of_spec(struct kvb_worker_spec *worker, struct kvb_parts *out_parts)
{
    if (worker->discover[0] != '\0') {
        *out_parts = (struct kvb_parts){ 0 };
        return KVB_OK;
    }
    return kvb_parts_of_own_addresses(worker, KVB_SPECULATION_UNKNOWN, out_parts);
}

/* ---- Parts that an engine has named ---- */

/* Converts an advertised address to one that this host can reach: * means the host that
 * answered. */
static kvb_status put_reachable_address(
    const struct kvb_worker_spec *worker, const char *advertised,
    char out_address[kvb_endpoint_bytes], struct kvb_detail *detail)
{
    struct kvb_endpoint endpoint;

    out_address[0] = '\0';
    if (advertised[0] == '\0') {
        return KVB_OK;
    }
    if (kvb_endpoint_parse(advertised, &endpoint, NULL) == KVB_OK &&
        endpoint.scheme == KVB_ENDPOINT_INPROC) {
        kvb_detail_set(
            detail,
            "%.80s is reachable only inside the engine's process: give the engine tcp://*:PORT",
            advertised);
        return KVB_BAD_CONFIG;
    }
    if (kvb_endpoint_parse(advertised, &endpoint, NULL) != KVB_OK ||
        kvb_endpoint_at_host(advertised, kvb_endpoint_host_of_url(worker->discover), out_address) !=
            KVB_OK) {
        kvb_detail_set(detail, "%.80s is not a socket address", advertised);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status put_id(
    const struct kvb_worker_spec *worker, uint32_t dp_rank, uint64_t *out_id,
    struct kvb_detail *detail)
{
    if (worker->id_count > 0 && dp_rank >= worker->id_count) {
        kvb_detail_set(
            detail, "the engine has rank %u, but `ids` has only %zu ids: give one for each rank",
            dp_rank, worker->id_count);
        return KVB_BAD_CONFIG;
    }
    *out_id = kvb_worker_id_of_rank(worker, dp_rank);
    return KVB_OK;
}

/* vLLM and SGLang bind an address that contains * or ::, and ipc and inproc addresses.  They
 * connect to any other address. */
static bool may_connect(const char *advertised)
{
    struct kvb_endpoint endpoint;

    return kvb_endpoint_parse(advertised, &endpoint, NULL) == KVB_OK &&
           endpoint.scheme == KVB_ENDPOINT_TCP && !strchr(advertised, '*') &&
           !strstr(advertised, "::");
}

static kvb_status add_advertised_rank(
    struct kvb_parts *parts, struct kvb_worker_spec *worker, const struct kvb_event_source *source,
    enum kvb_speculation speculation, struct kvb_detail *detail)
{
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes];
    char republish_events[kvb_endpoint_bytes];
    char republish_replay[kvb_endpoint_bytes];
    struct kvb_part part = { .kind = KVB_PART_RANK,
                             .worker = worker,
                             .dp_rank = source->dp_rank,
                             .ranks = 1,
                             .events = events,
                             .replay = replay,
                             .topic = source->topic,
                             .is_advertised = true,
                             .may_connect = may_connect(source->endpoint),
                             .speculation_of_server = speculation };

    KVB_TRY(put_id(worker, source->dp_rank, &part.id, detail));
    KVB_TRY(put_reachable_address(worker, source->endpoint, events, detail));
    KVB_TRY(put_reachable_address(worker, source->replay_endpoint, replay, detail));
    put_republished_addresses(worker, part.dp_rank, &part, republish_events, republish_replay);
    return add_part(parts, &part);
}

static kvb_status add_answer(
    struct kvb_parts *parts, struct kvb_worker_spec *worker,
    const struct kvb_event_sources *sources, enum kvb_speculation speculation,
    struct kvb_detail *detail)
{
    const size_t count = sources->count;

    KVB_TRY(make_room(parts, count + 1));
    for (size_t i = 0; i < count; i++) {
        KVB_TRY(add_advertised_rank(parts, worker, &sources->sources[i], speculation, detail));
    }
    /* The sources are sorted, so the last one is the highest rank. */
    return add_load(parts, worker, count > 0 ? sources->sources[count - 1].dp_rank + 1 : 0);
}

kvb_status kvb_parts_of_answer(
    struct kvb_worker_spec *worker, const struct kvb_event_sources *sources,
    enum kvb_speculation speculation, struct kvb_parts *out_parts, struct kvb_detail *detail)
{
    struct kvb_parts parts = { 0 };

    return finish(&parts, add_answer(&parts, worker, sources, speculation, detail), out_parts);
}

static kvb_status
add_renewed(struct kvb_parts *parts, const struct kvb_parts *from, struct kvb_worker_spec *worker)
{
    KVB_TRY(make_room(parts, from->count + 1));
    for (size_t i = 0; i < from->count; i++) {
        struct kvb_part part = *from->items[i];
        /* add_part() copies what the former worker has lent it. */
        part.worker = worker;
        KVB_TRY(add_part(parts, &part));
    }
    return KVB_OK;
}

kvb_status kvb_parts_renew(
    const struct kvb_parts *parts, struct kvb_worker_spec *worker, struct kvb_parts *out_parts)
{
    struct kvb_parts renewed = { 0 };

    return finish(&renewed, add_renewed(&renewed, parts, worker), out_parts);
}

/* ---- Comparing parts ---- */

bool kvb_parts_are_same(const struct kvb_part *one, const struct kvb_part *other)
{
    if (one == other) {
        return true;
    }
    if (one->kind != other->kind || one->id != other->id || one->dp_rank != other->dp_rank ||
        one->ranks != other->ranks) {
        return false;
    }
    /* A load reads what its worker names; a rank reads addresses of its own. */
    return one->kind == KVB_PART_LOAD
               ? kvb_worker_specs_are_same(one->worker, other->worker)
               : is_same(one->events, other->events) && is_same(one->replay, other->replay) &&
                     is_same(one->topic, other->topic) &&
                     is_same(one->republish_events, other->republish_events) &&
                     is_same(one->republish_replay, other->republish_replay) &&
                     are_read_alike(one->worker, other->worker);
}

bool kvb_part_facts_are_same(const struct kvb_part *one, const struct kvb_part *other)
{
    return one->speculation_of_server == other->speculation_of_server &&
           (one->worker == other->worker ||
            kvb_spec_facts_are_same(&one->worker->facts, &other->worker->facts));
}

void kvb_part_facts(const struct kvb_part *part, struct kvb_worker_facts *out_facts)
{
    kvb_spec_facts_expand(&part->worker->facts, out_facts);
    out_facts->speculation_of_server = part->speculation_of_server;
}

bool kvb_part_is_republished(const struct kvb_part *part)
{
    return part->republish_events[0] != '\0';
}
