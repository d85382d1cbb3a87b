#include "pods/pod.h"

#include "core/decimal.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "pods/command.h"
#include "wire/json/tree.h"

#include <stdio.h>
#include <string.h>

/* json-c needs up to 800 bytes for each bracket.  A usual pod has some hundred of them, most in
 * managedFields. */
enum { max_depth = 31, max_containers = 1 << 14, max_values = 1 << 16 };
enum { max_speculative_values = 1 << 10 };

/* ---- Presets ---- */

/* The keys of labels or annotations; NULL: the preset has none. */
struct preset {
    const char *name;
    const char *selector;
    const char *model;
    const char *role;
    const char *lora;
    const char *http_port;
    const char *metrics_port;
    const char *rank_ports; /* its value is a list of ports, one for each rank */
    uint32_t events;
    uint32_t replay;
    uint32_t metrics;
};

/* clang-format off */
static const struct preset presets[KVB_POD_PRESET_COUNT] = {
    [KVB_POD_PRESET_PORTS] = { .name = "ports", .selector = "",
        .events = 5557, .replay = 6557, .metrics = 8000 },
    [KVB_POD_PRESET_AIBRIX] = { .name = "aibrix",
        .selector = "model.aibrix.ai/kv-events-enabled=true",
        .model = "model.aibrix.ai/name", .role = "role-name",
        .lora = "model.aibrix.ai/lora-id",
        .http_port = "model.aibrix.ai/port", .metrics_port = "model.aibrix.ai/metric-port",
        .events = 5557, .replay = 5558, .metrics = 8000 },
    [KVB_POD_PRESET_LLM_D] = { .name = "llm-d",
        .selector = "llm-d.ai/inference-serving=true",
        .model = "llm-d.ai/model", .role = "llm-d.ai/role",
        .rank_ports = "llm-d.ai/active-ports",
        .events = 5557, .replay = 0, .metrics = 8000 },
    [KVB_POD_PRESET_DYNAMO] = { .name = "dynamo",
        .selector = "nvidia.com/dynamo-component-type in (worker,prefill,decode)",
        .model = "nvidia.com/dynamo-base-model",
        .role = "nvidia.com/dynamo-sub-component-type",
        .events = 5557, .replay = 0, .metrics = 8000 },
};
/* clang-format on */

const char *kvb_pod_preset_name(enum kvb_pod_preset preset)
{
    return (unsigned)preset < KVB_POD_PRESET_COUNT ? presets[preset].name : "";
}

const char *kvb_pod_preset_selector(enum kvb_pod_preset preset)
{
    return presets[preset].selector;
}

const char *kvb_pod_preset_model(enum kvb_pod_preset preset)
{
    return presets[preset].model ? presets[preset].model : "";
}

/* ---- Names ---- */

/* clang-format off */
static const struct {
    const char *name;
    const char *remedy;
} states[KVB_POD_STATE_COUNT] = {
    [KVB_POD_TAKEN] = { "taken", "" },
    [KVB_POD_PHASE] = { "phase", "it is not Running: it has not started yet, or it has ended" },
    [KVB_POD_NO_IP] = { "no_ip", "it has no address yet" },
    [KVB_POD_NO_PORT] = { "no_port",
        "name the container port kv-events, or set defaults.events_port" },
    [KVB_POD_NO_MODEL] = { "no_model",
        "no label or argument names its model: set kubernetes.model_label or defaults.model" },
    [KVB_POD_NO_ID] = { "no_id",
        "the label that kubernetes.id_from names is missing or is not a number" },
    [KVB_POD_RELABELLED] = { "relabelled", "its labels no longer match kubernetes.selector" },
    [KVB_POD_ID_TAKEN] = { "id_taken",
        "an older pod has the same worker id: set kubernetes.id_from = \"uid\"" },
    [KVB_POD_ADDRESS_TAKEN] = { "address_taken", "a younger pod has the same address and port" },
    [KVB_POD_OTHER_LIST] = { "other_list",
        "a worker from the file, a registration or a DNS name has the same id or address" },
    [KVB_POD_FULL] = { "full", "the bridge has no room: raise LimitNOFILE, or split the fleet" },
};
/* clang-format on */

