#include "kvbridge/profile_guard.h"

#include "core/clock.h"
#include "wire/router/bridge_status.h"

#include <string.h>

static const uint64_t listen_ns = 1500 * KVB_NS_PER_MS;
static const uint64_t forget_ns = 5 * KVB_NS_PER_S; /* five statuses of another bridge */

void kvb_profile_guard_init(
    struct kvb_profile_guard *guard, const char *bridge_id, enum kvb_profile profile)
{
    *guard = (struct kvb_profile_guard){ .bridge_id = bridge_id, .profile = profile };
    (void)pthread_mutex_init(&guard->lock, NULL); /* cannot fail without attributes */
}

void kvb_profile_guard_done(struct kvb_profile_guard *guard)
{
    (void)pthread_mutex_destroy(&guard->lock);
}

static bool
has_the_right(const struct kvb_profile_guard *guard, const struct kvb_bridge_identity *other)
{
    return other->is_publishing != guard->is_publishing
               ? other->is_publishing
               : strcmp(other->bridge_id, guard->bridge_id) < 0;
}

static void count_echo(struct kvb_profile_guard *guard)
{
    (void)pthread_mutex_lock(&guard->lock);
    guard->echoes++;
    (void)pthread_mutex_unlock(&guard->lock);
}

void kvb_profile_guard_receive(void *context, const struct kvb_bus_message *message)
{
    struct kvb_profile_guard *guard = context;
    struct kvb_bridge_identity other;

    if (kvb_bridge_status_is_of(message->payload, guard->bridge_id)) {
        count_echo(guard);
        return;
    }
    if (kvb_bridge_status_decode(message->payload, &other) != KVB_OK) {
        return; /* not a bridge's */
    }
    if (strcmp(other.bridge_id, guard->bridge_id) == 0) {
        count_echo(guard); /* not encoded as ours is */
        return;
    }
    if (other.has_profile && other.profile == guard->profile) {
        return;
    }
    (void)pthread_mutex_lock(&guard->lock);
    guard->has_seen = true;
    guard->seen = other;
    if (has_the_right(guard, &other)) {
        guard->received_ns = kvb_clock_monotonic_ns();
        guard->other = other;
    }
    (void)pthread_mutex_unlock(&guard->lock);
}

uint64_t kvb_profile_guard_echoes(struct kvb_profile_guard *guard)
{
    (void)pthread_mutex_lock(&guard->lock);
    const uint64_t echoes = guard->echoes;
    (void)pthread_mutex_unlock(&guard->lock);
    return echoes;
}

bool kvb_profile_guard_take_conflict(
    struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail)
{
    (void)pthread_mutex_lock(&guard->lock);
    const bool is_new = guard->has_seen && strcmp(guard->said, guard->seen.bridge_id) != 0;
    if (is_new) {
        const bool is_ours_second =
            guard->received_ns > 0 && now_ns < guard->received_ns + forget_ns;
        memcpy(guard->said, guard->seen.bridge_id, sizeof guard->said);
        kvb_detail_set(
            detail,
            "bridge %s has profile %s and this bridge, %s, has %s: one component speaks one "
            "profile, so %s publishes nothing; change publish.profile of either",
            guard->seen.bridge_id, guard->seen.profile_name, guard->bridge_id,
            kvb_profile_name(guard->profile), is_ours_second ? "this one" : "the other");
    }
    (void)pthread_mutex_unlock(&guard->lock);
    return is_new;
}

void kvb_profile_guard_begin(struct kvb_profile_guard *guard, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&guard->lock);
    if (guard->open_ns == 0 || !guard->is_publishing) {
        guard->open_ns = now_ns + listen_ns;
    }
    (void)pthread_mutex_unlock(&guard->lock);
}

static bool is_profile_allowed(
    const struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail)
{
    if (guard->received_ns > 0 && now_ns < guard->received_ns + forget_ns) {
        kvb_detail_set(
            detail,
            "bridge %s publishes profile %s on this component, we are set to %s: one "
            "component speaks one profile, change publish.profile of either",
            guard->other.bridge_id, guard->other.profile_name, kvb_profile_name(guard->profile));
        return false;
    }
    if (guard->open_ns == 0 || now_ns < guard->open_ns) {
        kvb_detail_set(detail, "listening for other bridges of the component");
        return false;
    }
    return true;
}

bool kvb_profile_guard_allows(
    struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail)
{
    (void)pthread_mutex_lock(&guard->lock);
    const bool allows = is_profile_allowed(guard, now_ns, detail);
    guard->is_publishing = allows;
    (void)pthread_mutex_unlock(&guard->lock);
    return allows;
}
