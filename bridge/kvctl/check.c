#include "core/own.h"
#include "kvaggregator/config.h"
#include "kvbridge/config.h"
#include "kvctl/kvctl.h"
#include "wire/json/writer.h"

enum { report_bytes = 1 << 16 };

static kvb_status read_as_bridge(const char *path, struct kvb_conf_errors *errors)
{
    struct kvb_bridge_config config = { 0 };

    const kvb_status status = kvb_bridge_config_read(path, &config, errors);
    if (status == KVB_OK) {
        kvb_bridge_config_done(&config);
    }
    return status;
}

static kvb_status read_as_aggregator(const char *path, struct kvb_conf_errors *errors)
{
    struct kvb_aggregator_config config = { 0 };

    const kvb_status status = kvb_aggregator_config_read(path, &config, errors);
    if (status == KVB_OK) {
        kvb_aggregator_config_done(&config);
    }
    return status;
}

/* The programs whose configuration a file may be. */
static const struct kind {
    const char *program;
    kvb_status (*read)(const char *path, struct kvb_conf_errors *errors);
} kinds[] = {
    { "kvbridge", read_as_bridge },
    { "kvaggregator", read_as_aggregator },
};

static void
print_json(const struct kind *kind, const char *path, const struct kvb_conf_errors *errors)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_json_writer json = kvb_json_writer_of(&out);

    kvb_buf_init(&out, report_bytes);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "file", path);
    kvb_json_write_pair_text(&json, "program", kind->program);
    kvb_json_write_pair_begin(&json, "errors", '[');
    /* More are counted than have a text. */
    for (size_t i = 0; i < errors->count && i < kvb_conf_max_errors; i++) {
        kvb_json_write_text(&json, errors->texts[i].text);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_pair_begin(&json, "warnings", '[');
    for (size_t i = 0; i < errors->warning_count; i++) {
        kvb_json_write_text(&json, errors->warnings[i].text);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    if (json.status == KVB_OK) {
        printf("%.*s\n", (int)out.len, (const char *)out.data);
    }
}

static void report(
    const struct kvctl_options *options, const struct kind *kind,
    const struct kvb_conf_errors *errors)
{
    if (options->is_json) {
        print_json(kind, options->file, errors);
    } else if (errors->count == 0) {
        kvb_conf_errors_print(errors, stderr); /* warnings alone */
        printf("%s: a %s configuration without mistakes\n", options->file, kind->program);
    } else {
        kvb_conf_errors_print(errors, stderr);
        kvctl_say("%s, read as a %s configuration, has mistakes", options->file, kind->program);
    }
}

/* Keys of the other program are unknown and count as errors, so the file belongs to the
 * program with the fewest errors. */
enum kvctl_exit kvctl_check(const struct kvctl_options *options)
{
    struct kvb_conf_errors errors[KVB_COUNT_OF(kinds)] = { 0 };
    size_t best = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        const kvb_status status = kinds[i].read(options->file, &errors[i]);
        if (status != KVB_OK && status != KVB_BAD_CONFIG) {
            kvctl_say("%s: %s", options->file, kvb_status_name(status));
            return kvctl_failed;
        }
        /* A tie goes to the first. */
        best = errors[i].count < errors[best].count ? i : best;
    }
    report(options, &kinds[best], &errors[best]);
    return errors[best].count == 0 ? kvctl_ok : kvctl_config;
}
