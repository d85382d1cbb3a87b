#include "model/stream.h"

#include <string.h>

bool kvb_epoch_is_same(const kvb_epoch *one, const kvb_epoch *other)
{
    return memcmp(one->bytes, other->bytes, sizeof one->bytes) == 0;
}

const char *kvb_stream_state_name(enum kvb_stream_state state)
{
    static const char *const names[KVB_STREAM_STATE_COUNT] = {
        [KVB_STREAM_SYNCING] = "SYNCING", [KVB_STREAM_EXACT] = "EXACT",
        [KVB_STREAM_PARTIAL] = "PARTIAL", [KVB_STREAM_UNVERIFIED] = "UNVERIFIED",
        [KVB_STREAM_STALE] = "STALE",     [KVB_STREAM_DOWN] = "DOWN",
    };
    return (unsigned)state < KVB_STREAM_STATE_COUNT ? names[state] : "UNKNOWN";
}

bool kvb_stream_is_counted(enum kvb_stream_state state, enum kvb_stream_reason reason)
{
    const bool waits_for_engine = state == KVB_STREAM_UNVERIFIED &&
                                  (reason == KVB_REASON_NO_BASE || reason == KVB_REASON_ASLEEP ||
                                   reason == KVB_REASON_CACHING_OFF);

    const bool waits_for_operator =
        state == KVB_STREAM_UNVERIFIED &&
        (reason == KVB_REASON_NO_REMOVALS || reason == KVB_REASON_SPECULATION);

    return state != KVB_STREAM_DOWN && !waits_for_engine && !waits_for_operator;
}

const char *kvb_stream_reason_name(enum kvb_stream_reason reason)
{
    static const char *const names[KVB_REASON_COUNT] = {
        [KVB_REASON_NONE] = "",
        [KVB_REASON_CONNECTING] = "connecting",
        [KVB_REASON_REPLAYING] = "replaying",
        [KVB_REASON_GONE] = "gone",
        [KVB_REASON_HOLE] = "hole",
        [KVB_REASON_POISON] = "poison",
        [KVB_REASON_SKIPPED] = "skipped",
        [KVB_REASON_UNROOTED] = "unrooted",
        [KVB_REASON_NO_REPLAY] = "no_replay",
        [KVB_REASON_REPLAY_FAILED] = "replay_failed",
        [KVB_REASON_UNKNOWN_EVENT] = "unknown_event",
        [KVB_REASON_NO_HEARTBEAT] = "no_heartbeat",
        [KVB_REASON_MISSED_EVENTS] = "missed_events",
        [KVB_REASON_JOINED_LATE] = "joined_late",
        [KVB_REASON_DIFFERS] = "differs",
        [KVB_REASON_SILENT] = "silent",
        [KVB_REASON_ENGINE_AWAY] = "engine_away",
        [KVB_REASON_BRIDGE_STOPPED] = "bridge_stopped",
        [KVB_REASON_NATS_AWAY] = "nats_away",
        [KVB_REASON_MEMORY] = "memory",
        [KVB_REASON_TWO_BRIDGES] = "two_bridges",
        [KVB_REASON_GROUPS] = "groups",
        [KVB_REASON_NO_BASE] = "no_base",
        [KVB_REASON_LAGGING] = "lagging",
        [KVB_REASON_AUDIT] = "audit",
        [KVB_REASON_ASLEEP] = "asleep",
        [KVB_REASON_OCCUPANCY] = "occupancy",
        [KVB_REASON_NO_REMOVALS] = "no_removals",
        [KVB_REASON_SALTS] = "salts",
        [KVB_REASON_AMBIGUOUS] = "ambiguous",
        [KVB_REASON_RESET] = "reset",
        [KVB_REASON_UNANNOUNCED] = "unannounced",
        [KVB_REASON_NO_NUMBER] = "no_number",
        [KVB_REASON_OTHER_TOPIC] = "other_topic",
        [KVB_REASON_CACHING_OFF] = "caching_off",
        [KVB_REASON_NOT_FED] = "not_fed",
        [KVB_REASON_SPECULATION] = "speculation",
    };
    return (unsigned)reason < KVB_REASON_COUNT ? names[reason] : "unknown";
}

const char *kvb_format_name(enum kvb_format format)
{
    static const char *const names[KVB_FORMAT_COUNT] = {
        [KVB_FORMAT_JSON] = "json",
        [KVB_FORMAT_PROTOBUF] = "protobuf",
    };
    return (unsigned)format < KVB_FORMAT_COUNT ? names[format] : "unknown";
}

bool kvb_formats_have(unsigned formats, enum kvb_format format)
{
    return (formats & 1U << format) != 0;
}

const char *kvb_hashes_name(enum kvb_hashes hashes)
{
    static const char *const names[KVB_HASHES_COUNT] = {
        [KVB_HASHES_CANONICAL] = "canonical",
        [KVB_HASHES_ENGINE] = "engine",
    };
    return (unsigned)hashes < KVB_HASHES_COUNT ? names[hashes] : "unknown";
}

const char *kvb_copies_name(enum kvb_copies copies)
{
    static const char *const names[KVB_COPIES_COUNT] = {
        [KVB_COPIES_INTERVAL] = "interval",
        [KVB_COPIES_COUNTED] = "count",
    };
    return (unsigned)copies < KVB_COPIES_COUNT ? names[copies] : "unknown";
}

const char *kvb_offload_removals_name(enum kvb_offload_removals removals)
{
    static const char *const names[KVB_OFFLOAD_COUNT] = {
        [KVB_OFFLOAD_DETECT] = "detect",
        [KVB_OFFLOAD_COMPLETE] = "complete",
        [KVB_OFFLOAD_INCOMPLETE] = "incomplete",
    };
    return (unsigned)removals < KVB_OFFLOAD_COUNT ? names[removals] : "unknown";
}

const char *kvb_reannounce_name(enum kvb_reannounce reannounce)
{
    static const char *const names[KVB_REANNOUNCE_COUNT] = {
        [KVB_REANNOUNCE_AUTO] = "auto",
        [KVB_REANNOUNCE_ON_LOSS] = "on_loss",
        [KVB_REANNOUNCE_NEVER] = "never",
    };
    return (unsigned)reannounce < KVB_REANNOUNCE_COUNT ? names[reannounce] : "unknown";
}
