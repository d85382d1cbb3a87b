#include "core/conf.h"

#include "core/conf_inside.h"
#include "core/limits.h"
#include "core/own.h"

#include <errno.h>
#include <libconfig.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { name_bytes = 64 };

/* ---- Errors ---------------------------------------------------------------------- */

void kvb_conf_add_error(struct kvb_conf *conf, unsigned line, const char *key, const char *text)
{
    struct kvb_conf_errors *errors = conf->errors;

    if (errors->count < kvb_conf_max_errors) {
        kvb_detail_set(
            &errors->texts[errors->count], "%s:%u: %s%s%s", conf->path, line, key,
            key[0] ? ": " : "", text);
    }
    errors->count++;
}

void kvb_conf_errors_print(const struct kvb_conf_errors *errors, FILE *out)
{
    for (size_t i = 0; i < errors->count && i < kvb_conf_max_errors; i++) {
        (void)fprintf(out, "%s\n", errors->texts[i].text);
    }
    if (errors->count > kvb_conf_max_errors) {
        (void)fprintf(out, "... and %zu more\n", errors->count - kvb_conf_max_errors);
    }
    for (size_t i = 0; i < errors->warning_count; i++) {
        (void)fprintf(out, "%s\n", errors->warnings[i].text);
    }
}

/* Takes the next step of a path such as workers[2].load.zmq; NULL: not there. */
static const config_setting_t *step_into_path(const config_setting_t *setting, const char **path)
{
    char name[name_bytes];

    if (**path == '[') {
        const unsigned long at = strtoul(*path + 1, NULL, 10);
        *path += strcspn(*path, ".");
        return config_setting_is_aggregate(setting) && at <= UINT32_MAX
                   ? config_setting_get_elem(setting, (unsigned)at)
                   : NULL;
    }
    const size_t len = strcspn(*path, ".[");
    (void)snprintf(name, sizeof name, "%.*s", (int)len, *path); /* keys are short */
    *path += len;
    return config_setting_get_member(setting, name);
}

unsigned kvb_conf_line(const struct kvb_conf *conf, const char *key)
{
    const config_setting_t *setting = config_root_setting(conf->tree);
    unsigned line = 1;

    while (*key != '\0') {
        setting = step_into_path(setting, &key);
        if (!setting) {
            break;
        }
        line = config_setting_source_line(setting);
        key += *key == '.';
    }
    return line;
}

void kvb_conf_error(struct kvb_conf *conf, const char *key, const char *format, ...)
{
    struct kvb_detail text;
    va_list values;

    va_start(values, format);
    (void)vsnprintf(text.text, sizeof text.text, format, values);
    va_end(values);
    kvb_conf_add_error(conf, kvb_conf_line(conf, key), key, text.text);
}

void kvb_conf_warning(struct kvb_conf *conf, const char *key, const char *format, ...)
{
    struct kvb_conf_errors *errors = conf->errors;
    struct kvb_detail text;
    va_list values;

    if (errors->warning_count == kvb_conf_max_warnings) {
        return;
    }
    va_start(values, format);
    (void)vsnprintf(text.text, sizeof text.text, format, values);
    va_end(values);
    kvb_detail_set(
        &errors->warnings[errors->warning_count++], "%s:%u: warning: %s: %s", conf->path,
        kvb_conf_line(conf, key), key, text.text);
}

/* ---- Opening ---------------------------------------------------------------------- */

static void drop_conf_file(FILE **file)
{
    if (*file) {
        (void)fclose(*file); /* was only read */
    }
}

static void drop_conf_text(char **text)
{
    free(*text);
}

static kvb_status refuse_conf_text(struct kvb_conf *conf, unsigned line, const char *text)
{
    kvb_conf_add_error(conf, line, "", text);
    return KVB_BAD_CONFIG;
}

static kvb_status refuse_file(struct kvb_conf *conf, int error)
{
    struct kvb_detail text;

    kvb_detail_set(&text, "cannot read the file: %s", strerrordesc_np(error));
    return refuse_conf_text(conf, 1, text.text);
}

/* Accepts anything but a directory, a pipe too. */
static kvb_status open_file(struct kvb_conf *conf, FILE **out_file)
{
    struct stat about;
    FILE *file = fopen(conf->path, "re");

    if (!file) {
        return refuse_file(conf, errno);
    }
    *out_file = file;
    if (fstat(fileno(file), &about) != 0) {
        return refuse_file(conf, errno);
    }
    return S_ISDIR(about.st_mode) ? refuse_file(conf, EISDIR) : KVB_OK;
}

/* The whole file, NUL-terminated, for the caller to free. */
static kvb_status read_conf_text(struct kvb_conf *conf, char **out_text)
{
    KVB_OWN(drop_conf_file) FILE *file = NULL;
    KVB_OWN(drop_conf_text) char *text = NULL;

    KVB_TRY(open_file(conf, &file));
    text = malloc(kvb_max_config_bytes + 1);
    if (!text) {
        return KVB_NO_MEMORY;
    }
    const size_t len = fread(text, 1, kvb_max_config_bytes + 1, file);
    if (ferror(file)) {
        return refuse_file(conf, errno);
    }
    if (len > kvb_max_config_bytes) {
        return refuse_conf_text(conf, 1, "the file is larger than 4 MiB: is it the right one?");
    }
    if (memchr(text, '\0', len)) {
        return refuse_conf_text(
            conf, 1, "the file contains NUL bytes: it is not a configuration file");
    }
    text[len] = '\0';
    *out_text = text;
    text = NULL;
    return KVB_OK;
}

static unsigned line_at(const char *text, const char *at)
{
    unsigned line = 1;

    for (const char *end; (end = memchr(text, '\n', (size_t)(at - text))); text = end + 1) {
        line++;
    }
    return line;
}

static kvb_status parse_conf_text(struct kvb_conf *conf, char *text)
{
    const char *why = NULL;
    const char *trouble = kvb_conf_guard(text, &why);

    if (trouble) {
        return refuse_conf_text(conf, line_at(text, trouble), why);
    }
    config_init(conf->tree);
    if (config_read_string(conf->tree, text) != CONFIG_TRUE) {
        return refuse_conf_text(
            conf, (unsigned)config_error_line(conf->tree), config_error_text(conf->tree));
    }
    return KVB_OK;
}

static kvb_status load_conf_file(struct kvb_conf *conf, const char *path)
{
    KVB_OWN(drop_conf_text) char *text = NULL;

    conf->path = strdup(path);
    conf->tree = calloc(1, sizeof *conf->tree);
    if (!conf->path || !conf->tree) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(read_conf_text(conf, &text));
    return parse_conf_text(conf, text);
}

kvb_status
kvb_conf_open(const char *path, struct kvb_conf_errors *errors, struct kvb_conf **out_conf)
{
    struct kvb_conf *conf = calloc(1, sizeof *conf);

    if (!conf) {
        return KVB_NO_MEMORY;
    }
    conf->errors = errors;
    const kvb_status status = load_conf_file(conf, path);
    if (status != KVB_OK) {
        kvb_conf_close(conf);
        return status;
    }
    *out_conf = conf;
    return KVB_OK;
}

void kvb_conf_close(struct kvb_conf *conf)
{
    if (!conf) {
        return;
    }
    if (conf->tree) {
        config_destroy(conf->tree); /* accepts a tree that was only zeroed */
        free(conf->tree);
    }
    free(conf->path);
    free(conf);
}
