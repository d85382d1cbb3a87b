#include "bus/proof.h"

#include "kvb_test.h"

#include <string.h>

/* RFC 4231, test case 2. */
static const char secret[] = "Jefe";
static const char message[] = "what do ya want for nothing?";
static const char proof[] = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";

static void computes_the_mac_of_rfc_4231(void **state)
{
    char out[kvb_proof_bytes];

    (void)state;
    assert_ok(kvb_proof_make(secret, kvb_span_of(message), out));
    assert_string_equal(out, proof);
}

static void only_the_right_proof_is_accepted(void **state)
{
    char other[kvb_proof_bytes];

    (void)state;
    memcpy(other, proof, sizeof other);
    other[63] = '4';
    assert_true(kvb_proof_is_right(secret, kvb_span_of(message), proof));
    assert_false(kvb_proof_is_right(secret, kvb_span_of(message), other));
    assert_false(kvb_proof_is_right(secret, kvb_span_of(message), ""));
    assert_false(kvb_proof_is_right("jefe", kvb_span_of(message), proof));
    assert_false(kvb_proof_is_right(secret, kvb_span_of("what do ya want?"), proof));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes_the_mac_of_rfc_4231),
        cmocka_unit_test(only_the_right_proof_is_accepted),
    };

    return cmocka_run_group_tests_name("bus/proof", tests, NULL, NULL);
}
