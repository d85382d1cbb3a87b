#include "bus/nkey.h"
#include "core/own.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

/* Computed by the Python package nkeys 0.2.1 from seeds of zeros, of the bytes 0 to 31, and of
 * 0xff. */
static const struct {
    const char *seed;
    const char *public_key;
} vectors[] = {
    { "SUAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEQ",
      "UA5WUJ54Z23KILLCUOUNAKTPBVZWKMQVO4O6EQ5GHLAERIMLLHNCTYM5" },
    { "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y",
      "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK" },
    { "SUAP777777777777777777777777777777777777777777777777775UUA",
      "UB3KCWJAISTOJ5IREZN4U45GATMQWBJJ2HPWAK7DBIM2SJLWMDI7LRYD" },
};

static void derives_the_public_key_of_a_seed(void **state)
{
    char key[kvb_nkey_public_chars + 1];
    char padded[80];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(vectors); i++) {
        assert_ok(kvb_nkey_public_of_seed(vectors[i].seed, key, NULL));
        assert_string_equal(key, vectors[i].public_key);
        (void)snprintf(padded, sizeof padded, " %s\r\n", vectors[i].seed);
        assert_ok(kvb_nkey_public_of_seed(padded, key, NULL));
        assert_string_equal(key, vectors[i].public_key);
    }
}

/* Each changed character of a seed breaks its checksum, its prefix, or both. */
static void refuses_a_seed_with_any_other_character(void **state)
{
    char key[kvb_nkey_public_chars + 1] = "as before";
    char seed[kvb_nkey_seed_chars + 1];

    (void)state;
    for (size_t i = 0; i < kvb_nkey_seed_chars; i++) {
        memcpy(seed, vectors[1].seed, sizeof seed);
        seed[i] = seed[i] == 'B' ? 'Z' : 'B';
        assert_int_equal(kvb_nkey_public_of_seed(seed, key, NULL), KVB_BAD_INPUT);
        assert_string_equal(key, "as before");
    }
}

static void says_why_a_seed_is_refused_and_does_not_repeat_it(void **state)
{
    static const struct {
        const char *seed;
        const char *why;
    } cases[] = {
        { "", "58 characters" },
        { "SUAAAA", "58 characters" },
        { "suaaaaicamcakbqhbaequcymbuha6earcijrifiwc4mbsgq3dqor4h776y", "58 characters" },
        { "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776YA", "58 characters" },
        { "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H77AA", "checksum" },
        { "SAAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4HYMHI", "SU" },
    };
    char key[kvb_nkey_public_chars + 1];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_detail why = { 0 };
        assert_int_equal(kvb_nkey_public_of_seed(cases[i].seed, key, &why), KVB_BAD_INPUT);
        assert_non_null(strstr(why.text, cases[i].why));
        assert_null(strstr(why.text, "AICAM"));
    }
}

SUITE(nkey)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derives_the_public_key_of_a_seed),
        cmocka_unit_test(refuses_a_seed_with_any_other_character),
        cmocka_unit_test(says_why_a_seed_is_refused_and_does_not_repeat_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
