#include "kvctl/kvctl.h"

#include "core/own.h"
#include "wire/json/tree.h"

#include <string.h>

enum { cell_bytes = 128, max_columns = 24, max_path_bytes = 256 };

/* The member at path "a.b.c"; NULL when it is missing. */
static struct json_object *at_path(struct json_object *object, const char *path)
{
    char name[cell_bytes];

    while (object && *path) {
        /* One name of the path at a time. */
        const size_t len = strcspn(path, ".");
        if (len >= sizeof name || !json_object_is_type(object, json_type_object)) {
            return NULL;
        }
        memcpy(name, path, len);
        name[len] = '\0';
        object = json_object_object_get(object, name);
        path += len + (path[len] == '.');
    }
    return object;
}

/* Replaces control characters, because texts from peers must not control the terminal. */
static void make_harmless(char *text)
{
    unsigned point = 0;

    while (*text) {
        size_t control = kvctl_control_at(text, strlen(text), &point);
        /* A harmless character stays: past its first byte, then past the rest. */
        text += control == 0;
        for (; control > 0; control--) {
            *text++ = '?';
        }
        while (((unsigned char)*text & 0xc0U) == 0x80) { /* the rest of a longer character */
            text++;
        }
    }
}

static void value_text(struct json_object *value, char *text, size_t size)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        (void)snprintf(text, size, "-");
        break;
    case json_type_double:
        (void)snprintf(text, size, "%.6g", json_object_get_double(value));
        break;
    default:
        /* Truncates a long text; json-c keeps all 64 bits of an integer. */
        (void)snprintf(text, size, "%s", json_object_get_string(value));
        break;
    }
    make_harmless(text);
    /* An empty cell would look like a column that is missing. */
    if (text[0] == '\0') {
        (void)snprintf(text, size, "-");
    }
}

void kvctl_text_at(struct json_object *object, const char *path, char *text, size_t size)
{
    value_text(at_path(object, path), text, size);
}

/* ---- Tables ------------------------------------------------------------------------- */

static void measure_columns(
    struct json_object *row, const struct kvctl_column *columns, size_t count, size_t widths[])
{
    char text[cell_bytes];

    for (size_t i = 0; i < count; i++) {
        kvctl_text_at(row, columns[i].path, text, sizeof text);
        const size_t len = strlen(text);
        widths[i] = len > widths[i] ? len : widths[i];
    }
}

static void print_cell(FILE *out, const char *text, size_t width, bool is_right, bool is_last)
{
    if (is_right) {
        fprintf(out, "%*s", (int)width, text);
    } else {
        fprintf(out, "%-*s", is_last ? 0 : (int)width, text);
    }
    fputs(is_last ? "\n" : "  ", out);
}

void kvctl_print_table(
    FILE *out, struct json_object *rows, const struct kvctl_column *columns, size_t column_count)
{
    const size_t count = column_count < max_columns ? column_count : max_columns;
    const size_t row_count = kvb_json_list_len(rows);
    size_t widths[max_columns];
    char text[cell_bytes];

    if (row_count == 0) {
        fputs("(none)\n", out);
        return;
    }
    /* A column is as wide as the widest of its title and its cells. */
    for (size_t i = 0; i < count; i++) {
        widths[i] = strlen(columns[i].title);
    }
    for (size_t r = 0; r < row_count; r++) {
        measure_columns(json_object_array_get_idx(rows, r), columns, count, widths);
    }
    for (size_t i = 0; i < count; i++) {
        print_cell(out, columns[i].title, widths[i], columns[i].is_right, i + 1 == count);
    }
    for (size_t r = 0; r < row_count; r++) {
        for (size_t i = 0; i < count; i++) {
            kvctl_text_at(json_object_array_get_idx(rows, r), columns[i].path, text, sizeof text);
            print_cell(out, text, widths[i], columns[i].is_right, i + 1 == count);
        }
    }
}

const struct kvctl_column *kvctl_stream_columns(size_t *out_count)
{
    static const struct kvctl_column columns[] = {
        { "WORKER", "worker_id", true },
        { "RANK", "dp_rank", true },
        { "STATE", "state", false },
        { "REASON", "reason", false },
        { "DEVICE", "blocks.device", true },
        { "HOST", "blocks.host", true },
        { "DISK", "blocks.disk", true },
        { "DOUBTFUL", "doubtful", true },
        { "MISSING<=", "missing_at_most", true },
        { "LAST EVENT", "last_event_id", true },
        { "SIZE", "block_size", true },
        { "MODEL", "model", false },
        { "NAMESPACE", "namespace", false },
        { "COMPONENT", "component", false },
    };

    *out_count = KVB_COUNT_OF(columns);
    return columns;
}

/* ---- Trees --------------------------------------------------------------------------- */

/* Prints everything below `path`; when out is NULL it only measures the width. */
static void
walk_tree(FILE *out, struct json_object *value, char path[max_path_bytes], size_t *width)
{
    const size_t len = strlen(path);
    char text[cell_bytes];

    if (json_object_is_type(value, json_type_object)) {
        json_object_object_foreach(value, name, member)
        {
            (void)snprintf(path + len, max_path_bytes - len, "%s%s", len > 0 ? "." : "", name);
            walk_tree(out, member, path, width);
            /* The path is one buffer for the whole walk: it shrinks again behind each member. */
            path[len] = '\0';
        }
        return;
    }
    if (out) {
        value_text(value, text, sizeof text);
        make_harmless(path);
        fprintf(out, "%-*s  %s\n", (int)*width, path, text);
    } else if (len > *width) {
        *width = len;
    }
}

void kvctl_print_tree(FILE *out, struct json_object *root)
{
    char path[max_path_bytes] = "";
    size_t width = 0;

    walk_tree(NULL, root, path, &width);
    walk_tree(out, root, path, &width);
}
