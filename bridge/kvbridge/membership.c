#include "kvbridge/membership.h"
#include "core/clock.h"
#include "core/own.h"
#include "kvbridge/commands.h"
#include "kvbridge/discovery.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/ingest.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/loads.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"

#include <stdlib.h>
#include <unistd.h>

/* Adds and removes ranks and load sources while the bridge runs.
 *
 *     main, watch, discover   --replace--+              ingest thread
 *     HTTP threads  --register, forget---+--> ring --> one command after another:
 *            ^                                  decide, then one rank a step:
 *            +---- done, with the result -------- close removed ranks, open added ones
 *
 * Only the requesting thread waits for a command: a turn of the ingest thread spends at most
 * work_ns on it.  A refused command changes nothing.  Each rank belongs to one list
 * (kvbridge/bridge.h); replacing one list leaves the others alone.
 *
 * While an HTTP thread reads the metrics of ranks, no rank is added or removed.  Only after half a
 * second does the ingest thread wait for such a reader. */

static const uint64_t work_ns = 2 * KVB_NS_PER_MS;

enum { max_waiting = 64 };

/* ---- Opening, closing ---- */

/* What is wrong with the address of one worker, such as a port that another process has, keeps no
 * other worker away. */
static kvb_status pass_over(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, kvb_status status,
    const struct kvb_detail *why)
{
    if (status != KVB_BAD_CONFIG && status != KVB_IO) {
        return status;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_ERROR, "bridge",
        "a rank cannot be opened: it is left out until the configuration is read again (SIGHUP)",
        "why", why->text, "worker", KVB_LOG_U64(settings->id), "dp_rank",
        KVB_LOG_U64(settings->first_rank), NULL);
    return KVB_OK;
}

static kvb_status open_listed(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    KVB_OWN(kvb_members_done) struct kvb_members members = { 0 };

    KVB_TRY(kvb_members_of(
        bridge->config->workers, bridge->config->worker_count, &bridge->config->publish.labels,
        &members));
    for (size_t i = 0; i < members.rank_count; i++) {
        const kvb_status status =
            kvb_bridge_open_rank(bridge, &members.ranks[i], KVB_BRIDGE_OF_FILE, detail);
        KVB_TRY(pass_over(bridge, &members.ranks[i], status, detail));
    }
    for (size_t i = 0; i < members.load_count; i++) {
        const kvb_status status =
            kvb_bridge_open_load(bridge, &members.loads[i], KVB_BRIDGE_OF_FILE, detail);
        KVB_TRY(pass_over(bridge, &members.loads[i], status, detail));
    }
    atomic_store(&bridge->shown->stream_count, bridge->membership->rank_count);
    kvb_bridge_list_stats(bridge);
    return KVB_OK;
}

static kvb_status take_pods(
    void *context, const struct kvb_worker_config *workers, size_t count,
    enum kvb_bridge_taken *out_taken, struct kvb_membership_result *out_answer)
{
    return kvb_bridge_take_list(
        context, KVB_BRIDGE_OF_KUBERNETES, workers, count, out_taken, out_answer);
}

static kvb_status make_kubernetes(struct kvb_bridge *bridge)
{
    const struct kvb_kubernetes_options options = { .config = &bridge->config->kubernetes,
                                                    .defaults = &bridge->config->defaults,
                                                    .log = bridge->log,
                                                    .resolver = bridge->ingest->resolver,
                                                    .metrics = &bridge->shown->metrics,
                                                    .take = take_pods,
                                                    .context = bridge };

    return options.config->is_on ? kvb_kubernetes_new(&options, &bridge->membership->kubernetes)
                                 : KVB_OK;
}

kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail)
{
    bridge->membership->work = calloc(1, sizeof *bridge->membership->work);
    if (!bridge->membership->work) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_ring_new(max_waiting, NULL, &bridge->membership->work->commands));
    KVB_TRY(make_kubernetes(bridge));
    return open_listed(bridge, detail);
}

void kvb_bridge_close_membership(struct bridge_membership *membership)
{
    if (membership->work) {
        kvb_ring_free(membership->work->commands);
        free(membership->work->ranks_come);
        free(membership->work->loads_come);
        free(membership->work->are_draining);
        free(membership->work);
    }
}

