#include "daemon/bridge_members.h"
#include "core/clock.h"
#include "core/own.h"

#include <stdlib.h>
#include <unistd.h>

/* Ranks and load sources come and go while the bridge runs.
 *
 *     main thread, at SIGHUP  --replace--+              ingest thread
 *     HTTP threads  --register, forget---+--> ring --> one command after the other:
 *            ^                                  decide, then a rank a step:
 *            +---- done, with what came of it ---- close what goes, open what comes
 *
 * Whoever asks waits; the engines do not: a turn spends work_ns on it.  A command that is
 * refused has changed nothing.  Each rank stands in one list: that of the file, or of those
 * that registered; a new list of one leaves the other alone.
 *
 * HTTP threads read the values of ranks: while one does, no rank comes or goes; the engines
 * wait for it only when it takes half a second. */

static const uint64_t work_ns = 2 * KVB_NS_PER_MS;

enum { most_waiting = 64 };

/* ---- Opening, closing ---- */

static kvb_status open_listed(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    KVB_OWN(kvb_members_done) struct kvb_members members = { 0 };

    KVB_TRY(kvb_members_of(bridge->config->workers, bridge->config->worker_count, &members));
    for (size_t i = 0; i < members.rank_count; i++) {
        KVB_TRY(kvb_bridge_open_rank(bridge, &members.ranks[i], KVB_BRIDGE_OF_FILE, detail));
    }
    for (size_t i = 0; i < members.load_count; i++) {
        KVB_TRY(kvb_bridge_open_load(bridge, &members.loads[i], KVB_BRIDGE_OF_FILE, detail));
    }
    atomic_store(&bridge->stream_count, bridge->rank_count);
    kvb_bridge_list_figures(bridge);
    return KVB_OK;
}

kvb_status kvb_bridge_open_members(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    bridge->members = calloc(1, sizeof *bridge->members);
    if (!bridge->members) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_ring_new(most_waiting, NULL, &bridge->members->commands));
    return open_listed(bridge, detail);
}

void kvb_bridge_close_members(struct kvb_bridge *bridge)
{
    if (bridge->members) {
        kvb_ring_free(bridge->members->commands);
        free(bridge->members->ranks_come);
        free(bridge->members->loads_come);
        free(bridge->members);
    }
}

/* ---- Ending ---- */

static void stay(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        bridge->ranks[i]->is_leaving = false;
    }
    for (size_t i = 0; i < bridge->load_count; i++) {
        bridge->loads[i]->is_leaving = false;
    }
}

/* Field by field: whoever asks meanwhile reads `commands`. */
static void forget_command(struct bridge_members *members)
{
    free(members->ranks_come);
    free(members->loads_come);
    members->command = NULL;
    members->ranks_come = NULL;
    members->loads_come = NULL;
    members->next_rank = 0;
    members->next_load = 0;
    members->give_up_ns = 0;
    members->waits_ns = 0;
}

static void end(struct kvb_bridge *bridge, kvb_status status)
{
    struct bridge_command *command = bridge->members->command;

    stay(bridge); /* who was to leave, and was refused to */
    forget_command(bridge->members);
    kvb_bridge_publish_status(bridge, kvb_clock_monotonic_ns()); /* /state shows who is there */
    (void)pthread_mutex_lock(&command->lock);
    command->status = status;
    command->is_done = true;
    (void)pthread_cond_signal(&command->changed);
    (void)pthread_mutex_unlock(&command->lock);
}

/* ---- On the ingest thread ---- */

/* The next command, unless one is under way; false: there is none. */
static bool has_command(struct kvb_bridge *bridge)
{
    struct bridge_members *members = bridge->members;
    void *item = NULL;

    if (members->command) {
        return true;
    }
    if (kvb_ring_take(members->commands, &item) != KVB_OK) {
        return false;
    }
    members->command = item;
    const kvb_status status = kvb_bridge_decide(bridge, members->command);
    if (status != KVB_OK) {
        end(bridge, status);
    }
    return members->command;
}

bool kvb_bridge_work_members(struct kvb_bridge *bridge, uint64_t now_ns)
{
    enum member_step step = member_step_again;

    while (step == member_step_again && kvb_clock_monotonic_ns() < now_ns + work_ns) {
        if (!has_command(bridge)) {
            return kvb_ring_count(bridge->members->commands) > 0;
        }
        step = kvb_bridge_take_step(bridge, now_ns);
        if (step == member_step_done) {
            end(bridge, bridge->members->command->answer.failed > 0 ? KVB_IO : KVB_OK);
            step = member_step_again;
        }
    }
    return step == member_step_again;
}

