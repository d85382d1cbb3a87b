#include "bus/permissions.h"

#include "core/own.h"
#include "kvaggregator/permissions.h"
#include "kvbridge/config.h"
#include "kvctl/kvctl.h"
#include "wire/json/writer.h"

#include <string.h>

/* `permissions ROLE`: what nats-server must permit a program, as a block of its configuration or as
 * the permissions of a user JWT. */

enum { jwt_bytes = 1 << 14, ns_per_s = 1000000000 };

/* ---- From a configuration file ---- */

static enum kvctl_exit report_config(
    const char *path, const char *program, kvb_status status, const struct kvb_conf_errors *errors)
{
    if (status == KVB_BAD_CONFIG) {
        kvb_conf_errors_print(errors, stderr);
        kvctl_say("%s, read as a %s configuration, has mistakes", path, program);
        return kvctl_config;
    }
    if (status != KVB_OK) {
        kvctl_say("%s: %s", path, kvb_status_name(status));
        return kvctl_failed;
    }
    return kvctl_ok;
}

static enum kvctl_exit report_made(kvb_status status)
{
    if (status == KVB_OK) {
        return kvctl_ok;
    }
    kvctl_say(
        status == KVB_BAD_INPUT
            ? "--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -; nats.inbox_prefix: "
              "the beginning of a subject"
            : "the permissions cannot be listed");
    return status == KVB_BAD_INPUT ? kvctl_usage : kvctl_failed;
}

static enum kvctl_exit
read_bridge_permissions(const char *path, enum kvb_client_role role, struct kvb_permissions *out)
{
    struct kvb_bridge_config config = { 0 };
    struct kvb_conf_errors errors = { .leaves_logins = true };
    struct kvb_subject_names names;

    const enum kvctl_exit read =
        report_config(path, "kvbridge", kvb_bridge_config_read(path, &config, &errors), &errors);
    if (read != kvctl_ok) {
        return read;
    }
    kvb_bridge_subject_names(&config, &names);
    const kvb_status made =
        kvb_permissions_make(role, &names, kvb_bridge_permission_settings(&config), out);
    /* The list has copies of the names. */
    kvb_bridge_config_done(&config);
    return report_made(made);
}

static enum kvctl_exit read_aggregator_permissions(
    const char *path, enum kvb_client_role role, struct kvb_permissions *out)
{
    struct kvb_aggregator_config config = { 0 };
    struct kvb_conf_errors errors = { .leaves_logins = true };
    struct kvb_subject_names names;

    const enum kvctl_exit read = report_config(
        path, "kvaggregator", kvb_aggregator_config_read(path, &config, &errors), &errors);
    if (read != kvctl_ok) {
        return read;
    }
    kvb_aggregator_subject_names(&config, &names);
    const kvb_status made =
        kvb_permissions_make(role, &names, kvb_aggregator_permission_settings(&config), out);
    kvb_aggregator_config_done(&config);
    return report_made(made);
}

/* ---- Roles ---- */

typedef enum kvctl_exit
permission_reader(const char *path, enum kvb_client_role role, struct kvb_permissions *out);

static const struct role_row {
    const char *name;
    permission_reader *read;
    const char *component; /* without a configuration; NULL: the program needs one */
} roles[KVB_CLIENT_COUNT] = {
    [KVB_CLIENT_BRIDGE] = { "bridge", read_bridge_permissions, NULL },
    [KVB_CLIENT_AGGREGATOR] = { "aggregator", read_aggregator_permissions, NULL },
    [KVB_CLIENT_ROUTER] = { "router", read_aggregator_permissions, "Router" },
    [KVB_CLIENT_READER] = { "reader", read_bridge_permissions, "VllmWorker" },
    [KVB_CLIENT_OPERATOR] = { "operator", read_aggregator_permissions, NULL },
};