/* ---- Ending ---- */

static void stay(struct bridge_membership *membership)
{
    for (size_t i = 0; i < membership->rank_count; i++) {
        membership->ranks[i]->is_leaving = false;
    }
    for (size_t i = 0; i < membership->load_count; i++) {
        membership->loads[i]->is_leaving = false;
    }
}

/* Clears single fields, because other threads read `commands` meanwhile. */
static void forget_command(struct membership_work *members)
{
    free(members->ranks_come);
    free(members->loads_come);
    free(members->are_draining);
    members->command = NULL;
    members->ranks_come = NULL;
    members->loads_come = NULL;
    members->are_draining = NULL;
    members->next_rank = 0;
    members->next_load = 0;
    members->give_up_ns = 0;
    members->waits_ns = 0;
}

static void end(struct kvb_bridge *bridge, kvb_status status)
{
    struct bridge_command *command = bridge->membership->work->command;

    stay(bridge->membership); /* unmarks ranks that a refused command wanted to remove */
    forget_command(bridge->membership->work);
    if (command->wish.kind != KVB_BRIDGE_LOOK_UP) { /* /state shows the current ranks */
        kvb_bridge_publish_status(bridge, kvb_clock_monotonic_ns());
    }
    (void)pthread_mutex_lock(&command->lock);
    command->status = status;
    command->is_done = true;
    (void)pthread_cond_signal(&command->changed);
    (void)pthread_mutex_unlock(&command->lock);
}

/* ---- On the ingest thread ---- */

/* Takes the next command unless one is under way.  False: there is none. */
static bool has_command(struct kvb_bridge *bridge)
{
    struct membership_work *members = bridge->membership->work;
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

bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns)
{
    enum member_step step = member_step_again;

    while (step == member_step_again && kvb_clock_monotonic_ns() < now_ns + work_ns) {
        if (!has_command(bridge)) {
            return kvb_ring_count(bridge->membership->work->commands) > 0;
        }
        step = kvb_bridge_take_step(bridge, now_ns);
        if (step == member_step_done) {
            end(bridge, bridge->membership->work->command->answer.failed > 0 ? KVB_IO : KVB_OK);
            step = member_step_again;
        }
    }
    return step == member_step_again;
}

/* ---- Requests, on other threads ---- */

static void wait_for_command(struct bridge_command *command)
{
    (void)pthread_mutex_lock(&command->lock);
    while (!command->is_done) {
        (void)pthread_cond_wait(&command->changed, &command->lock);
    }
    (void)pthread_mutex_unlock(&command->lock);
}

static kvb_status refuse_command(struct bridge_command *command, kvb_status status, const char *why)
{
    kvb_detail_set(&command->answer.why, "%s", why);
    return status;
}

static kvb_status pass_command(struct kvb_bridge *bridge, struct bridge_command *command)
{
    const uint64_t one = 1;

    if (!atomic_load(&bridge->is_running)) {
        return refuse_command(command, KVB_AGAIN, "the bridge is starting");
    }
    if (kvb_ring_put(bridge->membership->work->commands, command) != KVB_OK) {
        return refuse_command(command, KVB_AGAIN, "too many requests are waiting: try again later");
    }
    (void)!write(bridge->wake_fd, &one, sizeof one); /* on failure the thread wakes within 20 ms */
    wait_for_command(command);
    return command->status;
}

kvb_status kvb_bridge_request_membership(
    struct kvb_bridge *bridge, const struct kvb_membership_request *wish,
    const struct kvb_worker_config *workers, size_t worker_count,
    struct kvb_membership_result *out_answer)
{
    KVB_OWN(kvb_members_done) struct kvb_members wanted = { 0 };
    struct bridge_command command = { .wish = *wish };

    KVB_TRY(kvb_members_of(workers, worker_count, &bridge->config->publish.labels, &wanted));
    command.wanted = wish->kind >= KVB_BRIDGE_UPDATE ? NULL : &wanted;
    for (size_t i = 0; wish->out_taken && i < worker_count; i++) {
        wish->out_taken[i] = KVB_BRIDGE_TAKEN;
    }
    (void)pthread_mutex_init(
        &command.lock, NULL); /* cannot fail without attributes; the next neither */
    (void)pthread_cond_init(&command.changed, NULL);
    const kvb_status status = pass_command(bridge, &command);
    (void)pthread_cond_destroy(&command.changed);
    (void)pthread_mutex_destroy(&command.lock);
    *out_answer = command.answer;
    return status;
}

