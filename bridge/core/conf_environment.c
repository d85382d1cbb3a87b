#include "core/buf.h"
#include "core/conf_inside.h"
#include "core/limits.h"
#include "core/own.h"

#include <libconfig.h>
#include <stdlib.h>
#include <string.h>

/* Kubernetes' rule for the arguments of a container: "$(NAME)" is the value of an environment
 * variable, and "$$(" is "$(".  In Kubernetes a variable may be unset; here that is an error. */

enum { variable_bytes = 64 };

static const char name_letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

static kvb_status
refuse_string(struct kvb_conf *conf, const config_setting_t *setting, const char *why)
{
    const char *key = config_setting_name(setting);

    kvb_conf_add_error(conf, config_setting_source_line(setting), key ? key : "", why);
    return KVB_BAD_CONFIG;
}

/* Appends the value of the variable whose name is at *text, after "$(".  Moves *text behind the
 * ")".  KVB_BAD_CONFIG: an error was added. */
static kvb_status append_variable(
    struct kvb_conf *conf, const config_setting_t *setting, const char **text, struct kvb_buf *out)
{
    char name[variable_bytes];
    struct kvb_detail why;
    const size_t len = strspn(*text, name_letters);

    if (len == 0 || len >= sizeof name || (*text)[len] != ')') {
        return refuse_string(
            conf, setting,
            "$( is no $(NAME) of an environment variable; for these bytes write $$(");
    }
    memcpy(name, *text, len);
    name[len] = '\0';
    const char *value = secure_getenv(name);
    if (!value) {
        kvb_detail_set(&why, "the environment variable %s is not set", name);
        return refuse_string(conf, setting, why.text);
    }
    *text += len + 1;
    return kvb_buf_append_text(out, value);
}

static kvb_status expand_text(
    struct kvb_conf *conf, const config_setting_t *setting, const char *text, struct kvb_buf *out)
{
    for (const char *at; (at = strstr(text, "$("));) {
        const bool is_escaped = at > text && at[-1] == '$';

        KVB_TRY(kvb_buf_append(out, text, (size_t)(at - text)));
        text = at + 2;
        if (is_escaped) { /* the first $ was appended already */
            KVB_TRY(kvb_buf_append_text(out, "("));
        } else {
            KVB_TRY(append_variable(conf, setting, &text, out));
        }
    }
    KVB_TRY(kvb_buf_append_text(out, text));
    return kvb_buf_append(out, "", 1);
}

static kvb_status expand_string(struct kvb_conf *conf, config_setting_t *setting)
{
    const char *text = config_setting_get_string(setting);

    if (!strstr(text, "$(")) {
        return KVB_OK;
    }
    KVB_OWN(kvb_buf_done) struct kvb_buf expanded = { 0 };

    kvb_buf_init(&expanded, kvb_max_config_bytes);
    const kvb_status status = expand_text(conf, setting, text, &expanded);
    if (status == KVB_NO_MEMORY) {
        return status;
    }
    if (status == KVB_TOO_LARGE) {
        (void)refuse_string(conf, setting, "is too long");
    } else if (status == KVB_OK) {
        (void)config_setting_set_string(setting, (const char *)expanded.data); /* it is a string */
    }
    return KVB_OK;
}

kvb_status kvb_conf_expand(struct kvb_conf *conf, struct config_setting_t *setting)
{
    if (config_setting_type(setting) == CONFIG_TYPE_STRING) {
        return expand_string(conf, setting);
    }
    for (int i = 0; config_setting_is_aggregate(setting) && i < config_setting_length(setting);
         i++) {
        KVB_TRY(kvb_conf_expand(conf, config_setting_get_elem(setting, (unsigned)i)));
    }
    return KVB_OK;
}
