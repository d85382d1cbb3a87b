#include "daemon/http_access.h"
#include "process.h"

#include "kvb_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { path_bytes = 128, log_bytes = 4096 };

#define OLD "old-token-0123456789"
#define NEW "new-token-0123456789"

/* The access rules of a server with one token, and their log. */
struct scene {
    char folder[64];
    struct kvb_http_security security;
    struct kvb_log log;
    struct kvb_http_access *access;
};

static void write_token(const struct scene *scene, const char *text)
{
    const int fd = open(scene->security.token_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

static void begin_with(struct scene *scene, const char *register_token_file)
{
    struct kvb_detail detail = { .text = "" };
    const char *key = "";

    memset(scene, 0, sizeof *scene);
    assert_ok(folder_make(scene->folder));
    (void)snprintf(
        scene->security.token_file, sizeof scene->security.token_file, "%s/token", scene->folder);
    write_token(scene, OLD);
    scene->log = (struct kvb_log){ .level = KVB_LOG_INFO, .fd = memfd_create("log", MFD_CLOEXEC) };
    assert_true(scene->log.fd >= 0);
    const struct kvb_http_access_options options = { .security = &scene->security,
                                                     .register_token_file = register_token_file,
                                                     .log = &scene->log };
    assert_ok(kvb_http_access_new(&options, &scene->access, &key, &detail));
}

static void end(struct scene *scene)
{
    kvb_http_access_free(scene->access);
    assert_int_equal(close(scene->log.fd), 0);
    folder_remove(scene->folder);
}

static enum kvb_http_verdict
verdict_of(const struct scene *scene, enum kvb_http_rule rule, const char *token)
{
    char shown[path_bytes];

    (void)snprintf(shown, sizeof shown, "Bearer %s", token);
    return kvb_http_access_check(scene->access, rule, shown);
}

/* How often the log contains this text. */
static size_t said(const struct scene *scene, const char *words)
{
    char text[log_bytes];
    const ssize_t len = pread(scene->log.fd, text, sizeof text - 1, 0);
    size_t count = 0;

    assert_true(len >= 0 && len < log_bytes - 1);
    text[len] = '\0';
    for (const char *at = text; (at = strstr(at, words)) != NULL; at += strlen(words)) {
        count++;
    }
    return count;
}

static void why_the_register_token_cannot_be_read_is_logged_once(void **state)
{
    struct scene scene;
    char path[] = "/tmp/kvb-register-XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_int_equal(write(fd, NEW "\n", sizeof NEW), sizeof NEW);
    begin_with(&scene, path);
    assert_int_equal(verdict_of(&scene, KVB_HTTP_OF_REGISTER, NEW), KVB_HTTP_GRANTED);
    assert_int_equal(said(&scene, "register.token_file"), 0);
    assert_int_equal(fchmod(fd, 0644), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            verdict_of(&scene, KVB_HTTP_OF_REGISTER, NEW), KVB_HTTP_REGISTER_UNREADABLE);
    }
    assert_int_equal(said(&scene, "register.token_file cannot be used"), 1);
    assert_int_equal(said(&scene, "chmod o-rw /tmp/kvb-register-"), 1);
    assert_int_equal(unlink(path), 0);
    (void)verdict_of(&scene, KVB_HTTP_OF_REGISTER, NEW);
    assert_int_equal(said(&scene, "cannot read /tmp/kvb-register-"), 1);
    assert_int_equal(rename(scene.security.token_file, path), 0);
    assert_int_equal(verdict_of(&scene, KVB_HTTP_OF_REGISTER, OLD), KVB_HTTP_GRANTED);
    assert_int_equal(said(&scene, "can be used again"), 1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
    end(&scene);
}

SUITE(http_access)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(why_the_register_token_cannot_be_read_is_logged_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
