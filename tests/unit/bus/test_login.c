#include "bus/bus.h"
#include "core/own.h"

#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/kvb-login-XXXXXX"; /* a file of a secret */

static int make_secret(void **state)
{
    const int fd = mkstemp(path);

    (void)state;
    return fd < 0 || write(fd, "secret\n", 7) != 7 || close(fd) != 0;
}

static int remove_secret(void **state)
{
    (void)state;
    return unlink(path);
}

static void
assert_refused(const struct kvb_bus_login *login, const char *url, const char *key, const char *why)
{
    struct kvb_detail detail = { 0 };
    const char *named = NULL;

    assert_int_equal(kvb_bus_login_check(login, url, &named, &detail), KVB_BAD_CONFIG);
    assert_string_equal(named, key);
    assert_non_null(strstr(detail.text, why));
}

static void set(char *field)
{
    memcpy(field, path, sizeof path);
}

static void accepts_no_login_and_one_of_each_kind(void **state)
{
    struct kvb_bus_login login = { 0 };
    const char *key = NULL;
    char *const fields[] = { login.token_file, login.credentials, login.nkey_seed_file };

    (void)state;
    assert_ok(kvb_bus_login_check(&login, "nats://u:p@h", &key, NULL));
    for (size_t i = 0; i < KVB_COUNT_OF(fields); i++) {
        set(fields[i]);
        assert_ok(kvb_bus_login_check(&login, "nats://h", &key, NULL));
        fields[i][0] = '\0';
    }
    memcpy(login.user, "u", 2);
    set(login.password_file);
    assert_ok(kvb_bus_login_check(&login, "nats://h", &key, NULL));
}

static void refuses_two_logins_and_names_both(void **state)
{
    struct kvb_bus_login login = { .user = "u" };
    struct {
        const char *key;
        char *field;
    } others[] = { { "token_file", login.token_file },
                   { "credentials", login.credentials },
                   { "nkey_seed_file", login.nkey_seed_file } };

    (void)state;
    set(login.password_file);
    assert_refused(&login, "nats://u:p@h", "user", "nats.url");
    assert_refused(&login, "nats://h,nats://t@h", "user", "nats.url");
    for (size_t i = 0; i < KVB_COUNT_OF(others); i++) {
        set(others[i].field);
        assert_refused(&login, "nats://h", others[i].key, "nats.user");
        others[i].field[0] = '\0';
    }
}

static void refuses_half_of_a_pair(void **state)
{
    struct kvb_bus_login login = { .user = "u" };

    (void)state;
    assert_refused(&login, "nats://h", "user", "nats.password_file");
    login = (struct kvb_bus_login){ 0 };
    set(login.password_file);
    assert_refused(&login, "nats://h", "password_file", "nats.user");
    login = (struct kvb_bus_login){ 0 };
    set(login.cert_file);
    assert_refused(&login, "nats://h", "cert_file", "nats.key_file");
    login = (struct kvb_bus_login){ 0 };
    set(login.key_file);
    assert_refused(&login, "nats://h", "key_file", "nats.cert_file");
}

static void refuses_a_user_that_would_end_the_line(void **state)
{
    struct kvb_bus_login login = { .user = "u\nPUB a 1" };

    (void)state;
    set(login.password_file);
    assert_refused(&login, "nats://h", "user", "control character");
}

static void refuses_an_inbox_prefix_that_cannot_begin_a_subject(void **state)
{
    struct kvb_bus_login login = { .inbox_prefix = "a b" };

    (void)state;
    assert_refused(&login, "nats://h", "inbox_prefix", "subject");
}

static void refuses_a_secret_that_all_may_read_but_not_a_certificate(void **state)
{
    struct kvb_bus_login login = { 0 };
    const char *key = NULL;

    (void)state;
    assert_int_equal(chmod(path, 0644), 0);
    set(login.ca_file);
    set(login.cert_file);
    set(login.key_file);
    assert_refused(&login, "nats://h", "key_file", "chmod o-rw");
    assert_int_equal(chmod(path, 0640), 0);
    assert_ok(kvb_bus_login_check(&login, "nats://h", &key, NULL));
    set(login.token_file);
    const char *files[kvb_max_login_files];
    assert_int_equal(kvb_bus_login_files(&login, files), 4);
    assert_string_equal(files[0], path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_no_login_and_one_of_each_kind),
        cmocka_unit_test(refuses_two_logins_and_names_both),
        cmocka_unit_test(refuses_half_of_a_pair),
        cmocka_unit_test(refuses_a_user_that_would_end_the_line),
        cmocka_unit_test(refuses_an_inbox_prefix_that_cannot_begin_a_subject),
        cmocka_unit_test(refuses_a_secret_that_all_may_read_but_not_a_certificate),
    };

    return cmocka_run_group_tests(tests, make_secret, remove_secret);
}
