#include "kvb_test.h"

#include "core/own.h"
#include "model/speculation.h"

static enum kvb_speculation of_arguments(const char *method, const char *model)
{
    return kvb_speculation_of(&(struct kvb_speculative_config){ .method = method, .model = model });
}

static enum kvb_speculation of_engine(const char *method)
{
    return kvb_speculation_of(&(struct kvb_speculative_config){
        .method = method, .model = "", .is_resolved = true, .has_lookahead_option = true });
}

static void methods_that_read_hidden_states_drop_a_block(void **state)
{
    (void)state;
    static const char *const methods[] = { "eagle",        "eagle3",         "mtp",
                                           "deepseek_mtp", "qwen3_next_mtp", "step3p5_mtp" };

    for (size_t i = 0; i < KVB_COUNT_OF(methods); i++) {
        const struct kvb_speculative_config kept = { .method = methods[i],
                                                     .model = "",
                                                     .disables_drop = true };
        assert_int_equal(of_arguments(methods[i], ""), KVB_SPECULATION_DROPS);
        assert_int_equal(of_engine(methods[i]), KVB_SPECULATION_DROPS);
        assert_int_equal(kvb_speculation_of(&kept), KVB_SPECULATION_KEEPS);
    }
}

static void other_methods_drop_none(void **state)
{
    (void)state;
    static const char *const methods[] = { "ngram",        "[ngram]",
                                           "ngram_gpu",    "suffix",
                                           "medusa",       "mlp_speculator",
                                           "custom_class", "extract_hidden_states" };

    for (size_t i = 0; i < KVB_COUNT_OF(methods); i++) {
        assert_int_equal(of_arguments(methods[i], ""), KVB_SPECULATION_KEEPS);
        assert_int_equal(of_engine(methods[i]), KVB_SPECULATION_KEEPS);
    }
    assert_int_equal(of_engine("draft_model"), KVB_SPECULATION_KEEPS);
}

/* What a newer engine may call a method, or an older one may have dropped, is not guessed. */
static void what_depends_on_version_or_name_is_undecided(void **state)
{
    (void)state;
    static const char *const methods[] = {
        "", "eagle4", "mtpx", "EAGLE", "_mt", "dflash", "dspark"
    };

    for (size_t i = 0; i < KVB_COUNT_OF(methods); i++) {
        assert_int_equal(of_arguments(methods[i], ""), KVB_SPECULATION_UNDECIDED);
    }
    assert_int_equal(of_engine("dflash"), KVB_SPECULATION_KEEPS); /* 0.33 */
    assert_int_equal(of_engine("eagle4"), KVB_SPECULATION_UNDECIDED);
    assert_int_equal(
        kvb_speculation_of(&(struct kvb_speculative_config){
            .method = "dspark", .model = "", .disables_drop = true }),
        KVB_SPECULATION_KEEPS);
}

/* Without a method vLLM looks at the drafter's name, then at its config.json. */
static void the_name_of_a_drafter_may_make_the_method(void **state)
{
    (void)state;
    static const struct {
        const char *method, *model;
        enum kvb_speculation found;
    } rows[] = {
        { "", "yuhuili/EAGLE-LLaMA3-Instruct-8B", KVB_SPECULATION_DROPS },
        { "", "AngelSlim/Qwen3-8B_eagle3", KVB_SPECULATION_DROPS },
        { "draft_model", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", KVB_SPECULATION_DROPS },
        { "medusa", "x/eagle-medusa", KVB_SPECULATION_DROPS },
        { "", "z-lab/Qwen3-8B-DFlash", KVB_SPECULATION_UNDECIDED },
        { "", "ngram", KVB_SPECULATION_KEEPS },
        { "", "Qwen/Qwen3-0.6B", KVB_SPECULATION_UNDECIDED },
        { "draft_model", "Qwen/Qwen3-0.6B", KVB_SPECULATION_UNDECIDED },
        { "medusa", "FasterDecoding/medusa-vicuna-7b", KVB_SPECULATION_KEEPS },
        { "suffix", "x/eagle-like", KVB_SPECULATION_KEEPS },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_int_equal(of_arguments(rows[i].method, rows[i].model), rows[i].found);
    }
}

SUITE(speculation)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_that_read_hidden_states_drop_a_block),
        cmocka_unit_test(other_methods_drop_none),
        cmocka_unit_test(what_depends_on_version_or_name_is_undecided),
        cmocka_unit_test(the_name_of_a_drafter_may_make_the_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
