#include "core/log.h"

#include "core/clock.h"
#include "core/log_writer.h"
#include "core/own.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const uint64_t last_lines_ns = KVB_NS_PER_S; /* when the log ends */

enum {
    line_bytes = kvb_log_line_bytes, /* PIPE_BUF: no other writer tears a line apart */
    max_text_bytes = 512,            /* of a message or a value; the rest is cut */
    max_escape_bytes = 6,            /* \u001f */
    limit_period_s = 10,             /* repeated trouble is summed up this often */
    max_backoff_s = 600,             /* trouble that lasts is said this often at least */
};

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

bool kvb_log_limit_due(struct kvb_log_limit *limit, uint64_t now_ns, uint64_t *out_count)
{
    limit->suppressed++;
    if (limit->last_ns != 0 && now_ns - limit->last_ns < limit_period_s * KVB_NS_PER_S) {
        return false;
    }
    *out_count = limit->suppressed;
    limit->suppressed = 0;
    limit->last_ns = now_ns != 0 ? now_ns : 1; /* 0 stands for "never said" */
    return true;
}

bool kvb_log_backoff_due(struct kvb_log_backoff *backoff, uint64_t now_ns)
{
    const uint64_t doubled_ns = 2 * backoff->pause_ns;

    if (backoff->next_ns > 0 && now_ns < backoff->next_ns) {
        return false;
    }
    backoff->pause_ns = backoff->pause_ns == 0                      ? limit_period_s * KVB_NS_PER_S
                        : doubled_ns < max_backoff_s * KVB_NS_PER_S ? doubled_ns
                                                                    : max_backoff_s * KVB_NS_PER_S;
    backoff->next_ns = now_ns + backoff->pause_ns;
    return true;
}

void kvb_log_backoff_end(struct kvb_log_backoff *backoff)
{
    if (backoff->pause_ns > 0) {
        backoff->next_ns -= backoff->pause_ns - limit_period_s * KVB_NS_PER_S;
        backoff->pause_ns = 0;
    }
}

/* ---- One line, without allocating: what is wrong may be memory -------------------- */

struct line {
    size_t len;
    bool is_full; /* something did not fit and was left out */
    char text[line_bytes];
};

/* Room for the closing brace and the line end is always kept. */
enum { line_tail_bytes = 2 };

static void put(struct line *line, const char *bytes, size_t len)
{
    if (line->is_full || len > sizeof line->text - line_tail_bytes - line->len) {
        line->is_full = true;
        return;
    }
    memcpy(line->text + line->len, bytes, len);
    line->len += len;
}

