#include "core/conf.h"
#include "core/conf_inside.h"
#include "core/decimal.h"
#include "core/own.h"

#include <assert.h>
#include <inttypes.h>
#include <libconfig.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { path_bytes = 96 };

/* One key of one group, and the destination of its value. */
struct value {
    struct kvb_conf *conf;
    const char *group; /* "", or "workers[1]." */
    const struct kvb_conf_key *key;
    const config_setting_t *setting; /* NULL: the default is used, which is never wrong */
    void *field;
    bool may_be_empty; /* a text of the group of defaults: then there is no default */
};

__attribute__((format(printf, 2, 3))) static void
wrong(const struct value *value, const char *format, ...)
{
    char path[path_bytes];
    struct kvb_detail text;
    va_list values;

    va_start(values, format);
    /* The analyzer does not see it begin just above. NOLINTNEXTLINE(clang-analyzer-valist.*) */
    (void)vsnprintf(text.text, sizeof text.text, format, values);
    va_end(values);
    (void)snprintf(path, sizeof path, "%s%s", value->group, value->key->path);
    kvb_conf_add_error(value->conf, config_setting_source_line(value->setting), path, text.text);
}

/* ---- Values: each type reads the text of a default, and a libconfig setting ---------- */

static void put_whole(const struct value *value, uint64_t number)
{
    const uint32_t narrow = (uint32_t)number;

    assert(value->key->bytes == (value->key->type == KVB_CONF_U64 ? 8 : 4));
    memcpy(
        value->field, value->key->bytes == 8 ? (const void *)&number : &narrow, value->key->bytes);
}

static void take_whole_number(const struct value *value, uint64_t number)
{
    const struct kvb_conf_key *key = value->key;

    if (number < key->min || number > key->max) {
        wrong(
            value, "%" PRIu64 " is out of range: give %" PRIu64 " .. %" PRIu64, number, key->min,
            key->max);
    } else {
        put_whole(value, number);
    }
}

static void default_whole(const struct value *value)
{
    uint64_t number = 0;
    const bool is_read = kvb_decimal_read(value->key->fallback, &number);

    assert(is_read);
    (void)is_read;
    put_whole(value, number);
}

static void read_conf_integer(const struct value *value)
{
    const long long number = config_setting_get_int64(value->setting);

    /* As a signed number, because the unsigned one would be huge. */
    if (number < 0) {
        wrong(
            value, "%lld is out of range: give %" PRIu64 " .. %" PRIu64, number, value->key->min,
            value->key->max);
    } else {
        take_whole_number(value, (uint64_t)number);
    }
}

static void read_number_string(const struct value *value)
{
    uint64_t number = 0;
    const char *text = config_setting_get_string(value->setting);

    if (value->key->type != KVB_CONF_U64) {
        wrong(value, "expected a whole number: leave out the quotes");
    } else if (!kvb_decimal_read(text, &number)) {
        wrong(
            value, "\"%.32s\" is no decimal number in %" PRIu64 " .. %" PRIu64, text,
            value->key->min, value->key->max);
    } else {
        take_whole_number(value, number);
    }
}

/* Refuses a fraction.  core/conf.c writes one over each integer that libconfig would truncate. */
static void refuse_fraction(const struct value *value)
{
    const struct kvb_conf_key *key = value->key;
    const double number = config_setting_get_float(value->setting);
    const bool may_help = key->type == KVB_CONF_U64 && (number >= 1 || number <= -1);

    wrong(
        value, "expected a whole number in %" PRIu64 " .. %" PRIu64 "%s", key->min, key->max,
        may_help ? "; above 2147483647 add L (5000000000L) or quotes" : "");
}

static void read_whole(const struct value *value)
{
    switch (config_setting_type(value->setting)) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        read_conf_integer(value);
        break;
    case CONFIG_TYPE_STRING:
        read_number_string(value);
        break;
    case CONFIG_TYPE_FLOAT:
        refuse_fraction(value);
        break;
    default:
        wrong(value, "expected a whole number");
    }
}

static void default_string(const struct value *value)
{
    const size_t len = strlen(value->key->fallback);

    assert(len < value->key->bytes);
    memcpy(value->field, value->key->fallback, len + 1);
}

static bool has_control(const char *text)
{
    while (*text != '\0' && (unsigned char)*text >= ' ' && *text != 0x7f) {
        text++;
    }
    return *text != '\0';
}