const char *kvb_pod_state_name(enum kvb_pod_state state)
{
    return (unsigned)state < KVB_POD_STATE_COUNT ? states[state].name : "";
}

const char *kvb_pod_state_remedy(enum kvb_pod_state state)
{
    return (unsigned)state < KVB_POD_STATE_COUNT ? states[state].remedy : "";
}

const char *kvb_pod_refusal_name(enum kvb_pod_refusal refusal)
{
    static const char *const names[KVB_POD_REFUSAL_COUNT] = {
        [KVB_POD_TOO_LARGE] = "too_large",
        [KVB_POD_INVALID] = "invalid",
        [KVB_POD_OTHER] = "other_kind",
        [KVB_POD_CEILING] = "ceiling",
    };

    return (unsigned)refusal < KVB_POD_REFUSAL_COUNT ? names[refusal] : "";
}

kvb_status kvb_pod_rules_take_id(struct kvb_pod_rules *rules, const char *text)
{
    static const char label[] = "label:";
    const size_t len = strlen(text);

    if (strcmp(text, "name") == 0 || strcmp(text, "uid") == 0) {
        rules->id_from = text[0] == 'n' ? KVB_POD_ID_OF_NAME : KVB_POD_ID_OF_UID;
        return KVB_OK;
    }
    if (strncmp(text, label, sizeof label - 1) != 0 || len == sizeof label - 1 ||
        len - (sizeof label - 1) > kvb_pod_key_name_bytes) {
        return KVB_BAD_CONFIG;
    }
    rules->id_from = KVB_POD_ID_OF_LABEL;
    (void)snprintf(rules->id_label, sizeof rules->id_label, "%s", text + sizeof label - 1);
    return KVB_OK;
}

/* ---- The id of a name ---- */

/* SipHash-1-3: one round for each word of eight bytes, three rounds at the end.
 *
 *     name n bytes | 0xff | zeros | length mod 256        the length is the last byte of a word
 */

struct sip_state {
    uint64_t v0;
    uint64_t v1;
    uint64_t v2;
    uint64_t v3;
};