static void put_text(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* ---- Escaping ------------------------------------------------------------------------ */

/* The lead byte's own bits, how many bytes follow, and the least code point that
 * needs that many: shorter spellings of it are not UTF-8. */
struct utf8_lead {
    unsigned char mask, mark, following;
    unsigned least;
};

static const struct utf8_lead utf8_leads[] = {
    { 0x80, 0x00, 0, 0 },
    { 0xe0, 0xc0, 1, 0x80 },
    { 0xf0, 0xe0, 2, 0x800 },
    { 0xf8, 0xf0, 3, 0x10000 },
};

/* Bytes of the UTF-8 character at text, 0 when it is none.  Stops at the NUL. */
static size_t read_character(const unsigned char *text, const struct utf8_lead *lead, unsigned *out)
{
    unsigned point = text[0] & (unsigned char)~lead->mask;

    for (size_t i = 1; i <= lead->following; i++) {
        if ((text[i] & 0xc0U) != 0x80U) {
            return 0;
        }
        point = (point << 6U) | (text[i] & 0x3fU);
    }
    if (point < lead->least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
        return 0;
    }
    *out = point;
    return (size_t)lead->following + 1;
}

static size_t next_character(const unsigned char *text, unsigned *out_point)
{
    for (size_t i = 0; i < KVB_COUNT_OF(utf8_leads); i++) {
        if ((text[0] & utf8_leads[i].mask) == utf8_leads[i].mark) {
            return read_character(text, &utf8_leads[i], out_point);
        }
    }
    return 0;
}

/* Control characters, the second set (U+0080 ..) too: terminals obey both. */
static bool is_control(unsigned point)
{
    return point < 0x20 || (point >= 0x7f && point <= 0x9f);
}

/* Writes the character at text in JSON's spelling; returns how many bytes of text
 * it took.  What is no UTF-8 is spelt byte by byte, as \u00XX. */
static size_t put_character(struct line *line, const unsigned char *text)
{
    char escape[max_escape_bytes + 1];
    unsigned point = text[0];
    const size_t len = next_character(text, &point);

    if (len == 0 || is_control(point)) {
        (void)snprintf(escape, sizeof escape, "\\u%04x", len == 0 ? text[0] : point);
        put(line, escape, max_escape_bytes);
        return len == 0 ? 1 : len;
    }
    if (point == '"' || point == '\\') {
        put(line, "\\", 1);
    }
    put(line, (const char *)text, len);
    return len;
}

static void put_escaped(struct line *line, const char *text)
{
    size_t at = 0;

    while (text[at] != '\0' && at < max_text_bytes) {
        at += put_character(line, (const unsigned char *)text + at);
    }
    if (text[at] != '\0') {
        put_text(line, "...");
    }
}

static void put_quoted(struct line *line, const char *text)
{
    put(line, "\"", 1);
    put_escaped(line, text);
    put(line, "\"", 1);
}

/* A value of the plain form needs no quotes when nobody can mistake its end. */
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
    put_text(line, kvb_log_level_name(record->level));
    put(line, " ", 1);
    put_text(line, record->time);
    put(line, " ", 1);
    put_escaped(line, record->room);
    put(line, " ", 1);
    put_escaped(line, record->message);
}

static void put_json_pair(struct line *line, const char *key, const char *value)
{
    put(line, line->len == 0 ? "{" : ",", 1);
    put_quoted(line, key);
    put(line, ":", 1);
    put_quoted(line, value);
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
    put(line, " ", 1);
    put_escaped(line, key);
    put(line, "=", 1);
    if (is_bare(value)) {
        put_escaped(line, value); /* also cuts it */
    } else {
        put_quoted(line, value);
    }
}

/* A pair that does not fit is left out whole, and so are the ones after it. */
static void put_pair(struct line *line, bool is_json, const char *key, const char *value)
{
    const size_t before = line->len;

    if (is_json) {
        put_json_pair(line, key, value);
    } else {
        put_plain_pair(line, key, value);
    }
    if (line->is_full) {
        line->len = before;
    }
}

/* ---- Where lines go ----------------------------------------------------------------- */

static void write_line(const struct kvb_log *log, const struct line *line)
{
    if (log->writer) {
        kvb_log_writer_put(log->writer, line->text, line->len);
    } else {
        kvb_log_write_all(log->fd, line->text, line->len);
    }
}

static void put_head(struct line *line, bool is_json, struct record *record)
{
    kvb_clock_format_us(kvb_clock_wall_us(), record->time);
    if (is_json) {
        put_json_head(line, record);
    } else {
        put_plain_head(line, record);
    }
}

static void end_line(struct line *line, bool is_json)
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

    put_head(&line, log->is_json, &record);
    put_pair(&line, log->is_json, "count", kvb_log_u64(count, dropped));
    end_line(&line, log->is_json);
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
    put_head(&line, log->is_json, &record);
    va_start(pairs, message);
    for (const char *key; (key = va_arg(pairs, const char *));) {
        const char *value = va_arg(pairs, const char *);
        if (!value) {
            break; /* a key without a value: the list ends here */
        }
        put_pair(&line, log->is_json, key, value);
    }
    va_end(pairs);
    end_line(&line, log->is_json);
    write_line(log, &line);
}
