#include "core/log.h"

#include "core/clock.h"
#include "core/log_writer.h"
#include "core/utf8.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const uint64_t last_lines_ns = KVB_NS_PER_S; /* how long kvb_log_stop() waits */

enum {
    line_bytes = kvb_log_line_bytes, /* PIPE_BUF: other writers cannot split such a line */
    max_text_bytes = 512,            /* a longer message or value is cut */
    max_escape_bytes = 6,            /* \u001f */
    max_character_bytes = 4,         /* UTF-8 */
    limit_period_s = 10,             /* repeated messages are summarised this often */
};

/* Of one lasting problem. */
static const struct kvb_backoff_range between_lines = { .first_ns = limit_period_s * KVB_NS_PER_S,
                                                        .longest_ns = 600 * KVB_NS_PER_S };

static const char *const level_names[KVB_LOG_LEVEL_COUNT] = {
    [KVB_LOG_ERROR] = "error",
    [KVB_LOG_WARNING] = "warning",
    [KVB_LOG_INFO] = "info",
    [KVB_LOG_DEBUG] = "debug",
};

const char *kvb_log_level_name(enum kvb_log_level level)
{
    return (unsigned)level < KVB_LOG_LEVEL_COUNT ? level_names[level] : "unknown";
}

const char *kvb_log_u64(char text[24], uint64_t value)
{
    (void)snprintf(text, 24, "%llu", (unsigned long long)value);
    return text;
}

/* Precedes the digits of a number; no other value of a pair begins with it and goes on with digits
 * alone. */
enum { number_mark = '\1' };

const char *kvb_log_number(char text[24], uint64_t value)
{
    text[0] = number_mark;
    (void)snprintf(text + 1, 23, "%llu", (unsigned long long)value);
    return text;
}

/* The digits of a value of kvb_log_number(); NULL: it is a text. */
static const char *digits_of(const char *value)
{
    const bool is_number = value[0] == number_mark && value[1] != '\0' &&
                           value[1 + strspn(value + 1, "0123456789")] == '\0';

    return is_number ? value + 1 : NULL;
}

bool kvb_log_limit_due(struct kvb_log_limit *limit, uint64_t now_ns, uint64_t *out_count)
{
    limit->suppressed++;
    if (limit->last_ns != 0 && now_ns - limit->last_ns < limit_period_s * KVB_NS_PER_S) {
        return false;
    }
    /* The count includes the line that is now written. */
    *out_count = limit->suppressed;
    limit->suppressed = 0;
    limit->last_ns = now_ns != 0 ? now_ns : 1; /* 0 means "never logged" */
    return true;
}

bool kvb_log_backoff_due(struct kvb_log_backoff *backoff, uint64_t now_ns)
{
    if (!kvb_backoff_is_due(&backoff->lines, now_ns)) {
        return false;
    }
    (void)kvb_backoff_fail(&backoff->lines, &between_lines, now_ns);
    return true;
}

void kvb_log_backoff_end(struct kvb_log_backoff *backoff)
{
    kvb_backoff_end(&backoff->lines, &between_lines);
}

/* ---- One line; allocates nothing, because memory may be out ------------------------- */

struct line {
    size_t len;
    bool is_full; /* something was left out because it did not fit */
    char text[line_bytes];
};

/* Reserved at the end of a line for the closing brace and the newline. */
enum { line_tail_bytes = 2 };

static void put_log_bytes(struct line *line, const char *bytes, size_t len)
{
    if (line->is_full || len > sizeof line->text - line_tail_bytes - line->len) {
        line->is_full = true;
        return;
    }
    memcpy(line->text + line->len, bytes, len);
    line->len += len;
}

static void put_log_text(struct line *line, const char *text)
{
    put_log_bytes(line, text, strlen(text));
}

/* ---- Escaping ------------------------------------------------------------------------ */

/* Returns the code point of a control character, or 0 for any other character.  The character at
 * text has len bytes.  Terminals also obey the control characters U+0080 to U+009F. */
static unsigned char control_point(const unsigned char *text, size_t len)
{
    if (len == 2 && text[0] == 0xc2 && text[1] <= 0x9f) {
        return text[1]; /* c2 80 .. c2 9f */
    }
    return len == 1 && (text[0] < 0x20 || text[0] == 0x7f) ? text[0] : 0;
}

/* Writes the character at text, escaped as in JSON.  Returns how many bytes of text it read.
 * Writes each byte that is not UTF-8 as \u00XX. */
static size_t put_character(struct line *line, const unsigned char *text)
{
    char escape[max_escape_bytes + 1];
    const size_t len = kvb_utf8_len(text, max_character_bytes);
    const unsigned char point = len == 0 ? text[0] : control_point(text, len);

    if (point > 0) {
        (void)snprintf(escape, sizeof escape, "\\u00%02x", point);
        put_log_bytes(line, escape, max_escape_bytes);
        return len == 0 ? 1 : len;
    }
    if (text[0] == '"' || text[0] == '\\') {
        put_log_bytes(line, "\\", 1);
    }
    put_log_bytes(line, (const char *)text, len);
    return len;
}

static void put_log_escaped(struct line *line, const char *text)
{
    size_t at = 0;

    while (text[at] != '\0' && at < max_text_bytes) {
        at += put_character(line, (const unsigned char *)text + at);
    }
    if (text[at] != '\0') {
        put_log_text(line, "...");
    }
}