static uint64_t rotate_left(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static void sip_round(struct sip_state *state)
{
    state->v0 += state->v1;
    state->v1 = rotate_left(state->v1, 13) ^ state->v0;
    state->v0 = rotate_left(state->v0, 32);
    state->v2 += state->v3;
    state->v3 = rotate_left(state->v3, 16) ^ state->v2;
    state->v0 += state->v3;
    state->v3 = rotate_left(state->v3, 21) ^ state->v0;
    state->v2 += state->v1;
    state->v1 = rotate_left(state->v1, 17) ^ state->v2;
    state->v2 = rotate_left(state->v2, 32);
}

static void sip_take_word(struct sip_state *state, uint64_t word)
{
    state->v3 ^= word;
    sip_round(state);
    state->v0 ^= word;
}

uint64_t kvb_pod_name_hash(kvb_span name)
{
    static const uint64_t below_2_53 = (UINT64_C(1) << 53) - 1;
    /* the initial state of SipHash for a key of zeros: "somepseudorandomlygeneratedbytes" */
    struct sip_state state = { .v0 = UINT64_C(0x736f6d6570736575),
                               .v1 = UINT64_C(0x646f72616e646f6d),
                               .v2 = UINT64_C(0x6c7967656e657261),
                               .v3 = UINT64_C(0x7465646279746573) };
    uint64_t word = 0;

    for (size_t at = 0; at <= name.len; at++) {
        /* As Rust hashes a string: 0xff follows its bytes. */
        const uint64_t byte = at < name.len ? name.data[at] : 0xff;
        word |= byte << (8 * (at % 8));
        if (at % 8 == 7) {
            sip_take_word(&state, word);
            word = 0;
        }
    }
    sip_take_word(&state, word | (uint64_t)((name.len + 1) & 0xff) << 56);
    state.v2 ^= 0xff;
    for (int i = 0; i < 3; i++) {
        sip_round(&state);
    }
    return (state.v0 ^ state.v1 ^ state.v2 ^ state.v3) & below_2_53;
}

/* ---- Reading JSON ---- */

/* The text of a member; NULL: the member is absent, is not a string, or contains a NUL byte. */
static const char *pod_text_of(struct json_object *object, const char *name)
{
    struct json_object *value = kvb_json_member(object, name);

    if (!value || !json_object_is_type(value, json_type_string)) {
        return NULL;
    }
    const char *text = json_object_get_string(value);
    return strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

/* False: the member is absent or empty, too long, or has control characters; `out` is then "". */
static bool copy_text(struct json_object *object, const char *name, char *out, size_t size)
{
    const char *text = pod_text_of(object, name);
    const bool fits = text && strlen(text) < size && kvb_utf8_is_plain(text);

    (void)snprintf(out, size, "%s", fits ? text : "");
    return fits && text[0] != '\0';
}

static uint64_t pod_number_of(struct json_object *object, const char *name)
{
    uint64_t number = 0;
    const kvb_status status = kvb_json_number(kvb_json_member(object, name), INT64_MAX, &number);

    return status == KVB_OK ? number : 0;
}

/* The pod that is being decoded, and where its parts are. */
struct reading {
    const struct kvb_pod_rules *rules;
    const struct preset *preset;
    struct json_object *labels;
    struct json_object *annotations;
    struct json_object *spec;
    struct json_object *status;
    struct kvb_pod *pod;
    struct kvb_commands commands; /* owned */
    /* The container ports with these names; 0: none. */
    uint32_t events;
    uint32_t replay;
    uint32_t metrics;
    uint32_t http;
};

/* The value of a label, or else of an annotation; NULL: neither exists, or the key is empty. */
static const char *tag_of(const struct reading *reading, const char *key)
{
    const char *text = key && key[0] != '\0' ? pod_text_of(reading->labels, key) : NULL;

    return text || !key || key[0] == '\0' ? text : pod_text_of(reading->annotations, key);
}

/* ---- Ports ---- */

static bool is_port(uint64_t number)
{
    return number > 0 && number <= UINT16_MAX;
}

static void take_port(struct reading *reading, struct json_object *port)
{
    const struct {
        const char *name;
        uint32_t *port;
    } rows[] = {
        { "kv-events", &reading->events },
        { "kv-replay", &reading->replay },
        { "metrics", &reading->metrics },
        { "http", &reading->http },
    };
    const char *name = pod_text_of(port, "name");
    const uint64_t number = pod_number_of(port, "containerPort");

    for (size_t i = 0; name && is_port(number) && i < KVB_COUNT_OF(rows); i++) {
        /* Of several ports of one name the first counts. */
        if (strcmp(name, rows[i].name) == 0 && *rows[i].port == 0) {
            *rows[i].port = (uint32_t)number;
        }
    }
}

/* Init containers count too: a sidecar is an init container that keeps running. */
static void take_ports(struct reading *reading)
{
    static const char *const lists[] = { "containers", "initContainers" };
    size_t seen = 0;

    for (size_t of = 0; of < KVB_COUNT_OF(lists); of++) {
        struct json_object *containers = kvb_json_member(reading->spec, lists[of]);
        for (size_t i = 0; i < kvb_json_list_len(containers); i++) {
            struct json_object *ports =
                kvb_json_member(json_object_array_get_idx(containers, i), "ports");
            for (size_t at = 0; at < kvb_json_list_len(ports); at++, seen++) {
                /* What is beyond the limit is only counted. */
                if (seen < kvb_max_pod_ports) {
                    take_port(reading, json_object_array_get_idx(ports, at));
                }
            }
        }
    }
    reading->pod->ports_beyond =
        (uint32_t)(seen > kvb_max_pod_ports ? seen - kvb_max_pod_ports : 0);
}

/* The port in a label or an annotation; 0: none. */
static uint32_t tagged_port(const struct reading *reading, const char *key)
{
    const char *text = tag_of(reading, key);
    uint64_t number = 0;

    return text && kvb_decimal_read(text, &number) && is_port(number) ? (uint32_t)number : 0;
}

static uint32_t number_or(uint32_t configured, uint32_t of_preset)
{
    return configured == KVB_POD_PORT_OF_PRESET ? of_preset : configured;
}

static uint32_t first_port(uint32_t one, uint32_t two, uint32_t three)
{
    return one ? one : two ? two : three;
}

/* How many numbers a list such as "8000,8001" has; 0: the text is not such a list. */
static uint32_t count_listed(const char *text)
{
    uint32_t count = 0;

    while (text && *text >= '0' && *text <= '9') {
        count++;
        text += strspn(text, "0123456789");
        text += strspn(text, ", ");
    }
    return text && *text == '\0' && count <= kvb_max_ranks ? count : 0;
}

static void settle_ports(struct reading *reading)
{
    const struct kvb_pod_rules *rules = reading->rules;
    const struct preset *preset = reading->preset;
    struct kvb_pod *pod = reading->pod;

    take_ports(reading);
    /* What the pod says comes before what is configured, and the preset is last. */
    pod->events_port =
        first_port(reading->events, 0, number_or(rules->events_port, preset->events));
    pod->replay_port =
        first_port(reading->replay, 0, number_or(rules->replay_port, preset->replay));
    pod->metrics_port = first_port(
        first_port(reading->metrics, reading->http, 0), tagged_port(reading, preset->metrics_port),
        number_or(rules->metrics_port, preset->metrics));
    pod->http_port =
        first_port(reading->http, tagged_port(reading, preset->http_port), pod->metrics_port);
    const uint32_t listed = count_listed(tag_of(reading, preset->rank_ports));
    pod->ranks = first_port(listed, rules->ranks, 1);
}

/* ---- The engine's arguments ---- */

static void settle_block_size(struct reading *reading)
{
    const char *text = kvb_commands_option(&reading->commands, "--block-size");
    uint64_t number = 0;

    text = text ? text : kvb_commands_option(&reading->commands, "--page-size");

    if (text && kvb_decimal_read(text, &number) && number <= kvb_max_block_tokens) {
        reading->pod->block_size = (uint32_t)number;
    }
}

/* ---- Speculation, by vLLM's arguments ---- */

static const char *
first_option(const struct kvb_commands *commands, const char *one, const char *other)
{
    const char *value = kvb_commands_option(commands, one);

    return value ? value : kvb_commands_option(commands, other);
}

/* Options with a dot, of which vLLM makes one object.  It then ignores an object that is given as
 * JSON. */
static bool
read_dotted(const struct kvb_commands *commands, struct kvb_speculative_config *out_config)
{
    const char *method = first_option(commands, "--speculative-config.method", "-sc.method");
    const char *model = first_option(commands, "--speculative-config.model", "-sc.model");
    const char *tokens = first_option(
        commands, "--speculative-config.num-speculative-tokens", "-sc.num-speculative-tokens");
    const char *disables = first_option(
        commands, "--speculative-config.disable-eagle-block-drop", "-sc.disable-eagle-block-drop");

    *out_config = (struct kvb_speculative_config){ .method = method ? method : "",
                                                   .model = model ? model : "",
                                                   .disables_drop =
                                                       disables && strcmp(disables, "true") == 0 };
    return method || model || tokens || disables;
}

static void read_object(struct json_object *object, struct kvb_speculative_config *out_config)
{
    struct json_object *disables = kvb_json_member(object, "disable_eagle_block_drop");
    const bool is_switch = json_object_is_type(disables, json_type_boolean);

    *out_config = (struct kvb_speculative_config){
        .method = kvb_json_member_text(object, "method"),
        .model = kvb_json_member_text(object, "model"),
        .disables_drop = is_switch && json_object_get_boolean(disables),
        .has_lookahead_option = kvb_json_member(object, "disable_lookahead_block_hashes") != NULL,
    };
}

static enum kvb_speculation speculation_of_arguments(const struct kvb_commands *commands)
{
    KVB_OWN(kvb_json_drop) struct json_object *object = NULL;
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_speculative_values,
                                      .values = max_speculative_values };
    const char *json = first_option(commands, "--speculative-config", "-sc");
    const char *method = kvb_commands_option(commands, "--spec-method");
    const char *model = kvb_commands_option(commands, "--spec-model");
    struct kvb_speculative_config config;

    bool is_given = read_dotted(commands, &config);
    /* "", "None" and null are none. */
    if (!is_given && json && json[0] != '\0' && strcmp(json, "None") != 0) {
        const kvb_span text = { (const uint8_t *)json, strlen(json) };
        /* An object that cannot be read leaves it open what the engine makes of it. */
        if (kvb_json_parse(text, &budget, &object) != KVB_OK) {
            return KVB_SPECULATION_UNDECIDED;
        }
        is_given = object != NULL;
        read_object(object, &config);
    }
    config.method = config.method[0] == '\0' && method ? method : config.method;
    config.model = config.model[0] == '\0' && model ? model : config.model;
    return is_given || method || model ? kvb_speculation_of(&config) : KVB_SPECULATION_UNKNOWN;
}

/* ---- Labels ---- */

static bool is_model(const char *model)
{
    return model && model[0] != '\0' && strlen(model) <= kvb_model_bytes &&
           kvb_utf8_is_plain(model);
}

static void settle_model(struct reading *reading)
{
    const char *const labels[] = { reading->rules->model_label, reading->preset->model };
    struct kvb_pod *pod = reading->pod;
    const char *kind = "label ";
    const char *rule = NULL;
    const char *model = NULL;

    for (size_t i = 0; i < KVB_COUNT_OF(labels) && !is_model(model); i++) {
        rule = labels[i];
        model = tag_of(reading, rule);
    }
    if (!is_model(model)) {
        kind = "";
        model = kvb_commands_model(&reading->commands, &rule);
    }
    /* Nothing names it, or what does is no name that can be published. */
    if (!is_model(model)) {
        kind = "";
        rule = "defaults.model";
        model = reading->rules->model;
    }
    (void)snprintf(pod->model, sizeof pod->model, "%s", model);
    (void)snprintf(pod->model_rule, sizeof pod->model_rule, "%s%s", kind, rule);
    const char *lora = tag_of(reading, reading->preset->lora);
    if (lora && strlen(lora) <= kvb_model_bytes && kvb_utf8_is_plain(lora)) {
        (void)snprintf(pod->lora, sizeof pod->lora, "%s", lora);
    }
}

static void settle_pod_role(struct reading *reading)
{
    const char *role = tag_of(reading, reading->rules->role_label);
    enum kvb_worker_role found = KVB_ROLE_NONE;

    role = role ? role : tag_of(reading, reading->preset->role);
    /* llm-d writes "both" or "prefill-decode" for an engine that does both. */
    if (role && kvb_worker_role_find(role, &found) != KVB_OK &&
        (strcmp(role, "prefill-decode") == 0 || strcmp(role, "encode-prefill-decode") == 0)) {
        found = KVB_ROLE_BOTH;
    }
    reading->pod->facts.role = found;
}

static void take_pod_labels(struct reading *reading)
{
    const struct kvb_label_names *names = &reading->rules->labels;
    struct kvb_pod *pod = reading->pod;

    for (size_t i = 0; i < names->count; i++) {
        const char *value = tag_of(reading, names->names[i]);
        if (value && value[0] != '\0' &&
            kvb_labels_add(&pod->facts.labels, names->names[i], value, NULL) != KVB_OK) {
            pod->labels_left_out++;
        }
    }
}

/* ---- State ---- */

static bool is_ready_condition(struct json_object *condition, const char *status)
{
    const char *type = pod_text_of(condition, "type");
    const char *value = pod_text_of(condition, "status");

    return type && value && strcmp(type, "Ready") == 0 && strcmp(value, status) == 0;
}

static enum kvb_worker_ready ready_of(struct json_object *status)
{
    struct json_object *conditions = kvb_json_member(status, "conditions");

    for (size_t i = 0; i < kvb_json_list_len(conditions); i++) {
        struct json_object *condition = json_object_array_get_idx(conditions, i);
        if (is_ready_condition(condition, "True")) {
            return KVB_READY_YES;
        }
        if (is_ready_condition(condition, "False")) {
            return KVB_READY_NO;
        }
    }
    return KVB_READY_UNKNOWN;
}

static uint64_t restarts_of(struct json_object *status)
{
    static const char *const lists[] = { "containerStatuses", "initContainerStatuses" };
    uint64_t restarts = 0;

    for (size_t of = 0; of < KVB_COUNT_OF(lists); of++) {
        struct json_object *containers = kvb_json_member(status, lists[of]);
        for (size_t i = 0; i < kvb_json_list_len(containers); i++) {
            restarts += pod_number_of(json_object_array_get_idx(containers, i), "restartCount");
        }
    }
    return restarts;
}

/* Only letters of an address are accepted, because the text becomes part of endpoints and URLs. */
static bool is_pod_address(const char *ip)
{
    return strspn(ip, "0123456789abcdefABCDEF.:") == strlen(ip);
}

static void take_status(struct reading *reading)
{
    struct kvb_pod *pod = reading->pod;

    pod->facts.ready = ready_of(reading->status);
    pod->facts.restarts = restarts_of(reading->status);
    (void)copy_text(reading->spec, "nodeName", pod->facts.node, sizeof pod->facts.node);
    /* The text becomes a part of endpoints and URLs. */
    if (!copy_text(reading->status, "podIP", pod->ip, sizeof pod->ip) || !is_pod_address(pod->ip)) {
        pod->ip[0] = '\0';
    }
    if (pod->ip[0] != '\0' && pod->http_port != 0) {
        const bool is_ipv6 = strchr(pod->ip, ':') != NULL;
        (void)snprintf(
            pod->facts.address, sizeof pod->facts.address,
            is_ipv6 ? "http://[%s]:%u" : "http://%s:%u", pod->ip, pod->http_port);
    }
}

/* False: the label that holds the id is missing or is not a number. */
static bool settle_id(struct reading *reading)
{
    struct kvb_pod *pod = reading->pod;
    const char *const texts[] = {
        [KVB_POD_ID_OF_NAME] = pod->facts.pod, [KVB_POD_ID_OF_UID] = pod->uid
    };

    if (reading->rules->id_from == KVB_POD_ID_OF_LABEL) {
        const char *text = tag_of(reading, reading->rules->id_label);
        return text && kvb_decimal_read(text, &pod->id) && pod->id <= INT64_MAX;
    }
    const char *text = texts[reading->rules->id_from];
    pod->id = kvb_pod_name_hash((kvb_span){ (const uint8_t *)text, strlen(text) });
    return true;
}

/* Running is enough: an engine publishes events before it is Ready and while it drains. */
static enum kvb_pod_state state_of(const struct reading *reading, bool has_id)
{
    const struct kvb_pod *pod = reading->pod;
    const char *phase = pod_text_of(reading->status, "phase");

    if (!phase || strcmp(phase, "Running") != 0) {
        return KVB_POD_PHASE;
    }
    if (pod->ip[0] == '\0') {
        return KVB_POD_NO_IP;
    }
    const uint32_t last = pod->ranks - 1; /* port offset of the last rank */
    if (pod->events_port == 0 || pod->events_port + last > UINT16_MAX ||
        (pod->replay_port != 0 && pod->replay_port + last > UINT16_MAX)) {
        return KVB_POD_NO_PORT;
    }
    if (pod->model[0] == '\0') {
        return KVB_POD_NO_MODEL;
    }
    return has_id ? KVB_POD_TAKEN : KVB_POD_NO_ID;
}

/* ---- An object ---- */

static kvb_status refuse_pod(
    enum kvb_pod_refusal refusal, enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail,
    const char *why)
{
    *out_refusal = refusal;
    kvb_detail_set(detail, "%s", why);
    return KVB_BAD_INPUT;
}

static kvb_status parse_object(
    kvb_span json, struct json_object **out_root, enum kvb_pod_refusal *out_refusal,
    struct kvb_detail *detail)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };

    /* So the splitter passes on an object that it has skipped. */
    if (json.len == 0) {
        return refuse_pod(
            KVB_POD_TOO_LARGE, out_refusal, detail, "the object is larger than 1 MiB");
    }
    const kvb_status status = kvb_json_parse(json, &budget, out_root);
    if (status == KVB_TOO_LARGE) {
        return refuse_pod(
            KVB_POD_TOO_LARGE, out_refusal, detail, "the object has too many values or levels");
    }
    return status == KVB_BAD_INPUT
               ? refuse_pod(KVB_POD_INVALID, out_refusal, detail, "it is not JSON, or not UTF-8")
               : status;
}

