#include "cmd/manual.h"
#include "core/own.h"

#include <string.h>

/* What the manual pages say beside options, commands and keys. */

#define CONFIGURATION_IS_READ "The configuration that is read without --config."
#define AND_ONCE "  It is read once: a change is taken by a restart."
#define ENDS "Ends it: what is under way is finished first."
#define SIGHUP_IS_IGNORED "Ignored: nothing is read again."
#define READS_AGAIN                                                                                \
    "Reads the configuration again: ranks of workers that are new are opened, those that are "     \
    "gone are told to routers as gone and closed, those that changed do both; the others do not "  \
    "notice.  Another key that changed is named in the log: it takes a restart.  A file with a "   \
    "mistake changes nothing, and the log says all of them."
#define REGISTERS                                                                                  \
    "One rank of a worker more, or less, with the body of Dynamo's indexer or of Mooncake's "      \
    "conductor, and Authorization: Bearer with the token of register.token_file.  It is read "     \
    "until it unregisters or the bridge ends; SIGHUP leaves it alone."
#define IS_TOLD                                                                                    \
    "A service manager that listens there is told by the messages of sd_notify(3) when the "       \
    "daemon is ready, how many streams it has and how many of them are EXACT, and that it stops."
#define IS_WATCHED                                                                                 \
    "A manager that sets it is told every half of this time that the working thread still turns; " \
    "one that hangs falls silent."

/* clang-format off */
static const struct kvb_manual_row bridge_rows[] = {
    { "FILES", "/etc/kvbridge/kvbridge.cfg", CONFIGURATION_IS_READ "  SIGHUP reads its workers again." },
    { "SIGNALS", "SIGTERM, SIGINT", ENDS "  Routers are told that its streams are gone." },
    { "SIGNALS", "SIGHUP", READS_AGAIN },
    { "HTTP", "GET /livez, /readyz, /metrics, /state", "For orchestrators, Prometheus and people." },
    { "HTTP", "POST /register, /unregister", REGISTERS },
    { "ENVIRONMENT", "NOTIFY_SOCKET", IS_TOLD },
    { "ENVIRONMENT", "WATCHDOG_USEC", IS_WATCHED },
    { "SEE ALSO", NULL, "kvbridge.cfg(5), kvaggregator(8), kvctl(1), kvfleet(1)" },
};
static const struct kvb_manual_row aggregator_rows[] = {
    { "FILES", "/etc/kvbridge/kvaggregator.cfg", CONFIGURATION_IS_READ AND_ONCE },
    { "SIGNALS", "SIGTERM, SIGINT", ENDS },
    { "SIGNALS", "SIGHUP", SIGHUP_IS_IGNORED },
    { "ENVIRONMENT", "NOTIFY_SOCKET", IS_TOLD },
    { "ENVIRONMENT", "WATCHDOG_USEC", IS_WATCHED },
    { "SEE ALSO", NULL, "kvaggregator.cfg(5), kvbridge(8), kvctl(1), kvfleet(1)" },
};
static const struct kvb_manual_row ctl_rows[] = {
    { "FILES", NULL, "None: all it needs stands on its command line." },
    { "SIGNALS", NULL, "A signal ends it, as any program." },
    { "SEE ALSO", NULL, "kvaggregator(8), kvbridge(8), kvfleet(1)" },
};
static const struct kvb_manual_row fleet_rows[] = {
    { "FILES", NULL, "Those that its options name; the truth socket is removed at the end." },
    { "SIGNALS", "SIGTERM, SIGINT", "End it with status 0." },
    { "SEE ALSO", NULL, "kvbridge(8), kvbridge.cfg(5), kvctl(1)" },
};

#define SYNTAX                                                                                     \
    "The syntax is that of libconfig: group = { key = value; };  A key below stands as "           \
    "group.key; list[].key is a key of each group of list = ( { ... }, { ... } );  Texts stand "   \
    "in double quotes, comments after # or //.  A number above 2147483647 needs the suffix L "     \
    "or quotes."
#define STRICT                                                                                     \
    "A key that is left out has the default that stands with it.  One that nobody knows, or "      \
    "whose value is out of its range, is a mistake: --check of the daemon says all of them, each " \
    "with its line, and the daemon ends with status 78."

static const struct kvb_manual_row bridge_cfg_rows[] = {
    { "DESCRIPTION", NULL, "What kvbridge(8) reads when it starts, and its workers again at SIGHUP." },
    { "DESCRIPTION", NULL, SYNTAX },
    { "DESCRIPTION", NULL, STRICT },
    { "FILES", "/etc/kvbridge/kvbridge.cfg", "As installed: every key with its default, and two examples of workers." },
    { "SEE ALSO", NULL, "kvbridge(8), kvaggregator.cfg(5)" },
};
static const struct kvb_manual_row aggregator_cfg_rows[] = {
    { "DESCRIPTION", NULL, "What kvaggregator(8) reads when it starts." },
    { "DESCRIPTION", NULL, SYNTAX },
    { "DESCRIPTION", NULL, STRICT },
    { "FILES", "/etc/kvbridge/kvaggregator.cfg", "As installed: every key with its default." },
    { "SEE ALSO", NULL, "kvaggregator(8), kvbridge.cfg(5)" },
};

#define ROWS(rows) rows, KVB_COUNT_OF(rows)
static const struct kvb_manual manuals[] = {
    { "kvbridge", 8, "tells NATS what inference engines say of their KV caches", ROWS(bridge_rows) },
    { "kvaggregator", 8, "answers routers who holds how much of a prompt", ROWS(aggregator_rows) },
    { "kvctl", 1, "asks kvaggregator, and watches what kvbridge publishes", ROWS(ctl_rows) },
    { "kvfleet", 1, "simulates inference engines, for tests and demonstrations", ROWS(fleet_rows) },
    { "kvbridge.cfg", 5, "configuration of kvbridge", ROWS(bridge_cfg_rows) },
    { "kvaggregator.cfg", 5, "configuration of kvaggregator", ROWS(aggregator_cfg_rows) },
};
/* clang-format on */

const struct kvb_manual *kvb_manual_find(const char *name)
{
    for (size_t i = 0; i < KVB_COUNT_OF(manuals); i++) {
        if (strcmp(manuals[i].name, name) == 0) {
            return &manuals[i];
        }
    }
    return NULL;
}
