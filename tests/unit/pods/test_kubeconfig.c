#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "pods/kubeconfig.h"

#include <stdio.h>
#include <string.h>

/* As `kubectl config view` prints it, with a second context beside the current one. */
static const char plain[] = "apiVersion: v1\n"
                            "kind: Config\n"
                            "current-context: ours\n"
                            "clusters:\n"
                            "- name: other\n"
                            "  cluster: {server: 'https://10.0.0.9:6443'}\n"
                            "- name: prod\n"
                            "  cluster:\n"
                            "    certificate-authority-data: LS0tLS1CRUdJTg==\n"
                            "    server: https://10.0.0.1:6443\n"
                            "contexts:\n"
                            "- name: other\n"
                            "  context: {cluster: other, user: robot}\n"
                            "- context:\n"
                            "    cluster: prod\n"
                            "    namespace: inference\n"
                            "    user: robot\n"
                            "  name: ours\n"
                            "users:\n"
                            "- name: robot\n"
                            "  user:\n"
                            "    client-certificate: certs/robot.crt\n"
                            "    client-key-data: S0VZ\n"
                            "    token: abc.def\n";

static kvb_status decode(const char *text, struct kvb_kubeconfig *out, struct kvb_detail *why)
{
    return kvb_kubeconfig_decode((kvb_span){ (const uint8_t *)text, strlen(text) }, out, why);
}

static void reads_what_the_current_context_names(void **state)
{
    KVB_OWN(kvb_kubeconfig_done) struct kvb_kubeconfig config = { .server = "" };

    (void)state;
    assert_int_equal(decode(plain, &config, NULL), KVB_OK);
    assert_string_equal(config.server, "https://10.0.0.1:6443");
    assert_string_equal(config.name_space, "inference");
    assert_string_equal(config.token, "abc.def");
    assert_string_equal(config.authority.text, "-----BEGIN");
    assert_string_equal(config.authority.path, "");
    assert_null(config.certificate.text);
    assert_string_equal(config.certificate.path, "certs/robot.crt");
    assert_string_equal(config.key.text, "KEY");
    assert_string_equal(config.token_path, "");
}

/* The sample, with the first `from` replaced. */
static const char *changed(const char *from, const char *to)
{
    static char text[2 * sizeof plain];
    const char *at = strstr(plain, from);

    assert_non_null(at);
    const int len =
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - plain), plain, to, at + strlen(from));
    assert_true(len > 0 && (size_t)len < sizeof text);
    return text;
}

static void unusable_entries_are_named(void **state)
{
    static const struct {
        const char *from;
        const char *to;
        const char *why;
    } rows[] = {
        { "current-context: ours", "current-context: mine", "context, as current-context says" },
        { "current-context: ours\n", "", "context, as current-context says" },
        { "    cluster: prod", "    cluster: dev", "no cluster named \"dev\"" },
        { "    user: robot\n  name", "    user: human\n  name", "no user named \"human\"" },
        { "    server: https://10.0.0.1:6443\n", "", "server: the cluster has none" },
        { "    token: abc.def", "    exec: {command: aws}", "exec: no program is run" },
        { "    token: abc.def", "    auth-provider: {name: gcp}", "auth-provider: " },
        { "    token: abc.def", "    username: me", "username: passwords" },
        { "    token: abc.def", "    token: [a]", "token: expected a text" },
        { "    server: h", "    proxy-url: http://p\n    server: h", "proxy-url: " },
        { "    server: h", "    tls-server-name: x\n    server: h", "tls-server-name: " },
        { "    server: h", "    insecure-skip-tls-verify: true\n    server: h",
          "give certificate-auth" },
        { "S0VZ", "S0V", "client-key-data: expected base64" },
        { "S0VZ", "'****'", "client-key-data: expected base64" },
        { "S0VZ", "MIIBAAJBAKg=", "client-key-data: expected base64 of a PEM" }, /* it is DER */
        { "kind: Config", "kind: [", "line " },
        { "kind: Config", "kind: *nobody", "line " },
        { "clusters:\n", "clusters: none\nx:\n", "no cluster named" },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_kubeconfig config = { .server = "as before" };
        struct kvb_detail why = { .text = "" };
        assert_int_equal(decode(changed(rows[i].from, rows[i].to), &config, &why), KVB_BAD_CONFIG);
        if (!strstr(why.text, rows[i].why)) {
            fail_msg("\"%s\" instead of \"%s\"", why.text, rows[i].why);
        }
        assert_string_equal(config.server, "as before");
    }
}

static void other_files_are_refused(void **state)
{
    static const char *const texts[] = { "", "# nothing", "- a", "just text", "\t", "\x01" };
    static char large[kvb_kubeconfig_bytes + 2];
    struct kvb_kubeconfig config;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        assert_int_equal(decode(texts[i], &config, NULL), KVB_BAD_CONFIG);
    }
    memset(large, ' ', sizeof large - 1);
    assert_int_equal(decode(large, &config, NULL), KVB_BAD_CONFIG);
}

/* Each reference is looked up once and not followed further, so neither stack nor time is
 * exhausted. */
static void references_in_a_circle_end(void **state)
{
    struct kvb_kubeconfig config;
    struct kvb_detail why = { .text = "" };

    (void)state;
    assert_int_equal(
        decode("&a {current-context: c, contexts: [*a], clusters: *a, users: *a}", &config, &why),
        KVB_BAD_CONFIG);
}

static void survives_every_failed_allocation(void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long allocations = 0; status != KVB_OK; allocations++) {
        struct kvb_kubeconfig config = { .server = "" };
        assert_true(allocations < 100);
        fail_alloc_after(allocations);
        status = decode(plain, &config, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_kubeconfig_done(&config);
    }
}

SUITE(kubeconfig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_the_current_context_names),
        cmocka_unit_test(unusable_entries_are_named),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(references_in_a_circle_end),
        cmocka_unit_test(survives_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
