#include "kvb_test.h"

#include "control/control.h"
#include "kvbridge/checkpoint_store.h"
#include "process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kvb_control *control; /* of all tests */

static int start_control(void **state)
{
    (void)state;
    return kvb_control_new(&control) == KVB_OK && kvb_control_start(control) == KVB_OK ? 0 : -1;
}

static int stop_control(void **state)
{
    (void)state;
    kvb_control_free(control);
    return 0;
}

/* Each test has its own directory with a store in it. */
struct scene {
    char directory[64];
    struct kvb_checkpoint_store *store;
    struct kvb_detail detail;
};

static void begin(struct scene *scene)
{
    assert_ok(folder_make(scene->directory));
    assert_ok(kvb_checkpoint_store_open(control, scene->directory, &scene->store, &scene->detail));
}

static void end(struct scene *scene)
{
    kvb_checkpoint_store_close(scene->store);
    folder_remove(scene->directory);
}

static void
push(struct scene *scene, const struct kvb_checkpoint_name *name, const char *text, unsigned parts)
{
    struct kvb_buf *room = kvb_checkpoint_store_wait(scene->store);

    assert_ok(kvb_buf_append_text(room, text));
    kvb_checkpoint_store_push(scene->store, name, parts);
}

static kvb_status outcome(struct scene *scene)
{
    (void)kvb_checkpoint_store_wait(scene->store);
    return kvb_checkpoint_store_take_outcome(scene->store, &scene->detail);
}

static kvb_status
read_back(struct scene *scene, const struct kvb_checkpoint_name *name, char *text, size_t len)
{
    struct kvb_checkpoint_file file = { .fd = -1 };

    KVB_TRY(kvb_checkpoint_file_open(scene->store, name, &file));
    const struct kvb_checkpoint_source source = kvb_checkpoint_file_source(&file);
    const kvb_status status = source.read(source.context, text, len);
    text[len] = '\0';
    kvb_checkpoint_file_close(&file);
    return status;
}

static size_t files_in(const struct scene *scene)
{
    DIR *directory = opendir(scene->directory);
    size_t count = 0;

    assert_non_null(directory);
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread uses this folder */
    for (const struct dirent *entry; (entry = readdir(directory));) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(directory);
    return count;
}