/* NULL: it is wrong. */
static const char *checked_text(const struct value *value, size_t max_bytes)
{
    const struct kvb_conf_key *key = value->key;
    const char *text = config_setting_get_string(value->setting);

    if (!text) {
        wrong(value, "expected a string in quotes");
    } else if (strlen(text) < key->min && !value->may_be_empty) {
        wrong(value, "is empty: give at least %" PRIu64 " bytes", key->min);
    } else if (strlen(text) > max_bytes) {
        wrong(value, "is too long: at most %zu bytes", max_bytes);
    } else if (has_control(text)) {
        wrong(value, "contains a control character: remove it");
    } else {
        return text;
    }
    return NULL;
}

static void read_string(const struct value *value)
{
    const char *text = checked_text(value, value->key->bytes - 1);

    if (text) {
        memcpy(value->field, text, strlen(text) + 1);
    }
}

/* Puts the pointer, not the bytes. */
static void put_text(const struct value *value, const char *text)
{
    memcpy(value->field, (const void *)&text, value->key->bytes);
}

static void default_text(const struct value *value)
{
    put_text(value, value->key->fallback);
}

static void read_text(const struct value *value)
{
    const char *text = checked_text(value, value->key->max);

    if (text) {
        put_text(value, text);
    }
}

static void default_bool(const struct value *value)
{
    const bool is_true = strcmp(value->key->fallback, "true") == 0;

    assert(value->key->bytes == sizeof is_true);
    memcpy(value->field, &is_true, sizeof is_true);
}

static void read_bool(const struct value *value)
{
    const bool is_true = config_setting_get_bool(value->setting);

    /* libconfig reads false from any other type. */
    if (config_setting_type(value->setting) != CONFIG_TYPE_BOOL) {
        wrong(value, "expected true or false, without quotes");
    } else {
        memcpy(value->field, &is_true, sizeof is_true);
    }
}

static void default_double(const struct value *value)
{
    const double number = strtod(value->key->fallback, NULL);

    assert(value->key->bytes == sizeof number);
    memcpy(value->field, &number, sizeof number);
}

static void read_double(const struct value *value)
{
    const struct kvb_conf_key *key = value->key;
    const bool is_float = config_setting_type(value->setting) == CONFIG_TYPE_FLOAT;
    const double number = is_float ? config_setting_get_float(value->setting)
                                   : (double)config_setting_get_int64(value->setting);

    /* NaN compares false with both ends, and so is out of range as well. */
    if (!config_setting_is_number(value->setting)) {
        wrong(value, "expected a number, without quotes");
    } else if (!(number >= (double)key->min && number <= (double)key->max)) {
        wrong(value, "is out of range: give %" PRIu64 " .. %" PRIu64, key->min, key->max);
    } else {
        memcpy(value->field, &number, sizeof number);
    }
}

static bool take_choice(const struct value *value, const char *name)
{
    for (unsigned i = 0; i <= value->key->max; i++) {
        if (strcmp(value->key->name_of(i), name) == 0) {
            put_whole(value, i); /* enums are unsigned int to gcc and clang */
            return true;
        }
    }
    return false;
}

static void default_enum(const struct value *value)
{
    const bool is_known = take_choice(value, value->key->fallback);

    assert(is_known);
    (void)is_known;
}

static void read_enum(const struct value *value)
{
    const char *text = config_setting_get_string(value->setting);
    char names[path_bytes] = "";

    if (text && take_choice(value, text)) {
        return;
    }
    const char *instead = text && value->key->instead_of ? value->key->instead_of(text) : NULL;
    if (instead) {
        wrong(value, "\"%s\" is gone: \"%s\" serves in its place", text, instead);
        return;
    }
    /* Neither known nor gone: all names are listed. */
    for (unsigned i = 0; i <= value->key->max; i++) {
        const size_t len = strlen(names);
        (void)snprintf(
            names + len, sizeof names - len, "%s\"%s\"", i ? " or " : "", value->key->name_of(i));
    }
    wrong(value, "expected %s", names);
}

/* Reads each entry like a single number, so that errors have the same text. */
static size_t read_array_entries(const struct value *value, int count)
{
    struct kvb_conf_key key = *value->key;

    key.type = KVB_CONF_U64;
    key.bytes = sizeof(uint64_t);
    for (int i = 0; i < count; i++) {
        struct value entry = *value;
        entry.key = &key;
        entry.setting = config_setting_get_elem(value->setting, (unsigned)i);
        entry.field = (uint8_t *)value->field + (size_t)i * sizeof(uint64_t);
        memset(entry.field, 0xff, sizeof(uint64_t)); /* cross checks skip it */
        read_whole(&entry);
    }
    return (size_t)count;
}

