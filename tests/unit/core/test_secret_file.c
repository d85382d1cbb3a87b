#include "kvb_test.h"

#include "core/own.h"
#include "core/secret_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/kvb-secret-XXXXXX";

static int make_file(void **state)
{
    const int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(path); /* one test has removed it already */
    return 0;
}

static void write_file(const char *text, mode_t mode)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void assert_refused(const char *why)
{
    struct kvb_detail detail = { .text = "" };
    char out[16] = "as before";

    assert_int_equal(
        kvb_secret_file_read(path, KVB_FILE_PRIVATE, out, sizeof out, NULL, &detail),
        KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, why));
    assert_non_null(strstr(detail.text, path));
}

static void a_file_is_read_whole_or_by_its_first_line(void **state)
{
    char out[16];
    size_t len = 0;

    (void)state;
    write_file("one\r\ntwo\n", 0640);
    assert_int_equal(
        kvb_secret_file_read(path, KVB_FILE_PRIVATE, out, sizeof out, &len, NULL), KVB_OK);
    assert_string_equal(out, "one\r\ntwo\n");
    assert_int_equal(len, 9);
    assert_int_equal(
        kvb_secret_file_read_line(path, KVB_FILE_PRIVATE, out, sizeof out, NULL), KVB_OK);
    assert_string_equal(out, "one");
    assert_int_equal(out[5], 0); /* the second line has been wiped */
    assert_int_equal(kvb_secret_file_check(path, KVB_FILE_PRIVATE, NULL), KVB_OK);
}

static void the_longest_file_leaves_room_for_the_nul(void **state)
{
    char out[16];

    (void)state;
    write_file("fifteen bytes..", 0600);
    assert_int_equal(
        kvb_secret_file_read(path, KVB_FILE_PRIVATE, out, sizeof out, NULL, NULL), KVB_OK);
    write_file("sixteen bytes...", 0600);
    assert_refused("too long: at most 15 bytes");
}

static void a_file_that_others_may_read_or_write_is_refused(void **state)
{
    char out[16];

    (void)state;
    write_file("one\n", 0644);
    assert_refused("chmod o-rw");
    assert_int_equal(kvb_secret_file_check(path, KVB_FILE_PRIVATE, NULL), KVB_BAD_CONFIG);
    assert_int_equal(
        kvb_secret_file_read_line(path, KVB_FILE_OF_ANYONE, out, sizeof out, NULL), KVB_OK);
    write_file("one\n", 0602);
    assert_refused("chmod o-rw");
}

static void an_empty_file_or_line_is_refused(void **state)
{
    struct kvb_detail detail = { .text = "" };
    char out[16];

    (void)state;
    write_file("", 0600);
    assert_refused("is empty");
    write_file("\nsecond\n", 0600);
    assert_int_equal(
        kvb_secret_file_read_line(path, KVB_FILE_PRIVATE, out, sizeof out, &detail),
        KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "first line"));
}

/* Opening a pipe would otherwise wait for a writer. */
static void only_a_regular_file_is_read(void **state)
{
    (void)state;
    assert_int_equal(unlink(path), 0);
    assert_refused("No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused("no regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused("no regular file");
    assert_int_equal(rmdir(path), 0);
}

SUITE(secret_file)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_whole_or_by_its_first_line),
        cmocka_unit_test(the_longest_file_leaves_room_for_the_nul),
        cmocka_unit_test(a_file_that_others_may_read_or_write_is_refused),
        cmocka_unit_test(an_empty_file_or_line_is_refused),
        cmocka_unit_test(only_a_regular_file_is_read),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
