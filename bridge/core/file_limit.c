#include "core/file_limit.h"

#include <sys/resource.h>

uint64_t kvb_file_limit_raise(uint64_t files)
{
    struct rlimit limit = { 0 };

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return UINT64_MAX; /* cannot happen; if it did, a later open() would fail */
    }
    if (limit.rlim_cur < files) {
        /* Only up to the hard limit, which needs no rights. */
        const struct rlimit raised = { .rlim_cur = limit.rlim_max < files ? limit.rlim_max : files,
                                       .rlim_max = limit.rlim_max };
        limit.rlim_cur = setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
    }
    return limit.rlim_cur;
}
