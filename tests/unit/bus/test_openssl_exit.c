#include "kvb_test.h"

#include "bus/bus.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { processes = 40 };

static atomic_uint uses;

static void *use_openssl(void *nothing)
{
    (void)nothing;
    for (;;) {
        EVP_MD *digest = EVP_MD_fetch(NULL, "SHA256", NULL);
        EVP_MD_free(digest);
        atomic_fetch_add(&uses, 1);
    }
    return NULL;
}

/* Never returns: a process whose thread is busy with OpenSSL while main() ends. */
static void run_and_exit(void)
{
    pthread_t thread;

    kvb_openssl_keep_at_exit();
    if (pthread_create(&thread, NULL, use_openssl, NULL) != 0) {
        _exit(EXIT_FAILURE);
    }
    while (atomic_load(&uses) < 100) {
    }
    exit(EXIT_SUCCESS); /* NOLINT(concurrency-mt-unsafe): this is what the test is about */
}

static void threads_may_use_openssl_until_the_process_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < processes; i++) {
        int end = 0;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            run_and_exit();
        }
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_true(WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
    }
}

SUITE(openssl_exit)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_may_use_openssl_until_the_process_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
