#include "kvbridge/worker_list.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvbridge/endpoint.h"

#include <stdlib.h>
#include <string.h>

void kvb_worker_list_done(struct kvb_worker_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        kvb_parts_done(&list->items[i].parts);
        kvb_worker_spec_unref(list->items[i].spec);
    }
    free(list->items);
    kvb_id_table_done(&list->by_id);
    *list = (struct kvb_worker_list){ 0 };
}

static uint32_t hash_of_spec(const struct kvb_worker_spec *spec)
{
    const uint64_t key[2] = { kvb_worker_id_of_rank(spec, 0), spec->first_rank };

    return (uint32_t)kvb_hash64((kvb_span){ (const uint8_t *)key, sizeof key }, 0);
}

/* Takes what the worker owns on KVB_OK. */
static kvb_status add(struct kvb_worker_list *list, const struct kvb_listed_worker *worker)
{
    KVB_TRY(kvb_array_reserve(
        (void *)&list->items, &list->capacity, list->count + 1, sizeof *list->items,
        kvb_max_streams));
    KVB_TRY(kvb_id_table_put(&list->by_id, hash_of_spec(worker->spec), (uint32_t)list->count));
    list->items[list->count++] = *worker;
    return KVB_OK;
}

static void drop_listed(struct kvb_listed_worker *worker)
{
    kvb_parts_done(&worker->parts);
    kvb_worker_spec_unref(worker->spec);
}

kvb_status kvb_worker_list_add(struct kvb_worker_list *list, const struct kvb_worker_spec *spec)
{
    struct kvb_listed_worker worker = { .is_known = spec->discover[0] == '\0' };

    KVB_TRY(kvb_worker_spec_new(spec, &worker.spec));
    kvb_status status = kvb_parts_of_spec(worker.spec, &worker.parts);
    if (status == KVB_OK) {
        status = add(list, &worker);
    }
    if (status != KVB_OK) {
        drop_listed(&worker);
    }
    return status;
}

kvb_status kvb_worker_list_add_at(
    struct kvb_worker_list *list, const struct kvb_worker_spec *spec, const char *host,
    const struct kvb_host_ports *ports)
{
    struct kvb_worker_spec worker = *spec;
    char events[kvb_endpoint_bytes];
    char replay[kvb_endpoint_bytes];
    char page[kvb_max_page_url_bytes];
    char address[kvb_worker_address_bytes + 1] = "";

    KVB_TRY(kvb_endpoint_write_url("tcp", host, ports->events, "", sizeof events, events));
    worker.events = events;
    if (ports->replay != 0) {
        KVB_TRY(kvb_endpoint_write_url("tcp", host, ports->replay, "", sizeof replay, replay));
        worker.replay = replay;
    }
    if (ports->metrics != 0) {
        KVB_TRY(
            kvb_endpoint_write_url("http", host, ports->metrics, "/metrics", sizeof page, page));
        worker.load.prometheus = page;
    }
    if (ports->http != 0) {
        KVB_TRY(kvb_endpoint_write_url("http", host, ports->http, "", sizeof address, address));
    }
    worker.facts.address = address;
    /* Without a port of HTTP both become "": nothing is asked of the engine. */
    if (strcmp(worker.facts.tokenize, KVB_AT_ADDRESS) == 0) {
        worker.facts.tokenize = address;
    }
    if (strcmp(worker.discover, KVB_AT_ADDRESS) == 0) {
        worker.discover = address; /* an engine that does not say is read at the ports */
    }
    /* After the addresses, of which the id is made. */
    if (worker.is_id_made) {
        worker.id = kvb_worker_id_of_address(&worker);
    }
    return kvb_worker_list_add(list, &worker);
}

/* The same parts once more, by references. */
static kvb_status share_parts(const struct kvb_parts *parts, struct kvb_parts *out_parts)
{
    struct kvb_parts shared = { 0 };

    shared.items = (struct kvb_part **)calloc(parts->count + 1, sizeof(struct kvb_part *));
    if (!shared.items) {
        return KVB_NO_MEMORY;
    }
    for (; shared.count < parts->count; shared.count++) {
        shared.items[shared.count] = kvb_part_ref(parts->items[shared.count]);
    }
    *out_parts = shared;
    return KVB_OK;
}

kvb_status
kvb_worker_list_add_listed(struct kvb_worker_list *list, const struct kvb_listed_worker *worker)
{
    struct kvb_listed_worker copy = { .is_known = worker->is_known };

    KVB_TRY(share_parts(&worker->parts, &copy.parts));
    copy.spec = kvb_worker_spec_ref(worker->spec);
    const kvb_status status = add(list, &copy);
    if (status != KVB_OK) {
        drop_listed(&copy);
    }
    return status;
}

kvb_status
kvb_worker_list_share(const struct kvb_worker_list *list, struct kvb_worker_list *out_list)
{
    struct kvb_worker_list shared = { 0 };

    for (size_t i = 0; i < list->count; i++) {
        const kvb_status status = kvb_worker_list_add_listed(&shared, &list->items[i]);
        if (status != KVB_OK) {
            kvb_worker_list_done(&shared);
            return status;
        }
    }
    *out_list = shared;
    return KVB_OK;
}

struct kvb_listed_worker *
kvb_worker_list_find(const struct kvb_worker_list *list, const struct kvb_worker_spec *spec)
{
    const uint32_t hash = hash_of_spec(spec);
    size_t at = kvb_id_table_start(&list->by_id, hash);

    for (uint32_t i; (i = kvb_id_table_next(&list->by_id, hash, &at)) != KVB_NO_ID;) {
        const struct kvb_worker_spec *other = list->items[i].spec;
        if (kvb_worker_id_of_rank(other, 0) == kvb_worker_id_of_rank(spec, 0) &&
            other->first_rank == spec->first_rank) {
            return &list->items[i];
        }
    }
    return NULL;
}

static kvb_status inherit(struct kvb_listed_worker *worker, const struct kvb_listed_worker *earlier)
{
    struct kvb_parts parts = { 0 };

    /* Another identity is another worker: nothing that was known holds. */
    if (!kvb_worker_specs_are_same(worker->spec, earlier->spec)) {
        return KVB_OK;
    }
    if (kvb_spec_facts_are_same(&worker->spec->facts, &earlier->spec->facts)) {
        /* Nothing differs: both lists share one spec, and its parts. */
        KVB_TRY(share_parts(&earlier->parts, &parts));
        kvb_worker_spec_unref(worker->spec);
        worker->spec = kvb_worker_spec_ref(earlier->spec);
    } else if (!worker->is_known && earlier->is_known) {
        /* What the engine has answered still holds, under the new facts. */
        KVB_TRY(kvb_parts_renew(&earlier->parts, worker->spec, &parts));
    } else {
        return KVB_OK; /* its own parts have the new facts */
    }
    kvb_parts_done(&worker->parts);
    worker->parts = parts;
    worker->is_known |= earlier->is_known;
    return KVB_OK;
}

kvb_status
kvb_worker_list_inherit(struct kvb_worker_list *list, const struct kvb_worker_list *earlier)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct kvb_listed_worker *before = kvb_worker_list_find(earlier, list->items[i].spec);
        if (before) {
            KVB_TRY(inherit(&list->items[i], before));
        }
    }
    return KVB_OK;
}
