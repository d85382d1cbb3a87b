#include "kvb_test.h"

#include "pods/pod.h"

#include <string.h>

/* Each value is that of Rust's DefaultHasher (std 1.x) for the string, & (2^53 - 1), and was
 * confirmed by a SipHash-1-3 in Python written from the paper. */
static void equals_dynamos_hash_of_the_name(void **state)
{
    static const struct {
        const char *name;
        uint64_t id;
    } rows[] = {
        { "vllm-0", UINT64_C(1943803597606491) },
        { "inference-decode-6d4f9c7b8-x2x9q", UINT64_C(8341743687549080) },
        { "vllm-qwen3-8b-prefill-deployment-7c9f6d5b4d-abcde", UINT64_C(4423737382134676) },
        { "", UINT64_C(121655548788207) },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const kvb_span name = { (const uint8_t *)rows[i].name, strlen(rows[i].name) };
        assert_true(kvb_pod_name_hash(name) == rows[i].id);
    }
}

SUITE(name_hash)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_dynamos_hash_of_the_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