kvb_status kvb_bridge_take_list(
    struct kvb_bridge *bridge, uint32_t origin, const struct kvb_worker_config *workers,
    size_t count, enum kvb_bridge_taken *out_taken, struct kvb_membership_result *out_answer)
{
    bool is_removed[kvb_max_workers] = { false };
    struct kvb_membership_request wish = { .kind = KVB_BRIDGE_REPLACE,
                                           .origin = origin,
                                           .gone_origins = is_removed };

    wish.out_taken = out_taken;
    KVB_TRY(
        kvb_discovery_foresee(bridge->membership->discovery, origin, workers, count, is_removed));
    const kvb_status status =
        kvb_bridge_request_membership(bridge, &wish, workers, count, out_answer);
    if (status != KVB_OK && status != KVB_IO) {
        return status;
    }
    KVB_TRY(kvb_discovery_set(bridge->membership->discovery, origin, workers, count));
    return status;
}

/* ---- Answers of engines, on the discovery thread ---- */

static kvb_status take_discovered(
    void *context, uint32_t origin, const struct kvb_worker_config *workers, size_t count,
    struct kvb_detail *why)
{
    const struct kvb_membership_request wish = { .kind = KVB_BRIDGE_REPLACE, .origin = origin };
    struct kvb_membership_result answer = { 0 };
    const kvb_status status =
        kvb_bridge_request_membership(context, &wish, workers, count, &answer);

    *why = answer.why;
    return status;
}

static kvb_status
update_discovered(void *context, uint32_t origin, const struct kvb_worker_facts *facts)
{
    const struct kvb_membership_request wish = { .kind = KVB_BRIDGE_UPDATE,
                                                 .origin = origin,
                                                 .facts = facts };
    struct kvb_membership_result answer = { 0 };

    return kvb_bridge_request_membership(context, &wish, NULL, 0, &answer);
}

/* ---- Members of a DNS name, on its thread ---- */

static kvb_status take_dns_list(
    void *context, const struct kvb_worker_config *workers, size_t count, bool *out_is_settled,
    struct kvb_detail *why)
{
    enum kvb_bridge_taken *taken = calloc(count + 1, sizeof *taken);
    struct kvb_membership_result answer = { 0 };

    if (!taken) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status =
        kvb_bridge_take_list(context, KVB_BRIDGE_OF_DNS, workers, count, taken, &answer);
    free(taken);
    *out_is_settled = status == KVB_OK && answer.left_out == 0;
    *why = answer.why;
    return status;
}

static kvb_status open_dns_list(struct kvb_bridge *bridge)
{
    const struct kvb_dns_list_options options = {
        .config = &bridge->config->dns,
        .defaults = &bridge->config->defaults,
        .log = bridge->log,
        .take = take_dns_list,
        .context = bridge,
    };

    return kvb_dns_list_is_configured(options.config)
               ? kvb_dns_list_start(&options, &bridge->membership->dns_list)
               : KVB_OK;
}

kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge)
{
    const struct kvb_discovery_options options = { .log = bridge->log,
                                                   .resolver = bridge->ingest->resolver,
                                                   .take = take_discovered,
                                                   .update = update_discovered,
                                                   .context = bridge,
                                                   .lists = KVB_BRIDGE_OF_DISCOVERED,
                                                   .first_origin = KVB_BRIDGE_OF_DISCOVERED };

    KVB_TRY(kvb_discovery_start(&options, &bridge->membership->discovery));
    KVB_TRY(kvb_discovery_set(
        bridge->membership->discovery, KVB_BRIDGE_OF_FILE, bridge->config->workers,
        bridge->config->worker_count));
    KVB_TRY(open_dns_list(bridge));
    return bridge->membership->kubernetes ? kvb_kubernetes_start(bridge->membership->kubernetes)
                                          : KVB_OK;
}