static void put_log_quoted(struct line *line, const char *text)
{
    put_log_bytes(line, "\"", 1);
    put_log_escaped(line, text);
    put_log_bytes(line, "\"", 1);
}

/* Whether the value needs no quotes in the plain form. */
static bool is_bare(const char *text)
{
    const char *at = text;

    while (*at > ' ' && *at < 0x7f && !strchr("\"\\=", *at)) {
        at++;
    }
    return *at == '\0' && at != text;
}

/* ---- The two forms -------------------------------------------------------------------- */

struct record {
    enum kvb_log_level level;
    const char *room;
    const char *message;
    char time[kvb_clock_text_bytes];
};

static void put_plain_head(struct line *line, const struct record *record)
{
    put_log_text(line, kvb_log_level_name(record->level));
    put_log_bytes(line, " ", 1);
    put_log_text(line, record->time);
    put_log_bytes(line, " ", 1);
    put_log_escaped(line, record->room);
    put_log_bytes(line, " ", 1);
    put_log_escaped(line, record->message);
}

static void put_json_pair(struct line *line, const char *key, const char *value)
{
    const char *digits = digits_of(value);

    put_log_bytes(line, line->len == 0 ? "{" : ",", 1);
    put_log_quoted(line, key);
    put_log_bytes(line, ":", 1);
    if (digits) {
        put_log_text(line, digits);
    } else {
        put_log_quoted(line, value);
    }
}

static void put_json_head(struct line *line, const struct record *record)
{
    put_json_pair(line, "level", kvb_log_level_name(record->level));
    put_json_pair(line, "time", record->time);
    put_json_pair(line, "room", record->room);
    put_json_pair(line, "message", record->message);
}

static void put_plain_pair(struct line *line, const char *key, const char *value)
{
    const char *digits = digits_of(value);

    put_log_bytes(line, " ", 1);
    put_log_escaped(line, key);
    put_log_bytes(line, "=", 1);
    if (digits) {
        put_log_text(line, digits);
    } else if (is_bare(value)) {
        put_log_escaped(line, value); /* cuts it too */
    } else {
        put_log_quoted(line, value);
    }
}

/* Writes a pair.  A pair that does not fit is left out, and so are all later ones. */
static void put_pair(struct line *line, bool is_json, const char *key, const char *value)
{
    const size_t before = line->len;

    if (is_json) {
        put_json_pair(line, key, value);
    } else {
        put_plain_pair(line, key, value);
    }
    /* No half a pair: a reader would take it for a whole one. */
    if (line->is_full) {
        line->len = before;
    }
}

/* ---- Output -------------------------------------------------------------------------- */

static void write_line(const struct kvb_log *log, const struct line *line)
{
    if (log->writer) {
        kvb_log_writer_put(log->writer, line->text, line->len);
    } else {
        kvb_log_write_all(log->fd, line->text, line->len);
    }
}

static void put_log_head(struct line *line, bool is_json, struct record *record)
{
    kvb_clock_format_us(kvb_clock_wall_us(), record->time);
    if (is_json) {
        put_json_head(line, record);
    } else {
        put_plain_head(line, record);
    }
}

static void end_log_line(struct line *line, bool is_json)
{
    if (is_json) {
        line->text[line->len++] = '}';
    }
    line->text[line->len++] = '\n';
}

static size_t note_dropped(void *context, uint64_t dropped, char *text)
{
    const struct kvb_log *log = context;
    struct record record = { .level = KVB_LOG_WARNING,
                             .room = "log",
                             .message = "lines were dropped: the log was not read fast enough" };
    struct line line = { .len = 0 };
    char count[24];

    put_log_head(&line, log->is_json, &record);
    put_pair(&line, log->is_json, "count", kvb_log_number(count, dropped));
    end_log_line(&line, log->is_json);
    memcpy(text, line.text, line.len);
    return line.len;
}

kvb_status kvb_log_start(struct kvb_log *log)
{
    return kvb_log_writer_start(log->fd, note_dropped, log, &log->writer);
}

void kvb_log_stop(struct kvb_log *log)
{
    kvb_log_writer_stop(log->writer, last_lines_ns);
    log->writer = NULL;
}

uint64_t kvb_log_dropped(const struct kvb_log *log)
{
    return log && log->writer ? kvb_log_writer_dropped(log->writer) : 0;
}

void kvb_log_write(
    struct kvb_log *log, enum kvb_log_level level, const char *room, const char *message, ...)
{
    va_list pairs;

    if (!log || level > log->level) {
        return;
    }
    struct record record = { .level = level, .room = room, .message = message };
    struct line line = { .len = 0 };
    put_log_head(&line, log->is_json, &record);
    va_start(pairs, message);
    /* The analyzer does not see it begin just above. NOLINTNEXTLINE(clang-analyzer-valist.*) */
    for (const char *key; (key = va_arg(pairs, const char *));) {
        const char *value = va_arg(pairs, const char *);
        if (!value) {
            break; /* a key without a value ends the list */
        }
        put_pair(&line, log->is_json, key, value);
    }
    va_end(pairs);
    end_log_line(&line, log->is_json);
    write_line(log, &line);
}
