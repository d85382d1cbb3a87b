#include "model/speculation.h"

#include "core/own.h"

#include <string.h>
#include <strings.h>

static bool is_one_of(const char *text, const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, texts[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* "mtp", and the older deepseek_mtp, qwen3_next_mtp, ..., which vLLM takes for it. */
static bool is_mtp(const char *method)
{
    static const char end[] = "_mtp";
    const size_t len = strlen(method);

    return strcmp(method, "mtp") == 0 ||
           (len >= sizeof end - 1 && strcmp(method + len - (sizeof end - 1), end) == 0);
}

static bool has_word(const char *model, const char *word)
{
    const size_t len = strlen(word);

    for (; *model != '\0'; model++) {
        if (strncasecmp(model, word, len) == 0) {
            return true;
        }
    }
    return false;
}

/* Methods whose drafter vLLM loads, so that the drafter's name may make another method of them. */
static bool is_of_drafter(const char *method)
{
    static const char *const methods[] = { "", "draft_model", "medusa", "mlp_speculator" };

    return is_one_of(method, methods, KVB_COUNT_OF(methods));
}

/* The method that vLLM makes of these, in the order of its own tests; "": it depends on what is not
 * here. */
static const char *method_of(const struct kvb_speculative_config *config)
{
    static const struct {
        const char *word;
        const char *method;
    } words[] = { { "eagle-", "eagle" },
                  { "eagle3", "eagle3" },
                  { "dflash", "dflash" },
                  { "dspark", "dspark" } };
    static const char *const ngrams[] = { "ngram", "[ngram]" };

    if (config->is_resolved || !is_of_drafter(config->method)) {
        return config->method;
    }
    if (config->method[0] == '\0' && is_one_of(config->model, ngrams, KVB_COUNT_OF(ngrams))) {
        return "ngram";
    }
    for (size_t i = 0; i < KVB_COUNT_OF(words); i++) {
        if (has_word(config->model, words[i].word)) {
            return words[i].method;
        }
    }
    /* A drafter of another name is a draft model, unless its config.json has the type of one of
     * MTP: then the method becomes mtp. */
    return strcmp(config->method, "draft_model") == 0 ? "" : config->method;
}

enum kvb_speculation kvb_speculation_of(const struct kvb_speculative_config *config)
{
    static const char *const drops[] = { "eagle", "eagle3" };
    static const char *const drops_before_0_33[] = { "dflash", "dspark" };
    static const char *const keeps[] = {
        "ngram",          "[ngram]",      "ngram_gpu",
        "suffix",         "medusa",       "draft_model",
        "mlp_speculator", "custom_class", "extract_hidden_states"
    };
    const char *method = method_of(config);

    if (is_one_of(method, keeps, KVB_COUNT_OF(keeps))) {
        return KVB_SPECULATION_KEEPS;
    }
    if (is_mtp(method) || is_one_of(method, drops, KVB_COUNT_OF(drops))) {
        return config->disables_drop ? KVB_SPECULATION_KEEPS : KVB_SPECULATION_DROPS;
    }
    if (is_one_of(method, drops_before_0_33, KVB_COUNT_OF(drops_before_0_33))) {
        return config->disables_drop || config->has_lookahead_option ? KVB_SPECULATION_KEEPS
                                                                     : KVB_SPECULATION_UNDECIDED;
    }
    return KVB_SPECULATION_UNDECIDED;
}

const char *kvb_speculation_source_name(enum kvb_speculation_source source)
{
    static const char *const names[KVB_SPECULATION_SOURCE_COUNT] = {
        [KVB_SPECULATION_OF_NOTHING] = "",
        [KVB_SPECULATION_OF_CONFIG] = "config",
        [KVB_SPECULATION_OF_SERVER_INFO] = "server_info",
        [KVB_SPECULATION_OF_ARGUMENTS] = "pod arguments",
        [KVB_SPECULATION_OF_PAGE] = "page",
    };
    return (unsigned)source < KVB_SPECULATION_SOURCE_COUNT ? names[source] : "unknown";
}