/* An object without a kind counts as a pod: the items of a list have no kind. */
static bool is_pod(struct json_object *object)
{
    const char *kind = pod_text_of(object, "kind");

    return json_object_is_type(object, json_type_object) && (!kind || strcmp(kind, "Pod") == 0);
}

static kvb_status read_pod(
    struct json_object *object, const struct kvb_pod_rules *rules, struct kvb_pod *out_pod,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail)
{
    struct json_object *metadata = kvb_json_member(object, "metadata");
    struct kvb_pod pod = { 0 };
    struct reading reading = { .rules = rules,
                               .preset = &presets[rules->preset],
                               .labels = kvb_json_member(metadata, "labels"),
                               .annotations = kvb_json_member(metadata, "annotations"),
                               .spec = kvb_json_member(object, "spec"),
                               .status = kvb_json_member(object, "status"),
                               .pod = &pod };

    if (!is_pod(object)) {
        return refuse_pod(KVB_POD_OTHER, out_refusal, detail, "the object is not a pod");
    }
    if (!copy_text(metadata, "name", pod.facts.pod, sizeof pod.facts.pod) ||
        !copy_text(metadata, "uid", pod.uid, sizeof pod.uid)) {
        return refuse_pod(
            KVB_POD_INVALID, out_refusal, detail,
            "the pod lacks a name or a UID, or one of them is too long");
    }
    (void)copy_text(metadata, "namespace", pod.facts.pod_namespace, sizeof pod.facts.pod_namespace);
    (void)copy_text(metadata, "resourceVersion", pod.version, sizeof pod.version);
    (void)copy_text(metadata, "creationTimestamp", pod.created, sizeof pod.created);
    pod.facts.is_draining = kvb_json_member(metadata, "deletionTimestamp") != NULL;
    const kvb_status status =
        kvb_commands_read(kvb_json_member(reading.spec, "containers"), &reading.commands);
    if (status != KVB_OK) {
        kvb_commands_done(&reading.commands);
        return status;
    }
    settle_ports(&reading);
    settle_model(&reading);
    settle_block_size(&reading);
    pod.facts.speculation_of_arguments = speculation_of_arguments(&reading.commands);
    /* Nothing below reads the words. */
    kvb_commands_done(&reading.commands);
    settle_pod_role(&reading);
    take_pod_labels(&reading);
    /* After the ports: the address has the one of HTTP. */
    take_status(&reading);
    pod.state = state_of(&reading, settle_id(&reading));
    *out_pod = pod;
    return KVB_OK;
}

