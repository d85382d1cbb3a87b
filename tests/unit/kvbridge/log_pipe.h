#pragma once

#include "kvb_test.h"

#include "core/log.h"

#include <string.h>
#include <unistd.h>

/* A log that is written into a pipe. */
struct log_pipe {
    struct kvb_log log;
    int read_fd;
};

static inline struct log_pipe log_pipe_open(void)
{
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    return (struct log_pipe){ .log = { .level = KVB_LOG_INFO, .fd = fds[1] }, .read_fd = fds[0] };
}

static inline void log_pipe_close(struct log_pipe *log_pipe)
{
    close(log_pipe->log.fd);
    close(log_pipe->read_fd);
}

/* The number of lines since the last call that contain the words. */
static inline size_t log_lines(struct log_pipe *log_pipe, const char *words)
{
    static char text[1 << 16];
    size_t count = 0;

    /* so that the pipe is not empty and the read does not wait */
    kvb_log_write(&log_pipe->log, KVB_LOG_INFO, "test", "mark", NULL);
    const ssize_t len = read(log_pipe->read_fd, text, sizeof text - 1);
    assert_true(len > 0);
    text[len] = '\0';
    for (const char *at = text; (at = strstr(at, words)); at++) {
        count++;
    }
    return count;
}
