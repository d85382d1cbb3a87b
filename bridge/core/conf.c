#include "core/conf.h"

#include "core/buf.h"
#include "core/conf_inside.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/span.h"

#include <errno.h>
#include <libconfig.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { name_bytes = 64 };

/* ---- Errors ---------------------------------------------------------------------- */

static void
add_error_at(struct kvb_conf_errors *errors, const struct kvb_conf_place *place, const char *text)
{
    if (errors->count < kvb_conf_max_errors) {
        kvb_detail_set(
            &errors->texts[errors->count], "%s:%u: %s%s%s", place->path, place->line, place->key,
            place->key[0] ? ": " : "", text);
    }
    errors->count++;
}

void kvb_conf_add_error(struct kvb_conf *conf, unsigned line, const char *key, const char *text)
{
    struct kvb_conf_place place = { .path = conf->path, .line = line };

    (void)snprintf(place.key, sizeof place.key, "%s", key);
    add_error_at(conf->errors, &place, text);
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

/* Descends by the next part of a path such as workers[2].load.zmq.  Returns NULL when the file has
 * no such setting. */
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

bool kvb_conf_has(const struct kvb_conf *conf, const char *key)
{
    return config_lookup(conf->tree, key) != NULL;
}

static unsigned line_of_key(const struct kvb_conf *conf, const char *key)
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

void kvb_conf_continue(
    struct kvb_conf *conf, const char *list, size_t first, const struct kvb_conf *more)
{
    conf->list = list;
    conf->first = first;
    conf->more = more;
}

/* Returns the file that has the key.  If the list workers is continued in another file from item 5
 * on, workers[7].id is workers[2].id of that file. */
static const struct kvb_conf *
find_file_of_key(const struct kvb_conf *conf, const char *key, char out_key[kvb_conf_key_bytes])
{
    const size_t len = conf->more ? strlen(conf->list) : 0;

    (void)snprintf(out_key, kvb_conf_key_bytes, "%s", key);
    if (!conf->more || strncmp(key, conf->list, len) != 0 || key[len] != '[') {
        return conf;
    }
    char *end = NULL;
    const unsigned long at = strtoul(key + len + 1, &end, 10);
    /* The item is one of the first file's own. */
    if (at < conf->first) {
        return conf;
    }
    (void)snprintf(out_key, kvb_conf_key_bytes, "%s[%zu%s", conf->list, at - conf->first, end);
    return conf->more;
}

struct kvb_conf_place kvb_conf_place_of(const struct kvb_conf *conf, const char *key)
{
    struct kvb_conf_place place;
    const struct kvb_conf *file = find_file_of_key(conf, key, place.key);

    place.path = file->path;
    place.line = line_of_key(file, place.key);
    return place;
}

bool kvb_conf_checks_logins(const struct kvb_conf *conf)
{
    return !conf->errors->leaves_logins;
}

void kvb_conf_error(struct kvb_conf *conf, const char *key, const char *format, ...)
{
    const struct kvb_conf_place place = kvb_conf_place_of(conf, key);
    struct kvb_detail text;
    va_list values;

    va_start(values, format);
    /* The analyzer does not see it begin just above. NOLINTNEXTLINE(clang-analyzer-valist.*) */
    (void)vsnprintf(text.text, sizeof text.text, format, values);
    va_end(values);
    add_error_at(conf->errors, &place, text.text);
}

void kvb_conf_warning(struct kvb_conf *conf, const char *key, const char *format, ...)
{
    const struct kvb_conf_place place = kvb_conf_place_of(conf, key);
    struct kvb_conf_errors *errors = conf->errors;
    struct kvb_detail text;
    va_list values;

    if (errors->warning_count == kvb_conf_max_warnings) {
        return;
    }
    va_start(values, format);
    /* As above. NOLINTNEXTLINE(clang-analyzer-valist.*) */
    (void)vsnprintf(text.text, sizeof text.text, format, values);
    va_end(values);
    kvb_detail_set(
        &errors->warnings[errors->warning_count++], "%s:%u: warning: %s: %s", place.path,
        place.line, place.key, text.text);
}

/* ---- Mistakes that libconfig accepts ---- */

/* A partial scanner of libconfig's syntax.  It distinguishes numbers from names, strings and
 * comments. */

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static char *end_of_line(char *at)
{
    return at + strcspn(at, "\n");
}

/* Returns NULL when the comment is never closed.  So does end_of_string(). */
static char *end_of_comment(char *at)
{
    char *end = strstr(at + 2, "*/");

    return end ? end + 2 : NULL;
}

static char *end_of_string(char *at)
{
    at++;
    while (*at != '\0' && *at != '"') {
        at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return *at == '"' ? at + 1 : NULL;
}

static bool is_hex_number(const char *number)
{
    return number[0] == '0' && (number[1] == 'x' || number[1] == 'X');
}

/* Whether libconfig reads the number without truncating it.  `number` is len bytes of characters
 * that occur in numbers. */
static bool number_fits(const char *number, size_t len)
{
    char *end = NULL;

    if (!is_hex_number(number) && strcspn(number, ".eE") < len) {
        return true; /* a fraction */
    }
    const unsigned long long value = strtoull(
        number + (number[0] == '-' || number[0] == '+'), &end, is_hex_number(number) ? 16 : 10);
    const unsigned long long max = *end == 'L' ? INT64_MAX : INT32_MAX;
    return value <= max; /* beyond 64 bits strtoull() returns the largest value */
}

static char *guard_number(char *number)
{
    const size_t len = strspn(number, DIGITS "abcdefABCDEFxXL.+-");

    if (!number_fits(number, len)) {
        /* The point stands where the reader of whole numbers learns from the value whether an L
         * helps. */
        const size_t point = number[len - 1] == 'L' ? 0 : len - 1;
        memset(number, '9', len);
        number[point] = '.';
    }
    return number + len;
}

static char *guard_token(char *at)
{
    if (at[0] == '#' || (at[0] == '/' && at[1] == '/')) {
        return end_of_line(at);
    }
    if (at[0] == '/' && at[1] == '*') {
        return end_of_comment(at);
    }
    if (at[0] == '"') {
        return end_of_string(at);
    }
    if (strchr(LETTERS "*", at[0])) {
        return at + strspn(at, LETTERS DIGITS "-_*");
    }
    return strchr(DIGITS "+-.", at[0]) ? guard_number(at) : at + 1;
}

/* Finds mistakes that libconfig 1.5 accepts silently.
 *
 * libconfig truncates an integer that does not fit 32 bits (64 with the suffix L): 4294967297
 * becomes 1.  Each such integer is overwritten with a fraction of the same width, which the
 * reader of whole numbers then refuses.  The fraction is 99. if the suffix L would help, and .99 if
 * the integer has that suffix.
 *
 * A comment or string that is never closed hides the rest of the file.  A file named by @include
 * would not be checked.  For the first such mistake returns its position in text and sets *out_why.
 * Returns NULL when there is none. */
static const char *guard_conf_text(char *text, const char **out_why)
{
    char *at = text;

    while (*at != '\0' && *at != '@') {
        char *next = guard_token(at);
        if (!next) {
            *out_why = *at == '"' ? "the string that begins here is never closed"
                                  : "the comment that begins here is never closed";
            return at;
        }
        at = next;
    }
    *out_why = "@include is not supported: write all into one file";
    return *at == '@' ? at : NULL;
}

/* ---- Environment ---------------------------------------------------------------- */

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

        /* What precedes the "$(" is copied in any case. */
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
    /* A mistake was added to the others: reading goes on and finds more of them. */
    if (status == KVB_TOO_LARGE) {
        (void)refuse_string(conf, setting, "is too long");
    } else if (status == KVB_OK) {
        (void)config_setting_set_string(setting, (const char *)expanded.data); /* it is a string */
    }
    return KVB_OK;
}

/* Replaces each $(NAME) in the strings at and below the setting.  Adds an error for each NAME that
 * cannot be replaced.  KVB_NO_MEMORY */
static kvb_status expand_conf(struct kvb_conf *conf, config_setting_t *setting)
{
    if (config_setting_type(setting) == CONFIG_TYPE_STRING) {
        return expand_string(conf, setting);
    }
    for (int i = 0; config_setting_is_aggregate(setting) && i < config_setting_length(setting);
         i++) {
        KVB_TRY(expand_conf(conf, config_setting_get_elem(setting, (unsigned)i)));
    }
    return KVB_OK;
}

/* ---- Opening ---------------------------------------------------------------------- */

static void drop_conf_file(FILE **file)
{
    if (*file) {
        (void)fclose(*file); /* no error matters: the file was only read */
    }
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

/* Opens the file.  Accepts everything but a directory, for example a pipe. */
static kvb_status open_file(struct kvb_conf *conf, FILE **out_file)
{
    struct stat about;
    FILE *file = fopen(conf->path, "re");

    if (!file) {
        return refuse_file(conf, errno);
    }
    *out_file = file;
    /* fopen() opens a directory, whose first read fails with a worse message. */
    if (fstat(fileno(file), &about) != 0) {
        return refuse_file(conf, errno);
    }
    return S_ISDIR(about.st_mode) ? refuse_file(conf, EISDIR) : KVB_OK;
}

/* Reads the whole file and adds a NUL.  The caller frees the text. */
static kvb_status read_conf_text(struct kvb_conf *conf, char **out_text)
{
    KVB_OWN(drop_conf_file) FILE *file = NULL;
    KVB_OWN(kvb_own_free) char *text = NULL;

    KVB_TRY(open_file(conf, &file));
    text = malloc(kvb_max_config_bytes + 1);
    if (!text) {
        return KVB_NO_MEMORY;
    }
    /* One byte more than allowed tells a file that is too long from one that just fits. */
    const size_t len = fread(text, 1, kvb_max_config_bytes + 1, file);
    if (ferror(file)) {
        return refuse_file(conf, errno);
    }
    if (len > kvb_max_config_bytes) {
        return refuse_conf_text(conf, 1, "the file is larger than 16 MiB: is it the right one?");
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

/* The line with this number, without blanks at its ends. */
static kvb_span line_of(const char *text, unsigned line)
{
    while (line > 1 && (text = strchr(text, '\n')) != NULL) {
        text++;
        line--;
    }
    if (!text) {
        return (kvb_span){ (const uint8_t *)"", 0 };
    }
    text += strspn(text, " \t\r");
    size_t len = strcspn(text, "\n");
    while (len > 0 && strchr(" \t\r", text[len - 1])) {
        len--;
    }
    return (kvb_span){ (const uint8_t *)text, len };
}

/* libconfig says "syntax error" and "duplicate setting name", and nothing else. */
static kvb_status refuse_syntax(struct kvb_conf *conf, const char *text)
{
    const unsigned line = (unsigned)config_error_line(conf->tree);
    const char *error = config_error_text(conf->tree);
    const kvb_span found = line_of(text, line);
    const int len = found.len < 60 ? (int)found.len : 60;
    struct kvb_detail detail;

    if (strncmp(error, "duplicate", strlen("duplicate")) == 0) {
        kvb_detail_set(
            &detail,
            "duplicate setting name: \"%.*s\" gives a key of its group a second time: remove one",
            len, (const char *)found.data);
    } else {
        kvb_detail_set(
            &detail,
            "%s at \"%.*s\": there or just before a ; a comma, a quote or a bracket is missing or "
            "too many",
            error, len, (const char *)found.data);
    }
    return refuse_conf_text(conf, line, detail.text);
}

static kvb_status parse_conf_text(struct kvb_conf *conf, char *text)
{
    const char *why = NULL;
    const char *trouble = guard_conf_text(text, &why);

    if (trouble) {
        return refuse_conf_text(conf, line_at(text, trouble), why);
    }
    /* From here on the tree owns copies of all texts. */
    config_init(conf->tree);
    if (config_read_string(conf->tree, text) != CONFIG_TRUE) {
        return refuse_syntax(conf, text);
    }
    return expand_conf(conf, config_root_setting(conf->tree));
}

static kvb_status load_conf_file(struct kvb_conf *conf, const char *path)
{
    KVB_OWN(kvb_own_free) char *text = NULL;

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
