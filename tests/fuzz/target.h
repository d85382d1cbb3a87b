#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* What every target begins with.  Linked with replay_main.c it feeds the saved corpus, with
 * -DKVB_FUZZ=ON libFuzzer calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property of the target.  Where it does not hold, the input is a finding. */
static inline void check(bool holds)
{
    if (!holds) {
        abort();
    }
}