static void parts_become_one_private_file(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name name = kvb_checkpoint_name_of(1, 7, 0);
    char text[16] = "";
    char path[160];
    struct stat about;

    begin(&scene);
    push(&scene, &name, "one ", KVB_CHECKPOINT_FIRST);
    assert_int_equal(read_back(&scene, &name, text, 1), KVB_NOT_FOUND); /* no partial file exists */
    push(&scene, &name, "two ", 0);
    push(&scene, &name, "end", KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    assert_int_equal(outcome(&scene), KVB_AGAIN); /* reported once */
    assert_ok(read_back(&scene, &name, text, 11));
    assert_string_equal(text, "one two end");
    assert_int_equal(read_back(&scene, &name, text, 12), KVB_NOT_FOUND);
    (void)snprintf(path, sizeof path, "%s/%s", scene.directory, name.text);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(files_in(&scene), 1);
    end(&scene);
}

static void the_old_one_stays_until_the_new_one_is_whole(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name name = kvb_checkpoint_name_of(1, 7, 0);
    const struct kvb_checkpoint_name other = kvb_checkpoint_name_of(1, 8, 0);
    char text[16] = "";

    begin(&scene);
    push(&scene, &name, "old", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    push(&scene, &name, "new", KVB_CHECKPOINT_FIRST);
    /* the save was abandoned */
    push(&scene, &other, "x", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    assert_ok(read_back(&scene, &name, text, 3));
    assert_string_equal(text, "old");
    end(&scene);
}

static void a_void_checkpoint_is_not_found(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name name = kvb_checkpoint_name_of(1, 7, 0);
    char text[16] = "";

    begin(&scene);
    kvb_checkpoint_store_void(scene.store, &name); /* there is none, which is no error */
    push(&scene, &name, "old", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    kvb_checkpoint_store_void(scene.store, &name);
    assert_int_equal(read_back(&scene, &name, text, 1), KVB_NOT_FOUND);
    push(&scene, &name, "later", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    assert_ok(read_back(&scene, &name, text, 5));
    assert_int_equal(files_in(&scene), 1);
    end(&scene);
}

static void a_checkpoint_made_void_while_it_is_written_never_appears(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name name = kvb_checkpoint_name_of(1, 7, 0);
    char text[16] = "";

    begin(&scene);
    push(&scene, &name, "old", KVB_CHECKPOINT_FIRST);
    kvb_checkpoint_store_void(scene.store, &name);
    push(&scene, &name, "end", KVB_CHECKPOINT_LAST);
    assert_int_equal(outcome(&scene), KVB_CLOSED);
    assert_int_equal(read_back(&scene, &name, text, 1), KVB_NOT_FOUND);
    assert_int_equal(files_in(&scene), 0);
    end(&scene);
}

/* Only the file that is being written stays, whatever its name begins with. */
static void what_nobody_will_read_is_deleted(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name gone = kvb_checkpoint_name_of(1, 8, 0);
    const struct kvb_checkpoint_name unfinished = kvb_checkpoint_name_of(1, 7, 1);
    const struct kvb_checkpoint_name written = kvb_checkpoint_name_of(1, 7, 10);

    begin(&scene);
    push(&scene, &unfinished, "x", KVB_CHECKPOINT_FIRST);
    push(&scene, &gone, "x", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    push(&scene, &written, "x", KVB_CHECKPOINT_FIRST);
    (void)kvb_checkpoint_store_wait(scene.store);
    assert_int_equal(files_in(&scene), 3);
    kvb_checkpoint_store_void(scene.store, &gone);
    for (int i = 0; i < 5000 && files_in(&scene) > 1; i++) {
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(files_in(&scene), 1);
    push(&scene, &written, "end", KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene));
    end(&scene);
}

static void a_failed_write_is_reported_and_the_next_one_is_tried(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    const struct kvb_checkpoint_name name = kvb_checkpoint_name_of(1, 7, 0);
    char path[160];

    begin(&scene);
    (void)snprintf(path, sizeof path, "%s/%s.new", scene.directory, name.text);
    assert_int_equal(symlink("/dev/full", path), 0); /* nothing is written through a link */
    push(&scene, &name, "x", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_int_equal(outcome(&scene), KVB_IO);
    assert_non_null(strstr(scene.detail.text, "cannot create a checkpoint file"));
    push(&scene, &name, "x", KVB_CHECKPOINT_FIRST | KVB_CHECKPOINT_LAST);
    assert_ok(outcome(&scene)); /* the failed write removed the link */
    end(&scene);
}

static void a_directory_belongs_to_one_process(void **state)
{
    (void)state;
    struct scene scene = { .store = NULL };
    struct kvb_checkpoint_store *other = NULL;

    begin(&scene);
    assert_int_equal(
        kvb_checkpoint_store_open(control, scene.directory, &other, &scene.detail), KVB_AGAIN);
    assert_non_null(strstr(scene.detail.text, "another process uses it"));
    kvb_checkpoint_store_close(scene.store);
    assert_ok(kvb_checkpoint_store_open(control, scene.directory, &scene.store, &scene.detail));
    end(&scene);
}

static void a_directory_that_all_may_write_in_is_reported_and_used(void **state)
{
    struct scene scene;
    (void)state;

    begin(&scene);
    assert_int_equal(chmod(scene.directory, 0777), 0);
    assert_int_equal(
        kvb_checkpoint_directory_check(scene.directory, &scene.detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(scene.detail.text, "chmod o-w"));
    assert_int_equal(chmod(scene.directory, 0770), 0);
    assert_ok(kvb_checkpoint_directory_check(scene.directory, &scene.detail));
    end(&scene);
}

static void a_path_that_is_no_directory_is_a_configuration_error(void **state)
{
    (void)state;
    struct kvb_checkpoint_store *store = NULL;
    struct kvb_detail detail = { .text = "" };

    assert_int_equal(
        kvb_checkpoint_store_open(control, "/nowhere", &store, &detail), KVB_BAD_CONFIG);
    assert_string_equal(
        detail.text,
        "checkpoint: /nowhere: No such file or directory: create the directory, or set "
        "checkpoint = \"\"");
    assert_true(kvb_checkpoint_directory_may_come("/nowhere"));
    assert_true(kvb_checkpoint_directory_may_come("/tmp/nowhere//"));
    assert_false(kvb_checkpoint_directory_may_come("/nowhere/below"));
    assert_false(kvb_checkpoint_directory_may_come("/dev/null"));
    assert_false(kvb_checkpoint_directory_may_come("/dev/null/below"));
    assert_false(kvb_checkpoint_directory_may_come("/tmp"));
    assert_int_equal(kvb_checkpoint_directory_check("/dev/null", &detail), KVB_BAD_CONFIG);
}

SUITE(checkpoint_store)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_become_one_private_file),
        cmocka_unit_test(the_old_one_stays_until_the_new_one_is_whole),
        cmocka_unit_test(a_void_checkpoint_is_not_found),
        cmocka_unit_test(a_checkpoint_made_void_while_it_is_written_never_appears),
        cmocka_unit_test(what_nobody_will_read_is_deleted),
        cmocka_unit_test(a_failed_write_is_reported_and_the_next_one_is_tried),
        cmocka_unit_test(a_directory_belongs_to_one_process),
        cmocka_unit_test(a_directory_that_all_may_write_in_is_reported_and_used),
        cmocka_unit_test(a_path_that_is_no_directory_is_a_configuration_error),
    };
    return cmocka_run_group_tests(tests, start_control, stop_control);
}
