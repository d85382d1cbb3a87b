#include "kvb_test.h"

#include "fail_alloc.h"
#include "ingest/zmq/curve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { path_bytes = 128, key_text_bytes = 41 };

/* A folder with key files. */
struct folder {
    char path[path_bytes];
    char public_key[key_text_bytes];
    char secret_key[key_text_bytes];
    char other_key[key_text_bytes];
};

static const char *file_in(const struct folder *folder, const char *name)
{
    static char paths[8][2 * path_bytes];
    static size_t next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
    return path;
}

static const char *write_bytes(
    const struct folder *folder, const char *name, const char *bytes, size_t len, mode_t mode)
{
    const char *path = file_in(folder, name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static const char *
write_file(const struct folder *folder, const char *name, const char *text, mode_t mode)
{
    return write_bytes(folder, name, text, strlen(text), mode);
}

static void begin(struct folder *folder)
{
    char unused[key_text_bytes];

    (void)snprintf(folder->path, sizeof folder->path, "/tmp/kvb-curve-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
    assert_int_equal(zmq_curve_keypair(folder->public_key, folder->secret_key), 0);
    assert_int_equal(zmq_curve_keypair(folder->other_key, unused), 0);
}

static void end(const struct folder *folder)
{
    static const char *const names[] = { "secret", "public", "server", "clients" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unlink(file_in(folder, names[i]));
    }
    assert_int_equal(rmdir(folder->path), 0);
}

static void reads_keys_and_computes_the_public_one(void **state)
{
    struct folder folder;
    struct kvb_curve curve;
    struct kvb_detail detail = { .text = "" };
    char text[key_text_bytes];
    (void)state;

    begin(&folder);
    const struct kvb_curve_files files = {
        .server_key = write_file(&folder, "server", folder.other_key, 0644),
        .public_key = "",
        .secret_key = write_file(&folder, "secret", folder.secret_key, 0600),
        .client_keys = "",
    };
    assert_true(kvb_curve_is_available());
    assert_ok(kvb_curve_read(&files, &curve, &detail));
    assert_string_equal(zmq_z85_encode(text, curve.public_key, 32), folder.public_key);
    assert_string_equal(zmq_z85_encode(text, curve.secret_key, 32), folder.secret_key);
    assert_string_equal(zmq_z85_encode(text, curve.server_key, 32), folder.other_key);
    kvb_curve_forget(&curve);
    assert_int_equal(curve.secret_key[0] | curve.secret_key[31], 0);
    end(&folder);
}

static void the_digest_changes_with_each_key(void **state)
{
    struct kvb_curve curve = { .client_count = 1 };
    (void)state;

    const uint64_t before = kvb_curve_digest(&curve);
    curve.server_key[31] ^= 1;
    const uint64_t other_server = kvb_curve_digest(&curve);
    assert_true(other_server != before);
    curve.secret_key[0] ^= 1;
    const uint64_t other_secret = kvb_curve_digest(&curve);
    assert_true(other_secret != other_server);
    curve.client_keys[0][5] ^= 1;
    assert_true(kvb_curve_digest(&curve) != other_secret);
}

static void allows_the_listed_keys_alone(void **state)
{
    struct folder folder;
    struct kvb_curve curve;
    struct kvb_detail detail = { .text = "" };
    char list[4 * key_text_bytes];
    uint8_t key[32];
    (void)state;

    begin(&folder);
    (void)snprintf(list, sizeof list, "%s\r\n\n%s\n", folder.other_key, folder.public_key);
    const struct kvb_curve_files files = {
        .server_key = "",
        .public_key = write_file(&folder, "public", folder.public_key, 0644),
        .secret_key = write_file(&folder, "secret", folder.secret_key, 0600),
        .client_keys = write_file(&folder, "clients", list, 0644),
    };
    assert_ok(kvb_curve_read(&files, &curve, &detail));
    assert_int_equal(curve.client_count, 2);
    assert_non_null(zmq_z85_decode(key, folder.other_key));
    assert_true(kvb_curve_allows(&curve, key, sizeof key));
    assert_false(kvb_curve_allows(&curve, key, sizeof key - 1));
    key[31] ^= 1;
    assert_false(kvb_curve_allows(&curve, key, sizeof key));
    end(&folder);
}

static void clients_stay_while_none_is_removed_and_our_key_is_the_same(void **state)
{
    struct kvb_curve before = { .client_count = 2, .client_keys = { { 1 }, { 2 } } };
    const struct kvb_curve more = { .client_count = 3, .client_keys = { { 3 }, { 2 }, { 1 } } };
    const struct kvb_curve other = { .client_count = 3, .client_keys = { { 3 }, { 2 }, { 4 } } };
    (void)state;

    assert_true(kvb_curve_keeps_clients(&before, &before));
    assert_true(kvb_curve_keeps_clients(&before, &more));
    assert_false(kvb_curve_keeps_clients(&more, &before));
    assert_false(kvb_curve_keeps_clients(&before, &other));
    before.secret_key[31] = 1;
    assert_false(kvb_curve_keeps_clients(&before, &more));
}

static void a_copy_is_whole_and_of_none_is_none(void **state)
{
    const struct kvb_curve curve = { .client_count = 1, .client_keys = { { 7 } } };
    struct kvb_curve *copy = NULL;
    (void)state;

    fail_alloc_after(0);
    assert_int_equal(kvb_curve_copy(&curve, &copy), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_ok(kvb_curve_copy(&curve, &copy));
    assert_memory_equal(copy, &curve, sizeof curve);
    kvb_curve_free(copy);
    assert_ok(kvb_curve_copy(NULL, &copy));
    assert_null(copy);
    kvb_curve_free(copy);
}

/* A file's content, and the error text that it must give. */
static void refused(
    const struct folder *folder, const char *secret, mode_t mode, const char *public,
    const char *clients, const char *says)
{
    struct kvb_curve curve;
    struct kvb_detail detail = { .text = "" };
    const struct kvb_curve_files files = {
        .server_key = "",
        .public_key = public ? write_file(folder, "public", public, 0644) : "",
        .secret_key = write_file(folder, "secret", secret, mode),
        .client_keys = clients ? write_file(folder, "clients", clients, 0644) : "",
    };

    memset(&curve, 0xff, sizeof curve);
    assert_int_equal(kvb_curve_read(&files, &curve, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, says));
    assert_non_null(strstr(detail.text, folder->path));
    assert_null(strstr(detail.text, folder->secret_key));
    assert_int_equal(curve.secret_key[0] | curve.secret_key[31], 0);
}

static void refuses_files_that_have_no_key(void **state)
{
    struct folder folder;
    char many[(kvb_curve_max_clients + 1) * key_text_bytes + 1] = "";
    (void)state;

    begin(&folder);
    for (size_t i = 0; i <= kvb_curve_max_clients; i++) {
        (void)snprintf(many + i * key_text_bytes, key_text_bytes + 1, "%s\n", folder.other_key);
    }
    refused(&folder, "too short\n", 0600, NULL, NULL, "40 characters of Z85");
    refused(
        &folder, "\"\"\"\"\"\"\"\"\"\"''''''''''\"\"\"\"\"\"\"\"\"\"''''''''''", 0600, NULL, NULL,
        "40 characters of Z85");
    refused(&folder, folder.secret_key, 0644, NULL, NULL, "chmod o-rw");
    refused(&folder, folder.secret_key, 0600, folder.other_key, NULL, "of the secret key");
    refused(&folder, folder.secret_key, 0600, NULL, "x\n", "40 characters of Z85");
    refused(&folder, folder.secret_key, 0600, NULL, many, "more than 64 keys");
    refused(&folder, folder.secret_key, 0600, NULL, "\n\r\n", "has no CURVE key");
    refused(&folder, folder.secret_key, 0600, NULL, " \t\n\n", "has no CURVE key");
    (void)snprintf(many, sizeof many, " %s\n%s\n", folder.public_key, folder.other_key);
    refused(&folder, folder.secret_key, 0600, NULL, many, "40 characters of Z85");
    end(&folder);
}

static void text_after_a_nul_byte_is_not_ignored(void **state)
{
    struct folder folder;
    struct kvb_curve curve;
    struct kvb_detail detail = { .text = "" };
    char bytes[2 * key_text_bytes];
    (void)state;

    begin(&folder);
    const int len = snprintf(bytes, sizeof bytes, "%s\n%s", folder.other_key, folder.public_key);
    bytes[key_text_bytes - 1] = '\0';
    for (size_t i = 0; i < 2; i++) {
        const char *clients = write_bytes(&folder, "clients", bytes, (size_t)len, 0644);
        const char *secret = write_file(&folder, "secret", folder.secret_key, 0600);
        const struct kvb_curve_files files = { .server_key = i == 0 ? clients : "",
                                               .public_key = "",
                                               .secret_key = secret,
                                               .client_keys = i == 1 ? clients : "" };
        assert_int_equal(kvb_curve_read(&files, &curve, &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "clients contains a NUL byte"));
    }
    end(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_keys_and_computes_the_public_one),
        cmocka_unit_test(the_digest_changes_with_each_key),
        cmocka_unit_test(allows_the_listed_keys_alone),
        cmocka_unit_test(clients_stay_while_none_is_removed_and_our_key_is_the_same),
        cmocka_unit_test(a_copy_is_whole_and_of_none_is_none),
        cmocka_unit_test(refuses_files_that_have_no_key),
        cmocka_unit_test(text_after_a_nul_byte_is_not_ignored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
