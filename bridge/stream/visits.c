#include "stream/visits.h"

#include "core/clock.h"

static const uint64_t slot_ns = 5 * KVB_NS_PER_MS;

/* The head of a slot's ring, which {0} has not linked yet. */
static struct kvb_visit *wheel_slot(struct kvb_visits *visits, uint64_t number)
{
    struct kvb_visit *head = &visits->slots[number % kvb_visit_slots];

    if (!head->next) {
        head->next = head;
        head->before = head;
    }
    return head;
}

void kvb_visits_drop(struct kvb_visit *visit)
{
    if (visit->next) {
        visit->next->before = visit->before;
        visit->before->next = visit->next;
        visit->next = NULL;
        visit->before = NULL;
    }
}

void kvb_visits_set(struct kvb_visits *visits, struct kvb_visit *visit, uint64_t due_ns)
{
    const uint64_t last = visits->at + kvb_visit_slots - 1;
    uint64_t number = due_ns / slot_ns + (due_ns % slot_ns > 0);

    /* Not into a slot that was taken already, nor beyond one turn of the wheel. */
    number = number < visits->at ? visits->at : number < last ? number : last;
    struct kvb_visit *head = wheel_slot(visits, number);
    kvb_visits_drop(visit);
    visit->next = head;
    visit->before = head->before;
    head->before->next = visit;
    head->before = visit;
    visits->first = number < visits->first ? number : visits->first;
}

uint64_t kvb_visits_due_ns(struct kvb_visits *visits)
{
    const uint64_t end = visits->at + kvb_visit_slots;

    for (; visits->first < end; visits->first++) {
        const struct kvb_visit *head = &visits->slots[visits->first % kvb_visit_slots];
        if (head->next && head->next != head) {
            return visits->first * slot_ns;
        }
    }
    return UINT64_MAX;
}

struct kvb_visit *kvb_visits_take(struct kvb_visits *visits, uint64_t now_ns)
{
    struct kvb_visit *first = NULL;
    struct kvb_visit **end = &first;
    const uint64_t now = now_ns / slot_ns > visits->at ? now_ns / slot_ns : visits->at;
    const uint64_t slots =
        now - visits->at < kvb_visit_slots ? now - visits->at + 1 : kvb_visit_slots;

    /* A slot holds the visits of one time only, because nothing is set beyond a turn: all of it is
     * due. */
    for (uint64_t i = 0; i < slots; i++) {
        const struct kvb_visit *head = wheel_slot(visits, visits->at + i);
        while (head->next != head) {
            struct kvb_visit *visit = head->next;
            kvb_visits_drop(visit);
            visit->then = NULL;
            *end = visit;
            end = &visit->then;
        }
    }
    visits->at = now;
    visits->first = now > visits->first ? now : visits->first;
    return first;
}
