#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The program of a room.
 *
 *     unit.core                       every suite, each in a process of its own
 *     unit.core ring [ARGUMENT...]    the suite of test_ring.c, in this process
 *     unit.core --list                the names of the suites */

static struct suite *suites; /* sorted by name */

void suite_add(struct suite *suite)
{
    struct suite **place = &suites;
    while (*place && strcmp((*place)->name, suite->name) < 0) {
        place = &(*place)->next;
    }
    suite->next = *place;
    *place = suite;
}

/* Returns whether it passed.  A crash of one suite is not the end of the others. */
static int passes_alone(const struct suite *suite, char *program)
{
    char *argv[] = { program, NULL };
    int end = 0;
    const pid_t child = fork();
    if (child == 0) {
        /* NOLINTNEXTLINE(concurrency-mt-unsafe): a child begins with one thread */
        exit(suite->run(1, argv) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    if (child < 0 || waitpid(child, &end, 0) != child) {
        perror(suite->name);
        return 0;
    }
    return WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const struct suite *suite = suites;
    int failed = 0;

    if (argc == 1) {
        for (; suite; suite = suite->next) {
            if (!passes_alone(suite, argv[0])) {
                fprintf(stderr, "%s %s: failed\n", argv[0], suite->name);
                failed = 1;
            }
        }
        return failed;
    }
    if (strcmp(argv[1], "--list") == 0) {
        for (; suite; suite = suite->next) {
            puts(suite->name);
        }
        return 0;
    }
    while (suite && strcmp(suite->name, argv[1]) != 0) {
        suite = suite->next;
    }
    if (!suite) {
        fprintf(stderr, "%s: no suite %s; --list shows them\n", argv[0], argv[1]);
        return 64;
    }
    return suite->run(argc - 1, argv + 1);
}
