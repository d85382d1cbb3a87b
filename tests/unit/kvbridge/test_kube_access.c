#include "kvb_test.h"

#include "core/own.h"
#include "kvbridge/kube_access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/kvb-kube-XXXXXX";
static struct kvb_kubernetes_config config;

static const char kubeconfig[] =
    "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
    " clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443/'}}],"
    " users: [{name: u, user: {tokenFile: token}}]}";

static void write_to(const char *name, const char *text)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) {
        return -1;
    }
    config.is_on = true;
    (void)snprintf(config.kubeconfig, sizeof config.kubeconfig, "%s/config", folder);
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const names[] = { "config", "token", "" };
    char path[64];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path); /* the last entry is the folder itself */
    }
    return 0;
}

static void credentials_that_cannot_be_read_again_stay(void **state)
{
    KVB_OWN(kvb_kube_access_close) struct kvb_kube_access access = { .config = NULL };
    struct kvb_detail why = { .text = "" };
    char name[kvb_pod_namespace_bytes + 1];

    (void)state;
    write_to("config", kubeconfig);
    write_to("token", "one\n");
    assert_ok(kvb_kube_access_open(&access, &config, &why));
    assert_ok(kvb_kube_access_renew(&access, &why));
    assert_string_equal(access.base, "https://127.0.0.1:6443");
    assert_string_equal(access.token, "one");
    assert_ok(kvb_kube_access_namespace(&access, name, &why));
    assert_string_equal(name, "default");
    write_to("token", "");
    assert_int_equal(kvb_kube_access_renew(&access, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "is empty"));
    assert_string_equal(access.token, "one");
    write_to("config", "no kubeconfig");
    write_to("token", "two\n");
    assert_int_equal(kvb_kube_access_renew(&access, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "/config: it has no context"));
    assert_string_equal(access.token, "two");
    assert_string_equal(access.base, "https://127.0.0.1:6443");
}

static void a_token_does_not_go_to_another_server(void **state)
{
    static const char elsewhere[] =
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'https://127.0.0.2:6443/'}}],"
        " users: [{name: u, user: {%s}}]}";
    KVB_OWN(kvb_kube_access_close) struct kvb_kube_access access = { .config = NULL };
    struct kvb_detail why = { .text = "" };
    char text[512];

    (void)state;
    write_to("config", kubeconfig);
    write_to("token", "one\n");
    assert_ok(kvb_kube_access_open(&access, &config, &why));
    assert_ok(kvb_kube_access_renew(&access, &why));
    assert_string_equal(access.token, "one");
    write_to("token", "");
    (void)snprintf(text, sizeof text, elsewhere, "tokenFile: token");
    write_to("config", text);
    assert_int_equal(kvb_kube_access_renew(&access, &why), KVB_BAD_CONFIG);
    assert_string_equal(access.base, "https://127.0.0.2:6443");
    assert_string_equal(access.token, "");
    (void)snprintf(text, sizeof text, elsewhere, "token: two");
    write_to("config", text);
    assert_ok(kvb_kube_access_renew(&access, &why));
    assert_string_equal(access.token, "two");
    (void)snprintf(text, sizeof text, elsewhere, "username: ''");
    write_to("config", text);
    assert_ok(kvb_kube_access_renew(&access, &why));
    assert_string_equal(access.token, "");
}

static void check_warns_about_the_token_and_the_server(void **state)
{
    static const char format[] =
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: '%s://127.0.0.1:6443/'}}],"
        " users: [{name: u, user: {%s}}]}";
    static const struct {
        const char *scheme;
        const char *user;
        const char *token; /* content of the token file */
        const char *of_token;
        const char *of_server;
    } rows[] = {
        { "https", "tokenFile: token", "one\n", "", "" },
        { "https", "tokenFile: token", "", "is empty", "" },
        { "https", "tokenFile: gone", "", "cannot read", "" },
        { "https", "token: one", "", "", "" },
        { "http", "tokenFile: token", "one\n", "", "http:// in clear" },
        { "http", "token: one", "", "", "http:// in clear" },
        { "http", "username: ''", "", "", "" },
    };
    char text[512];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_kube_doubts doubts = { .token = { .text = "" } };
        (void)snprintf(text, sizeof text, format, rows[i].scheme, rows[i].user);
        write_to("config", text);
        write_to("token", rows[i].token);
        assert_ok(kvb_kube_access_check(config.kubeconfig, &doubts, NULL));
        assert_int_equal(doubts.token.text[0] != '\0', rows[i].of_token[0] != '\0');
        assert_non_null(strstr(doubts.token.text, rows[i].of_token));
        assert_int_equal(doubts.server.text[0] != '\0', rows[i].of_server[0] != '\0');
        assert_non_null(strstr(doubts.server.text, rows[i].of_server));
    }
}

static void an_encrypted_key_is_refused_without_a_prompt(void **state)
{
    static const char format[] =
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443/'}}],"
        " users: [{name: u, user: {%s}}]}";
    static const char *const keys[] = {
        "client-key: token", /* the file written below */
        "client-key-data: LS0tLS1CRUdJTiBFTkNSWVBURUQgUFJJVkFURSBLRVktLS0tLQo=",
    };
    struct kvb_detail why = { .text = "" };
    char text[512];

    (void)state;
    write_to("token", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n");
    for (size_t i = 0; i < KVB_COUNT_OF(keys); i++) {
        struct kvb_kube_doubts doubts = { .token = { .text = "" } };
        (void)snprintf(text, sizeof text, format, keys[i]);
        write_to("config", text);
        assert_int_equal(kvb_kube_access_check(config.kubeconfig, &doubts, &why), KVB_BAD_CONFIG);
        assert_non_null(strstr(why.text, "client-key is encrypted"));
    }
}

SUITE(kube_access)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credentials_that_cannot_be_read_again_stay),
        cmocka_unit_test(a_token_does_not_go_to_another_server),
        cmocka_unit_test(check_warns_about_the_token_and_the_server),
        cmocka_unit_test(an_encrypted_key_is_refused_without_a_prompt),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
