#include "core/limits.h"
#include "core/own.h"
#include "kvctl/kvctl.h"
#include "wire/json/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void drop_tokens_file(FILE **file)
{
    if (*file && *file != stdin) {
        fclose(*file);
    }
}

kvb_status
kvctl_read_file(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail)
{
    enum { piece_bytes = 1 << 16 };
    KVB_OWN(drop_tokens_file) FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t got = 0;

    if (!file) {
        kvb_detail_set(detail, "%s: cannot read %s: %s", what, path, strerrordesc_np(errno));
        return KVB_BAD_INPUT;
    }
    do {
        const kvb_status status = kvb_buf_reserve(out, piece_bytes);
        if (status != KVB_OK) {
            kvb_detail_set(detail, "%s: %s: %s", what, path, kvb_status_name(status));
            return status;
        }
        got = fread(out->data + out->len, 1, piece_bytes, file);
        out->len += got;
    } while (got > 0);
    if (ferror(file)) { /* a directory can be opened but not read */
        kvb_detail_set(detail, "%s: cannot read %s: %s", what, path, strerrordesc_np(errno));
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

kvb_status
kvctl_read_text(const char *what, const char *path, struct kvb_buf *out, struct kvb_detail *detail)
{
    KVB_TRY(kvctl_read_file(what, path, out, detail));
    if (out->len > 0 && memchr(out->data, '\0', out->len)) {
        kvb_detail_set(detail, "%s: %s is no text", what, path);
        return KVB_BAD_INPUT;
    }
    return kvb_buf_append(out, "", 1);
}

/* Numbers between blanks and commas, with or without brackets around them all. */
static kvb_status
write_prompt_tokens(const char *text, struct kvb_json_writer *json, struct kvb_detail *detail)
{
    static const char between[] = " \t\r\n,[]";
    size_t count = 0;

    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end = NULL;
        errno = 0;
        const unsigned long token = strtoul(text, &end, 10);
        const bool is_whole = *end == '\0' || strchr(between, *end);
        if (text[0] < '0' || text[0] > '9' || !is_whole || errno != 0 || token > UINT32_MAX) {
            const int len = (int)strcspn(text, between);
            kvb_detail_set(
                detail, "token %zu: expected a number from 0 to 4294967295, got \"%.*s\"",
                count + 1, len > 40 ? 40 : len, text);
            return KVB_BAD_INPUT;
        }
        if (++count > kvb_max_query_tokens) {
            kvb_detail_set(detail, "more than %d tokens", kvb_max_query_tokens);
            return KVB_TOO_LARGE;
        }
        kvb_json_write_u64(json, token);
        text = end;
    }
    return KVB_OK;
}

static kvb_status write_all_tokens(
    const struct kvctl_options *options, struct kvb_json_writer *json, struct kvb_detail *detail)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf file = { 0 };

    if (options->tokens) {
        return write_prompt_tokens(options->tokens, json, detail);
    }
    kvb_buf_init(&file, kvb_max_query_body_bytes);
    KVB_TRY(kvctl_read_text("--tokens-file", options->tokens_file, &file, detail));
    return write_prompt_tokens((const char *)file.data, json, detail);
}

static void write_given_text(struct kvb_json_writer *json, const char *key, const char *text)
{
    if (text) {
        kvb_json_write_pair_text(json, key, text);
    }
}

kvb_status kvctl_write_query(
    const struct kvctl_options *options, struct kvb_buf *out, struct kvb_detail *detail)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_key(&json, "token_ids");
    kvb_json_write_begin(&json, '[');
    KVB_TRY(write_all_tokens(options, &json, detail));
    kvb_json_write_end(&json, ']');
    write_given_text(&json, "model", options->model);
    write_given_text(&json, "lora_name", options->lora);
    write_given_text(&json, "cache_salt", options->salt);
    kvb_json_write_end(&json, '}');
    return json.status;
}