void kvb_bridge_look_again(struct kvb_bridge *bridge, uint32_t origin)
{
    if (origin >= KVB_BRIDGE_OF_DISCOVERED) {
        kvb_discovery_look_again(bridge->discovery, origin);
    }
}

/* ---- Asking, on other threads ---- */

static void wait_for(struct bridge_command *command)
{
    (void)pthread_mutex_lock(&command->lock);
    while (!command->is_done) {
        (void)pthread_cond_wait(&command->changed, &command->lock);
    }
    (void)pthread_mutex_unlock(&command->lock);
}

static kvb_status refuse(struct bridge_command *command, kvb_status status, const char *why)
{
    kvb_detail_set(&command->answer.why, "%s", why);
    return status;
}

static kvb_status ask(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const uint64_t one = 1;

    if (!atomic_load(&bridge->is_running)) {
        return refuse(command, KVB_AGAIN, "the bridge is starting");
    }
    if (kvb_ring_put(bridge->members->commands, command) != KVB_OK) {
        return refuse(command, KVB_AGAIN, "too many wait: try again later");
    }
    (void)!write(bridge->wake_fd, &one, sizeof one); /* else: it wakes in 20 ms */
    wait_for(command);
    return command->status;
}

kvb_status kvb_bridge_ask(
    struct kvb_bridge *bridge, const struct kvb_bridge_asking *asking,
    const struct kvb_worker_config *workers, size_t worker_count,
    struct kvb_bridge_answer_to_asking *out_answer)
{
    KVB_OWN(kvb_members_done) struct kvb_members wanted = { 0 };
    struct bridge_command command = { .asking = *asking };

    KVB_TRY(kvb_members_of(workers, worker_count, &wanted));
    command.wanted = asking->kind == KVB_BRIDGE_FORGET ? NULL : &wanted;
    (void)pthread_mutex_init(&command.lock, NULL); /* neither fails without attributes */
    (void)pthread_cond_init(&command.changed, NULL);
    const kvb_status status = ask(bridge, &command);
    (void)pthread_cond_destroy(&command.changed);
    (void)pthread_mutex_destroy(&command.lock);
    *out_answer = command.answer;
    return status;
}

kvb_status kvb_bridge_take_file(
    struct kvb_bridge *bridge, const struct kvb_bridge_config *config,
    struct kvb_bridge_answer_to_asking *out_answer)
{
    bool goes[kvb_max_workers] = { false };
    const struct kvb_bridge_asking asking = { .kind = KVB_BRIDGE_REPLACE,
                                              .origin = KVB_BRIDGE_OF_FILE,
                                              .gone_origins = goes };

    kvb_discovery_foresee(bridge->discovery, config->workers, config->worker_count, goes);
    const kvb_status status =
        kvb_bridge_ask(bridge, &asking, config->workers, config->worker_count, out_answer);
    if (status != KVB_OK && status != KVB_IO) {
        return status;
    }
    KVB_TRY(kvb_discovery_set(bridge->discovery, config->workers, config->worker_count));
    return status;
}

/* ---- What engines tell, on the thread of the discovery ---- */

static kvb_status take_discovered(
    void *context, uint32_t origin, const struct kvb_worker_config *workers, size_t count,
    struct kvb_detail *why)
{
    const struct kvb_bridge_asking asking = { .kind = KVB_BRIDGE_REPLACE, .origin = origin };
    struct kvb_bridge_answer_to_asking answer = { 0 };
    const kvb_status status = kvb_bridge_ask(context, &asking, workers, count, &answer);

    *why = answer.why;
    return status;
}

kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge)
{
    const struct kvb_discovery_options options = { .log = bridge->log,
                                                   .take = take_discovered,
                                                   .context = bridge,
                                                   .first_origin = KVB_BRIDGE_OF_DISCOVERED };

    KVB_TRY(kvb_discovery_start(&options, &bridge->discovery));
    return kvb_discovery_set(
        bridge->discovery, bridge->config->workers, bridge->config->worker_count);
}