static void read_numbers(const struct value *value, void *out)
{
    const struct kvb_conf_key *key = value->key;
    const int max = (int)(key->bytes / sizeof(uint64_t));
    size_t count = 0;

    if (!config_setting_is_list(value->setting) && !config_setting_is_array(value->setting)) {
        wrong(value, "expected numbers ( 1, 2 )");
    } else if (config_setting_length(value->setting) > max) {
        wrong(value, "has %d entries: give at most %d", config_setting_length(value->setting), max);
    } else {
        count = read_array_entries(value, config_setting_length(value->setting));
    }
    memcpy((uint8_t *)out + key->count_offset, &count, sizeof count);
}

static void read_pair(const struct value *value)
{
    struct kvb_detail why = { .text = "" };
    const char *text = config_setting_get_string(value->setting);
    const char *name = config_setting_name(value->setting);

    if (!text) {
        wrong(value, "%.64s: expected a string in quotes", name);
    } else if (value->key->take_pair(value->field, name, text, &why) != KVB_OK) {
        wrong(value, "%s", why.text);
    }
}

static void read_pairs(const struct value *value)
{
    if (!config_setting_is_group(value->setting)) {
        wrong(value, "expected a group { name = \"value\"; }");
        return;
    }
    for (int i = 0; i < config_setting_length(value->setting); i++) {
        struct value pair = *value;
        pair.setting = config_setting_get_elem(value->setting, (unsigned)i);
        read_pair(&pair);
    }
}

static void read_text_entry(const struct value *value, int at)
{
    struct kvb_detail why = { .text = "" };
    const char *text =
        config_setting_get_string(config_setting_get_elem(value->setting, (unsigned)at));

    if (!text) {
        wrong(value, "entry %d: expected a string in quotes", at);
    } else if (value->key->take_text(value->field, text, &why) != KVB_OK) {
        wrong(value, "entry %d: %s", at, why.text);
    }
}

static void read_texts(const struct value *value)
{
    if (!config_setting_is_list(value->setting) && !config_setting_is_array(value->setting)) {
        wrong(value, "expected a list of strings ( \"a\", \"b\" )");
        return;
    }
    for (int i = 0; i < config_setting_length(value->setting); i++) {
        read_text_entry(value, i);
    }
}

/* Readers by type.  Lists and arrays are not in this table: they have a count, and the groups of a
 * list have their own table. */
static const struct {
    void (*take_default)(const struct value *value);
    void (*read)(const struct value *value);
} types[KVB_CONF_TYPE_COUNT] = {
    [KVB_CONF_STRING] = { default_string, read_string },
    [KVB_CONF_TEXT] = { default_text, read_text },
    [KVB_CONF_U64] = { default_whole, read_whole },
    [KVB_CONF_U32] = { default_whole, read_whole },
    [KVB_CONF_BOOL] = { default_bool, read_bool },
    [KVB_CONF_DOUBLE] = { default_double, read_double },
    [KVB_CONF_ENUM] = { default_enum, read_enum },
    [KVB_CONF_PAIRS] = { NULL, read_pairs }, /* the default is no entry, as in the next row */
    [KVB_CONF_TEXTS] = { NULL, read_texts },
};

/* ---- Unknown keys ------------------------------------------------------------------- */

/* A group of the file, with its table and the prefix of its keys' paths. */
struct group {
    struct kvb_conf *conf;
    const struct kvb_conf_table *table;
    const char *prefix;        /* "", or "workers[1]." */
    config_setting_t *setting; /* not const, because look-ups of libconfig 1.5 need it so; NULL: the
                                  file does not have the group */
    bool is_defaults;          /* it gives defaults to others */
    const void *defaults;      /* a struct of the table that gives them to it; NULL: none */
    const void *list_defaults; /* one for the groups of its lists; NULL: it has one itself, or none
                                  is needed */
};

enum row_match { match_none, match_key, match_group };

/* Whether path is the path of a row, or a group in one ("nats" in "nats.url"). */
static enum row_match
find_key_row(const struct group *group, const char *path, const struct kvb_conf_key **out_key)
{
    const struct kvb_conf_table *table = group->table;
    const size_t len = strlen(path);

    for (size_t i = 0; i < table->count; i++) {
        if (strncmp(table->keys[i].path, path, len) == 0) {
            const char next = table->keys[i].path[len];
            if (next == '\0' || next == '.') {
                *out_key = &table->keys[i];
                return next == '.' ? match_group : match_key;
            }
        }
    }
    return match_none;
}