kvb_status kvb_pod_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod *out_pod,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(parse_object(json, &root, out_refusal, detail));
    return read_pod(root, rules, out_pod, out_refusal, detail);
}

/* ---- A line of a watch ---- */

static enum kvb_pod_event pod_event_of(const char *type)
{
    static const char *const types[] = {
        [KVB_POD_ADDED] = "ADDED",     [KVB_POD_MODIFIED] = "MODIFIED",
        [KVB_POD_DELETED] = "DELETED", [KVB_POD_BOOKMARK] = "BOOKMARK",
        [KVB_POD_ERROR] = "ERROR",
    };

    for (size_t i = 0; type && i < KVB_COUNT_OF(types); i++) {
        if (strcmp(type, types[i]) == 0) {
            return (enum kvb_pod_event)i;
        }
    }
    return KVB_POD_EVENT_UNKNOWN;
}

static void take_error(struct json_object *status, struct kvb_pod_line *line)
{
    const uint64_t code = pod_number_of(status, "code");
    const char *message = pod_text_of(status, "message");

    line->code = code < 1000 ? (unsigned)code : 0;
    kvb_detail_set(
        &line->message, "%.200s", message && kvb_utf8_is_plain(message) ? message : "no message");
}

kvb_status kvb_pod_line_decode(
    kvb_span json, const struct kvb_pod_rules *rules, struct kvb_pod_line *out_line,
    enum kvb_pod_refusal *out_refusal, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    /* First, because callers read it after an error, too. */
    memset(out_line, 0, sizeof *out_line);
    out_line->event = KVB_POD_EVENT_UNKNOWN;
    KVB_TRY(parse_object(json, &root, out_refusal, detail));
    const char *type = pod_text_of(root, "type");
    struct json_object *object = kvb_json_member(root, "object");
    if (!type || !object) {
        return refuse_pod(
            KVB_POD_INVALID, out_refusal, detail, "the line lacks a type or an object");
    }
    out_line->event = pod_event_of(type);
    if (out_line->event == KVB_POD_ERROR) {
        take_error(object, out_line);
        return KVB_OK;
    }
    /* Before the pod, so that the watch goes on after a pod that is refused. */
    (void)copy_text(
        kvb_json_member(object, "metadata"), "resourceVersion", out_line->version,
        sizeof out_line->version);
    /* A bookmark has a version and no pod; of an unknown event only the version counts. */
    if (out_line->event >= KVB_POD_BOOKMARK) {
        return KVB_OK;
    }
    return read_pod(object, rules, &out_line->pod, out_refusal, detail);
}

/* ---- A page of a list ---- */

kvb_status
kvb_pod_page_decode(kvb_span json, struct kvb_pod_page *out_page, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_pod_page page = { .version = "" };
    enum kvb_pod_refusal refusal;

    KVB_TRY(parse_object(json, &root, &refusal, detail));
    struct json_object *metadata = kvb_json_member(root, "metadata");
    const char *kind = pod_text_of(root, "kind");
    const char *next = pod_text_of(metadata, "continue");
    if (!kind || strcmp(kind, "PodList") != 0) {
        kvb_detail_set(
            detail, "the answer is not a list of pods: check that the server is an API server");
        return KVB_BAD_INPUT;
    }
    /* The watch after the list begins at this version. */
    if (!copy_text(metadata, "resourceVersion", page.version, sizeof page.version) ||
        (next && (strlen(next) >= sizeof page.next || !kvb_utf8_is_plain(next)))) {
        kvb_detail_set(
            detail, "the list lacks a resourceVersion, or its continue token is too long");
        return KVB_BAD_INPUT;
    }
    (void)snprintf(page.next, sizeof page.next, "%s", next ? next : "");
    *out_page = page;
    return KVB_OK;
}
