#include "stream/mirror/inside.h"

/* Entries that wait for their parent's name, in one list for each parent and prompt context.  A new
 * parent therefore finds exactly the entries that it can name, however many others wait.
 *
 *     by_parent    (parent's engine hash, context) -> first entry
 *     waiting      first <-> ... <-> last       `previous` of the first entry is the last
 *
 * An entry of another context has another seed or block size, so a query would compute another
 * name. */

static uint32_t
waiting_hash(const struct kvb_mirror *mirror, const struct mirror_entry *entry, uint64_t parent)
{
    return kvb_mirror_hash(mirror, parent, entry->context);
}

static struct waiting_link *link_of(const struct kvb_mirror *mirror, uint32_t id)
{
    return kvb_side_table_find(mirror, &mirror->waiting, id);
}

static uint32_t
find_first(const struct kvb_mirror *mirror, const struct mirror_entry *like, uint64_t parent)
{
    const uint32_t hash = waiting_hash(mirror, like, parent);
    size_t at = kvb_id_table_start(&mirror->by_parent, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_parent, hash, &at)) != KVB_NO_ID;) {
        const struct mirror_entry *first = &mirror->entries[id];
        if (first->parent == parent && first->context == like->context) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_first_waiting(const struct kvb_mirror *mirror, uint32_t parent)
{
    const struct mirror_entry *entry = &mirror->entries[parent];

    return find_first(mirror, entry, entry->engine.value);
}

/* Appends the entry to its list, or begins a list. */
static kvb_status append_waiting(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t first = find_first(mirror, entry, entry->parent);

    if (first == KVB_NO_ID) {
        return kvb_id_table_put(&mirror->by_parent, waiting_hash(mirror, entry, entry->parent), id);
    }
    /* The first entry's link knows the last one, so that appending needs no walk. */
    struct waiting_link *own = link_of(mirror, id);
    struct waiting_link *head = link_of(mirror, first);
    own->previous = head->previous;
    link_of(mirror, head->previous)->next = id;
    head->previous = id;
    return KVB_OK;
}

kvb_status kvb_mirror_wait(struct kvb_mirror *mirror, uint32_t id)
{
    const struct waiting_link link = { .id = id, .previous = id, .next = KVB_NO_ID };

    KVB_TRY(kvb_side_table_add(mirror, &mirror->waiting, &link));
    const kvb_status status = append_waiting(mirror, id);
    if (status != KVB_OK) {
        kvb_side_table_drop(mirror, &mirror->waiting, id);
    }
    return status;
}

void kvb_mirror_wait_no_more(struct kvb_mirror *mirror, uint32_t id, const struct mirror_entry *was)
{
    const struct waiting_link own = *link_of(mirror, id);
    struct waiting_link *before = link_of(mirror, own.previous);
    const uint32_t hash = waiting_hash(mirror, was, was->parent);

    if (before->next == id) {
        before->next = own.next;
        const uint32_t behind =
            own.next != KVB_NO_ID ? own.next : find_first(mirror, was, was->parent);
        link_of(mirror, behind)->previous = own.previous;
    } else { /* it is the first one, whose previous one is the last: the next becomes the first */
        kvb_id_table_remove(&mirror->by_parent, hash, id);
        if (own.next != KVB_NO_ID) {
            link_of(mirror, own.next)->previous = own.previous;
            const kvb_status status = kvb_id_table_put(&mirror->by_parent, hash, own.next);
            assert(status == KVB_OK); /* into a cell that has just come free */
            (void)status;
        }
    }
    kvb_side_table_drop(mirror, &mirror->waiting, id);
}
