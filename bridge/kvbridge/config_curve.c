#include "core/own.h"
#include "ingest/zmq/curve.h"
#include "kvbridge/config.h"

/* Checks the group `curve` of a worker, of `dns` and of `kubernetes`. */

enum { key_bytes = 64 };

static void forget_curve(struct kvb_curve *curve)
{
    kvb_curve_forget(curve);
}

bool kvb_worker_has_curve(const struct kvb_worker_config *worker)
{
    const struct kvb_curve_config *curve = &worker->curve;

    return curve->server_key_file[0] != '\0' || curve->public_key_file[0] != '\0' ||
           curve->secret_key_file[0] != '\0' || curve->client_keys_file[0] != '\0';
}

kvb_status kvb_worker_read_curve(
    const struct kvb_worker_config *worker, struct kvb_curve *out_curve, struct kvb_detail *detail)
{
    const struct kvb_curve_files files = { .server_key = worker->curve.server_key_file,
                                           .public_key = worker->curve.public_key_file,
                                           .secret_key = worker->curve.secret_key_file,
                                           .client_keys = worker->curve.client_keys_file };

    return kvb_curve_read(&files, out_curve, detail);
}

/* Reports keys that this worker needs but lacks, and keys that it cannot use. */
static size_t
check_presence(struct kvb_conf *conf, const char *group, const struct kvb_worker_config *worker)
{
    const struct kvb_curve_config *curve = &worker->curve;
    const struct {
        const char *key;
        bool is_wrong;
        const char *remedy;
    } rules[] = {
        { "secret_key_file", curve->secret_key_file[0] == '\0',
          "is missing: name the file of this bridge's secret key" },
        { "server_key_file",
          curve->server_key_file[0] == '\0' && (!worker->bind || worker->replay[0] != '\0'),
          "is missing: name the file of the engine's public key" },
        { "client_keys_file", curve->client_keys_file[0] == '\0' && worker->bind,
          "is missing: name a file with the public keys of engines that may connect" },
        { "client_keys_file", curve->client_keys_file[0] != '\0' && !worker->bind,
          "leave it out: nobody connects to this bridge unless bind = true" },
    };
    char key[key_bytes];
    size_t wrong = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(rules); i++) {
        if (rules[i].is_wrong) {
            (void)snprintf(key, sizeof key, "%s.%s", group, rules[i].key);
            kvb_conf_error(conf, key, "%s", rules[i].remedy);
            wrong++;
        }
    }
    return wrong;
}

void kvb_bridge_config_settle_curve(
    struct kvb_conf *conf, const char *group, struct kvb_worker_config *worker)
{
    KVB_OWN(forget_curve) struct kvb_curve curve = { .client_count = 0 };
    struct kvb_detail detail = { .text = "" };

    worker->curve.digest = 0;
    if (!kvb_worker_has_curve(worker)) {
        return;
    }
    if (!kvb_curve_is_available()) {
        kvb_conf_error(
            conf, group,
            "this libzmq does not support CURVE: install one that is built with libsodium");
        return;
    }
    if (check_presence(conf, group, worker) > 0) {
        return;
    }
    if (kvb_worker_read_curve(worker, &curve, &detail) != KVB_OK) {
        kvb_conf_error(conf, group, "%s", detail.text);
        return;
    }
    worker->curve.digest = kvb_curve_digest(&curve);
}