/* KVB_NOT_FOUND. */
static kvb_status find_role(const char *name, enum kvb_client_role *out)
{
    for (size_t i = 0; i < KVB_CLIENT_COUNT; i++) {
        if (strcmp(roles[i].name, name) == 0) {
            *out = (enum kvb_client_role)i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

/* For a role whose subjects need no more than a namespace and a component. */
static enum kvctl_exit make_by_names(
    const struct kvctl_options *options, enum kvb_client_role role, struct kvb_permissions *out)
{
    const char *name_space = options->name_space ? options->name_space : "dynamo";
    const char *component = options->component ? options->component : roles[role].component;
    /* The names that daemons have by default. */
    const struct kvb_subject_names names = {
        .workers_namespace = name_space,
        .workers_component = component,
        .router_namespace = name_space,
        .router_component = component,
        .inbox_prefix = KVB_INBOX_PREFIX,
        .id = "*",
    };

    return report_made(kvb_permissions_make(role, &names, 0, out));
}

static enum kvctl_exit make_permissions(
    const struct kvctl_options *options, enum kvb_client_role role, struct kvb_permissions *out)
{
    if (options->config && (options->name_space || options->component)) {
        kvctl_say("permissions: --config names namespace and component: leave out the options");
        return kvctl_usage;
    }
    if (options->config) {
        return roles[role].read(options->config, role, out);
    }
    /* Subjects of these roles depend on ids and settings that only a configuration has. */
    if (!roles[role].component) {
        kvctl_say(
            role == KVB_CLIENT_OPERATOR
                ? "permissions %s: give --config FILE, the file that an aggregator runs with"
                : "permissions %s: give --config FILE, the file that it runs with",
            options->file);
        return kvctl_usage;
    }
    return make_by_names(options, role, out);
}

/* ---- Printing ---- */

static size_t count_direction(const struct kvb_permissions *permissions, bool is_publish)
{
    size_t count = 0;

    for (size_t i = 0; i < permissions->count; i++) {
        count += permissions->items[i].is_publish == is_publish;
    }
    return count;
}

/* nats-server takes an empty list for no limit, so one that permits nothing denies all. */
static void print_direction(const struct kvb_permissions *permissions, bool is_publish)
{
    printf("  %s: {\n", is_publish ? "publish" : "subscribe");
    if (count_direction(permissions, is_publish) == 0) {
        printf("    deny: \">\"\n  }\n");
        return;
    }
    printf("    allow: [\n");
    for (size_t i = 0; i < permissions->count; i++) {
        if (permissions->items[i].is_publish == is_publish) {
            printf("      \"%s\"\n", permissions->items[i].subject);
        }
    }
    printf("    ]\n  }\n");
}

static void print_block(const struct kvb_permissions *permissions)
{
    printf("permissions: {\n");
    print_direction(permissions, true);
    print_direction(permissions, false);
    if (permissions->answers_requests) {
        printf("  allow_responses: { max: -1, expires: \"%ds\" }\n", kvb_permission_answer_s);
    }
    printf("}\n");
}

static void write_direction(
    struct kvb_json_writer *json, const struct kvb_permissions *permissions, bool is_publish)
{
    const bool has_any = count_direction(permissions, is_publish) > 0;

    kvb_json_write_pair_begin(json, is_publish ? "pub" : "sub", '{');
    kvb_json_write_pair_begin(json, has_any ? "allow" : "deny", '[');
    for (size_t i = 0; i < permissions->count; i++) {
        if (permissions->items[i].is_publish == is_publish) {
            kvb_json_write_text(json, permissions->items[i].subject);
        }
    }
    if (!has_any) {
        kvb_json_write_text(json, ">");
    }
    kvb_json_write_end(json, ']');
    kvb_json_write_end(json, '}');
}

/* The members pub, sub and resp of `nats` in a user JWT.  It has no number for "no limit": a
 * negative one means that. */
static kvb_status
write_jwt_permissions(const struct kvb_permissions *permissions, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    write_direction(&json, permissions, true);
    write_direction(&json, permissions, false);
    if (permissions->answers_requests) {
        kvb_json_write_pair_begin(&json, "resp", '{');
        kvb_json_write_pair_number(&json, "max", -1);
        kvb_json_write_pair_u64(&json, "ttl", (uint64_t)kvb_permission_answer_s * ns_per_s);
        kvb_json_write_end(&json, '}');
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

static enum kvctl_exit print_jwt(const struct kvb_permissions *permissions)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, jwt_bytes);
    const kvb_status status = write_jwt_permissions(permissions, &out);
    if (status != KVB_OK) {
        kvctl_say("%s", kvb_status_name(status));
        return kvctl_failed;
    }
    printf("%.*s\n", (int)out.len, (const char *)out.data);
    return kvctl_ok;
}

enum kvctl_exit kvctl_permissions(const struct kvctl_options *options)
{
    struct kvb_permissions permissions;
    enum kvb_client_role role = KVB_CLIENT_COUNT;

    if (find_role(options->file, &role) != KVB_OK) {
        kvctl_say(
            "permissions: expected bridge, aggregator, router, reader or operator, got \"%s\"",
            options->file);
        return kvctl_usage;
    }
    const enum kvctl_exit made = make_permissions(options, role, &permissions);
    if (made != kvctl_ok) {
        return made;
    }
    if (options->is_jwt || options->is_json) {
        return print_jwt(&permissions);
    }
    print_block(&permissions);
    return kvctl_ok;
}