/* A key of a list's groups that stands where it has no meaning. */
static void check_scope(
    const struct group *group, const config_setting_t *member, const struct kvb_conf_key *key,
    const char *full)
{
    const unsigned line = config_setting_source_line(member);

    if (group->is_defaults && key->scope == KVB_CONF_OF_A_GROUP) {
        kvb_conf_add_error(group->conf, line, full, "has no default: each group gives its own");
    } else if (!group->is_defaults && key->scope == KVB_CONF_OF_DEFAULTS) {
        kvb_conf_add_error(group->conf, line, full, "is a default alone: move it to `defaults`");
    }
}

static void check_group(const struct group *group, const config_setting_t *setting, const char *at);

/* ---- A misspelt key ---- */

enum { max_typos = 3, max_typed = 64 };

/* Levenshtein's distance, row by row.  Longer texts than max_typed count as different. */
static size_t edit_distance(const char *one, size_t one_len, const char *other, size_t other_len)
{
    size_t row[max_typed + 1];

    if (one_len > max_typed || other_len > max_typed) {
        return SIZE_MAX;
    }
    for (size_t i = 0; i <= other_len; i++) {
        row[i] = i;
    }
    for (size_t i = 1; i <= one_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= other_len; k++) {
            const size_t replaced = diagonal + (one[i - 1] != other[k - 1]);
            const size_t shorter = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            diagonal = row[k];
            row[k] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[other_len];
}

/* The length of as many parts of a row's path as the typed one has; all of it when it has fewer. */
static size_t parts_len(const char *row, const char *typed)
{
    size_t len = strcspn(row, ".");

    for (const char *dot = strchr(typed, '.'); dot && row[len] == '.'; dot = strchr(dot + 1, '.')) {
        len += 1 + strcspn(row + len + 1, ".");
    }
    return len;
}

/* Writes the key or group that the operator probably meant; "" if none is near. */
static void
find_nearest(const struct kvb_conf_table *table, const char *path, char out_key[path_bytes])
{
    const size_t len = strlen(path);
    size_t best = len / 3 < max_typos ? len / 3 + 1 : max_typos + 1; /* fewer typos than this */

    out_key[0] = '\0';
    for (size_t i = 0; i < table->count; i++) {
        const char *key = table->keys[i].path;
        const size_t key_len = parts_len(key, path);
        const size_t distance = edit_distance(path, len, key, key_len);
        if (distance < best) {
            best = distance;
            (void)snprintf(out_key, path_bytes, "%.*s", (int)key_len, key);
        }
    }
}

/* The key has no row: it is of an earlier version, or a mistake. */
static void report_unknown(
    const struct group *group, const config_setting_t *member, const char *path, const char *full)
{
    const unsigned line = config_setting_source_line(member);
    struct kvb_detail detail;

    for (size_t i = 0; i < group->table->removed_count; i++) {
        const struct kvb_conf_removed *removed = &group->table->removed[i];
        if (strcmp(removed->path, path) == 0) {
            kvb_detail_set(&detail, "this key is gone: %s", removed->instead);
            kvb_conf_add_error(group->conf, line, full, detail.text);
            return;
        }
    }
    char nearest[path_bytes];
    find_nearest(group->table, path, nearest);
    kvb_detail_set(
        &detail, "unknown key: --help lists the known ones%s%s%s", nearest[0] ? "; is it " : "",
        nearest, nearest[0] ? " that is meant?" : "");
    kvb_conf_add_error(group->conf, line, full, detail.text);
}

static void check_member(const struct group *group, const config_setting_t *member, const char *at)
{
    char path[path_bytes];
    char full[2 * path_bytes];

    (void)snprintf(path, sizeof path, "%s%.64s", at, config_setting_name(member));
    (void)snprintf(full, sizeof full, "%s%s", group->prefix, path);
    const struct kvb_conf_key *key = NULL;
    switch (find_key_row(group, path, &key)) {
    case match_none:
        report_unknown(group, member, path, full);
        break;
    case match_key:
        check_scope(group, member, key, full);
        break;
    case match_group:
        if (!config_setting_is_group(member)) {
            kvb_conf_add_error(
                group->conf, config_setting_source_line(member), full, "expected a group { ... }");
        } else {
            const size_t len = strlen(path);
            (void)snprintf(path + len, sizeof path - len, ".");
            check_group(group, member, path);
        }
        break;
    }
}

/* Descends into groups that have rows.  Reports an unknown group and does not descend into it. */
static void check_group(const struct group *group, const config_setting_t *setting, const char *at)
{
    const int count = config_setting_length(setting);

    for (int i = 0; i < count; i++) {
        check_member(group, config_setting_get_elem(setting, (unsigned)i), at);
    }
}

/* ---- Groups and lists ------------------------------------------------------------------ */

static kvb_status read_group(const struct group *group, void *out);

static void say_missing(const struct group *group, const struct kvb_conf_key *key)
{
    char path[path_bytes];

    (void)snprintf(path, sizeof path, "%s%s", group->prefix, key->path);
    kvb_conf_error(group->conf, path, "is missing and has no default: add it");
}

static kvb_status read_items(
    const struct value *value, const struct kvb_conf_table *table, const void *defaults,
    uint8_t *items)
{
    const int count = config_setting_length(value->setting);

    for (int i = 0; i < count; i++) {
        char prefix[path_bytes];
        config_setting_t *item = config_setting_get_elem(value->setting, (unsigned)i);
        (void)snprintf(prefix, sizeof prefix, "%s[%d].", value->key->path, i);
        const struct group group = { .conf = value->conf,
                                     .table = table,
                                     .prefix = prefix,
                                     .setting = item,
                                     .defaults = defaults };
        if (!config_setting_is_group(item)) {
            wrong(value, "entry %d is no group { ... }", i);
        } else {
            KVB_TRY(read_group(&group, items + (size_t)i * table->bytes));
        }
    }
    return KVB_OK;
}

static kvb_status fill_list(const struct value *value, const void *defaults, void *out)
{
    const struct kvb_conf_table *table = value->key->items;
    const size_t count = (size_t)config_setting_length(value->setting);
    KVB_OWN(kvb_own_free) uint8_t *items = calloc(count ? count : 1, table->bytes);

    if (!items) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(read_items(value, table, defaults, items));
    memcpy(value->field, &items, sizeof items);
    memcpy((uint8_t *)out + value->key->count_offset, &count, sizeof count);
    items = NULL;
    return KVB_OK;
}

static kvb_status read_conf_list(const struct value *value, const void *defaults, void *out)
{
    const struct kvb_conf_key *key = value->key;

    if (!config_setting_is_list(value->setting)) {
        wrong(value, "expected a list of groups ( { ... }, { ... } )");
        return KVB_OK;
    }
    const int count = config_setting_length(value->setting);
    if ((uint64_t)count < key->min || (uint64_t)count > key->max) {
        wrong(value, "has %d entries: give %" PRIu64 " .. %" PRIu64, count, key->min, key->max);
        return KVB_OK;
    }
    return fill_list(value, defaults, out);
}

/* The file need not have the group: then it has the default of each key. */
static kvb_status read_defaults(const struct value *value)
{
    char prefix[path_bytes];
    struct group group = {
        .conf = value->conf, .table = value->key->items, .prefix = prefix, .is_defaults = true
    };

    (void)snprintf(prefix, sizeof prefix, "%s.", value->key->path);
    if (value->setting && !config_setting_is_group(value->setting)) {
        wrong(value, "expected a group { ... }");
    } else if (value->setting) {
        group.setting = config_setting_get_member(
            config_setting_parent(value->setting), config_setting_name(value->setting));
    }
    return read_group(&group, value->field);
}

/* The group of defaults for this list; NULL: there is none. */
static const void *
defaults_of_list(const struct group *group, const struct kvb_conf_key *list, const void *out)
{
    for (size_t i = 0; i < group->table->count; i++) {
        const struct kvb_conf_key *key = &group->table->keys[i];
        if (key->type == KVB_CONF_DEFAULTS && key->items == list->items) {
            return (const uint8_t *)out + key->offset;
        }
    }
    return group->list_defaults;
}

static void prefill(const struct value *value)
{
    const enum kvb_conf_type type = value->key->type;

    if (value->key->fallback) {
        types[type].take_default(value);
    } else if (type == KVB_CONF_TEXT) {
        put_text(value, "");
    } else if (type == KVB_CONF_U64 || type == KVB_CONF_U32) {
        memset(value->field, 0xff, value->key->bytes); /* cross checks see an absent key */
    }
}

/* Copies what the group of defaults has, which may be the default of the key. */
static void inherit(const struct group *group, const struct kvb_conf_key *key, void *out)
{
    const uint8_t *defaults = group->defaults;

    memcpy((uint8_t *)out + key->offset, defaults + key->offset, key->bytes);
    if (key->type == KVB_CONF_U64S) {
        memcpy((uint8_t *)out + key->count_offset, defaults + key->count_offset, sizeof(size_t));
    }
}

static bool has_text(const struct kvb_conf_key *key, const void *of)
{
    const char *text = (const char *)of + key->offset;

    if (key->type == KVB_CONF_TEXT) {
        memcpy(&text, (const uint8_t *)of + key->offset, sizeof text);
    }
    return text[0] != '\0';
}

/* Whether the group of defaults gives a value to a key that has none of its own. */
static bool is_inherited(const struct group *group, const struct kvb_conf_key *key)
{
    static const uint8_t absent[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

    if (!group->defaults || key->scope == KVB_CONF_OF_A_GROUP) {
        return false;
    }
    switch (key->type) {
    case KVB_CONF_STRING:
    case KVB_CONF_TEXT:
        return has_text(key, group->defaults);
    case KVB_CONF_U64:
    case KVB_CONF_U32:
        return memcmp((const uint8_t *)group->defaults + key->offset, absent, key->bytes) != 0;
    default:
        return true;
    }
}

/* Whether the key that may replace another is in the group or its defaults. */
static bool is_replaced(const struct group *group, const char *instead)
{
    const struct kvb_conf_key *key = NULL;

    return config_setting_lookup(group->setting, instead) ||
           (find_key_row(group, instead, &key) == match_key && is_inherited(group, key));
}

static bool may_be_missing(const struct group *group, const struct kvb_conf_key *key)
{
    if (key->type == KVB_CONF_LIST) {
        return key->min == 0;
    }
    return group->is_defaults || is_inherited(group, key) || key->fallback || key->otherwise ||
           key->type == KVB_CONF_U64S || key->type == KVB_CONF_PAIRS ||
           key->type == KVB_CONF_TEXTS || key->type == KVB_CONF_DEFAULTS ||
           (key->instead && is_replaced(group, key->instead));
}

static kvb_status
read_conf_key(const struct group *group, const struct kvb_conf_key *key, void *out)
{
    const struct value value = {
        .conf = group->conf,
        .group = group->prefix,
        .key = key,
        .setting = group->setting ? config_setting_lookup(group->setting, key->path) : NULL,
        .field = (uint8_t *)out + key->offset,
        .may_be_empty = group->is_defaults,
    };

    if (key->type == KVB_CONF_DEFAULTS) {
        return read_defaults(&value);
    }
    prefill(&value);
    if (!value.setting) {
        if (is_inherited(group, key)) {
            inherit(group, key, out);
        } else if (!may_be_missing(group, key)) {
            say_missing(group, key);
        }
        return KVB_OK;
    }
    if (key->type == KVB_CONF_LIST) {
        return read_conf_list(&value, defaults_of_list(group, key, out), out);
    }
    if (key->type == KVB_CONF_U64S) {
        read_numbers(&value, out);
    } else {
        types[key->type].read(&value);
    }
    return KVB_OK;
}

static kvb_status read_group(const struct group *group, void *out)
{
    if (group->setting) {
        check_group(group, group->setting, "");
    }
    for (size_t i = 0; i < group->table->count; i++) {
        KVB_TRY(read_conf_key(group, &group->table->keys[i], out));
    }
    return KVB_OK;
}

kvb_status kvb_conf_read_more(
    struct kvb_conf *conf, const struct kvb_conf_table *table, const void *defaults, void *out)
{
    const struct group root = { .conf = conf,
                                .table = table,
                                .prefix = "",
                                .setting = config_root_setting(conf->tree),
                                .list_defaults = defaults };
    const kvb_status status = read_group(&root, out);

    if (status != KVB_OK) {
        kvb_conf_done(table, out);
    }
    return status;
}

kvb_status kvb_conf_read(struct kvb_conf *conf, const struct kvb_conf_table *table, void *out)
{
    return kvb_conf_read_more(conf, table, NULL, out);
}

void kvb_conf_done(const struct kvb_conf_table *table, void *out)
{
    for (size_t i = 0; i < table->count; i++) {
        if (table->keys[i].type == KVB_CONF_LIST) {
            uint8_t *items = NULL;
            memcpy(&items, (uint8_t *)out + table->keys[i].offset, sizeof items);
            free(items);
        }
    }
    memset(out, 0, table->bytes);
}
