#include "kvb_test.h"

#include "kvbridge/inside.h"

#include <stdlib.h>
#include <string.h>

/* In which order a bridge saves checkpoints and the tokens of republished ranks.  The linker puts
 * these in the place of what makes and writes them (--wrap): each is written at once. */

static struct {
    size_t checkpoints_due;
    size_t tokens_due;
    size_t looks;  /* at a rank: is its checkpoint due? */
    char order[8]; /* C: a checkpoint was begun; T: tokens */
} script;

static void note(char what)
{
    const size_t len = strlen(script.order);

    assert_true(len + 1 < sizeof script.order);
    script.order[len] = what;
}

/* The linker's names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
kvb_status __wrap_kvb_checkpoint_begin(
    struct kvb_checkpoint_maker *maker, struct kvb_checkpoint_policy *policy,
    struct kvb_stream *stream, uint64_t now_ns, uint64_t period_ns);
kvb_status __wrap_kvb_checkpoint_begin(
    struct kvb_checkpoint_maker *maker, struct kvb_checkpoint_policy *policy,
    struct kvb_stream *stream, uint64_t now_ns, uint64_t period_ns)
{
    (void)stream;
    (void)now_ns;
    (void)period_ns;
    script.looks++;
    if (script.checkpoints_due == 0) {
        return KVB_NOT_FOUND;
    }
    script.checkpoints_due--;
    maker->policy = policy;
    maker->stage = KVB_CHECKPOINT_STORING;
    note('C');
    return KVB_OK;
}

void __wrap_kvb_bridge_want_tokens(struct bridge_rank *rank);
void __wrap_kvb_bridge_want_tokens(struct bridge_rank *rank)
{
    (void)rank;
    script.tokens_due++;
}

bool __wrap_kvb_bridge_begin_tokens(struct kvb_bridge *bridge);
bool __wrap_kvb_bridge_begin_tokens(struct kvb_bridge *bridge)
{
    if (script.tokens_due == 0) {
        return false;
    }
    script.tokens_due--;
    bridge->checkpoints.tokens.stage = BRIDGE_TOKENS_STORING;
    note('T');
    return true;
}

kvb_status __wrap_kvb_checkpoint_store_take_outcome(
    struct kvb_checkpoint_store *store, struct kvb_detail *out_detail);
kvb_status __wrap_kvb_checkpoint_store_take_outcome(
    struct kvb_checkpoint_store *store, struct kvb_detail *out_detail)
{
    (void)store;
    (void)out_detail;
    return KVB_OK;
}

struct kvb_buf *__wrap_kvb_checkpoint_store_wait(struct kvb_checkpoint_store *store);
struct kvb_buf *__wrap_kvb_checkpoint_store_wait(struct kvb_checkpoint_store *store)
{
    (void)store;
    return NULL;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* A bridge of one rank, with so many checkpoints to save, each with tokens. */
struct world {
    struct kvb_bridge *bridge;
    struct kvb_bridge_config config;
    struct bridge_rank rank;
    struct bridge_rank *ranks[1];
};

static void begin(struct world *world, size_t checkpoints)
{
    static char store; /* none of its functions is called */
    struct kvb_bridge *bridge = calloc(1, sizeof *bridge);

    assert_non_null(bridge);
    *world = (struct world){ .bridge = bridge };
    world->ranks[0] = &world->rank;
    bridge->config = &world->config;
    bridge->membership.ranks = world->ranks;
    bridge->membership.rank_count = 1;
    bridge->checkpoints.store = (struct kvb_checkpoint_store *)&store;
    bridge->checkpoints.is_due = true;
    bridge->shown.metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                  .values = bridge->shown.values,
                                                  .count = kvb_bridge_metric_count };
    memset(&script, 0, sizeof script);
    script.checkpoints_due = checkpoints;
}

static void end(struct world *world)
{
    free(world->bridge);
}

static void tokens_follow_their_checkpoint_at_once(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 3);
    for (int i = 0; i < 8; i++) {
        kvb_bridge_save(world.bridge);
    }
    assert_string_equal(script.order, "CTCTCT");
    end(&world);
}

/* Those of one large rank might take the time of the checkpoints of all others. */
static void at_the_stop_tokens_follow_all_checkpoints(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 3);
    kvb_bridge_save_all(world.bridge);
    assert_string_equal(script.order, "CCCTTT");
    end(&world);
}

/* A look at a rank at rest costs cache misses: there is none before a checkpoint may be due. */
static void no_rank_is_looked_at_before_one_is_due(void **state)
{
    struct world world;

    (void)state;
    begin(&world, 0);
    world.bridge->checkpoints.is_due = false;
    kvb_bridge_save(world.bridge);
    assert_int_equal(script.looks, 0);
    world.bridge->checkpoints.is_due = true;
    kvb_bridge_save(world.bridge);
    kvb_bridge_save(world.bridge); /* none was due */
    assert_int_equal(script.looks, 1);
    end(&world);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_follow_their_checkpoint_at_once),
        cmocka_unit_test(at_the_stop_tokens_follow_all_checkpoints),
        cmocka_unit_test(no_rank_is_looked_at_before_one_is_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
