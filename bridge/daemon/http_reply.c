#include "daemon/http_reply.h"

#include "wire/json/writer.h"

#include <string.h>
#include <strings.h>

static const char json_type[] = "application/json";

kvb_status kvb_http_write_error(const char *sentence, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "error", sentence);
    kvb_json_write_end(&json, '}');
    return json.status;
}

void kvb_http_refuse(struct kvb_http_answer *answer, unsigned status, const char *sentence)
{
    kvb_buf_reset(&answer->body);
    answer->status = status;
    answer->content_type = json_type;
    answer->allow = NULL;
    if (kvb_http_write_error(sentence, &answer->body) != KVB_OK) {
        kvb_buf_reset(&answer->body); /* out of memory: send the status alone */
    }
}

bool kvb_http_is_json(const char *content_type)
{
    const size_t len = strlen(json_type);

    return strncasecmp(content_type, json_type, len) == 0 &&
           (content_type[len] == '\0' || content_type[len] == ';' || content_type[len] == ' ');
}

bool kvb_http_parameter(const char *query, const char *key, char *out, size_t out_bytes)
{
    const size_t key_len = strlen(key);

    for (const char *at = query; *at;) {
        const size_t len = strcspn(at, "&");
        if (len > key_len && strncmp(at, key, key_len) == 0 && at[key_len] == '=') {
            const size_t value_len = len - key_len - 1;
            if (value_len >= out_bytes) {
                return false;
            }
            memcpy(out, at + key_len + 1, value_len);
            out[value_len] = '\0';
            return true;
        }
        at += len + (at[len] == '&');
    }
    return false;
}
