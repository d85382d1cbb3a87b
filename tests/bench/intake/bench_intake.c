#include "core/own.h"
#include "intake/intake.h"

/* The aggregator's side: events, queries meanwhile, start. */

/* clang-format off */
static const struct intake_row rows[] = {
    { "intake.whole",   intake_whole },
    { "intake.nats",    intake_nats },
    { "query",          intake_queries },
    { "start.ready",    intake_ready },
    { "start.snapshot", intake_snapshot },
};
/* clang-format on */

int main(int argc, char **argv)
{
    return intake_main(
        argc, argv, "What an aggregator does with received messages.", rows, KVB_COUNT_OF(rows));
}
