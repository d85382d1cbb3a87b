#include "core/own.h"
#include "ingest/zmq/curve.h"
#include "kvbridge/config.h"

/* Checks the groups `curve` of a worker, of its `republish`, of `dns` and of `kubernetes`. */

enum { key_bytes = 64 };

bool kvb_curve_config_is_set(const struct kvb_curve_config *curve)
{
    return curve->server_key_file[0] != '\0' || curve->public_key_file[0] != '\0' ||
           curve->secret_key_file[0] != '\0' || curve->client_keys_file[0] != '\0';
}

bool kvb_worker_has_curve(const struct kvb_worker_config *worker)
{
    return kvb_curve_config_is_set(&worker->curve);
}

kvb_status kvb_curve_config_read(
    const struct kvb_curve_config *config, struct kvb_curve *out_curve, struct kvb_detail *detail)
{
    const struct kvb_curve_files files = { .server_key = config->server_key_file,
                                           .public_key = config->public_key_file,
                                           .secret_key = config->secret_key_file,
                                           .client_keys = config->client_keys_file };

    return kvb_curve_read(&files, out_curve, detail);
}

struct presence_rule {
    const char *key;
    bool is_wrong;
    const char *remedy;
};

static size_t report_presence(
    struct kvb_conf *conf, const char *group, const struct presence_rule *rules, size_t count)
{
    char key[key_bytes];
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        if (rules[i].is_wrong) {
            (void)snprintf(key, sizeof key, "%s.%s", group, rules[i].key);
            kvb_conf_error(conf, key, "%s", rules[i].remedy);
            wrong++;
        }
    }
    return wrong;
}

static const char no_secret_key[] = "is missing: name the file of this bridge's secret key";

/* Reports keys that this worker needs but lacks, and keys that it cannot use. */
static size_t
check_presence(struct kvb_conf *conf, const char *group, const struct kvb_worker_config *worker)
{
    const struct kvb_curve_config *curve = &worker->curve;
    const struct presence_rule rules[] = {
        { "secret_key_file", curve->secret_key_file[0] == '\0', no_secret_key },
        { "server_key_file",
          curve->server_key_file[0] == '\0' && (!worker->bind || worker->replay[0] != '\0'),
          "is missing: name the file of the engine's public key" },
        { "client_keys_file", curve->client_keys_file[0] == '\0' && worker->bind,
          "is missing: name a file with the public keys of engines that may connect" },
        { "client_keys_file", curve->client_keys_file[0] != '\0' && !worker->bind,
          "leave it out: nobody connects to this bridge unless bind = true" },
    };

    return report_presence(conf, group, rules, KVB_COUNT_OF(rules));
}

/* False: the keys cannot be used, which is reported. */
static bool read_key_group(
    struct kvb_conf *conf, const char *group, const struct kvb_curve_config *config,
    struct kvb_curve *out_curve)
{
    struct kvb_detail detail = { .text = "" };
    const bool is_read = kvb_curve_config_read(config, out_curve, &detail) == KVB_OK;

    if (!is_read) {
        kvb_conf_error(conf, group, "%s", detail.text);
    }
    return is_read;
}

/* True: the group is to be checked further. */
static bool
has_key_group(struct kvb_conf *conf, const char *group, const struct kvb_curve_config *curve)
{
    if (!kvb_curve_config_is_set(curve)) {
        return false;
    }
    if (!kvb_curve_is_available()) {
        kvb_conf_error(
            conf, group,
            "this libzmq does not support CURVE: install one that is built with libsodium");
        return false;
    }
    return true;
}

void kvb_bridge_config_settle_curve(
    struct kvb_conf *conf, const char *group, struct kvb_worker_config *worker)
{
    KVB_OWN(kvb_curve_forget) struct kvb_curve curve = { .client_count = 0 };

    worker->curve.digest = 0;
    if (has_key_group(conf, group, &worker->curve) && check_presence(conf, group, worker) == 0 &&
        read_key_group(conf, group, &worker->curve, &curve)) {
        worker->curve.digest = kvb_curve_digest(&curve);
    }
}

void kvb_bridge_config_check_readers_curve(
    struct kvb_conf *conf, const char *group, const struct kvb_curve_config *config)
{
    KVB_OWN(kvb_curve_forget) struct kvb_curve curve = { .client_count = 0 };
    const struct presence_rule rules[] = {
        { "secret_key_file", config->secret_key_file[0] == '\0', no_secret_key },
        { "client_keys_file", config->client_keys_file[0] == '\0',
          "is missing: name a file with the public keys of readers that may connect" },
    };

    if (has_key_group(conf, group, config) &&
        report_presence(conf, group, rules, KVB_COUNT_OF(rules)) == 0) {
        (void)read_key_group(conf, group, config, &curve); /* it reports what is wrong */
    }
}
