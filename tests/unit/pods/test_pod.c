#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "pods/pod.h"

#include <stdio.h>
#include <string.h>

static struct kvb_pod pod;
static enum kvb_pod_refusal refusal;
static struct kvb_detail why;

static struct kvb_pod_rules rules_of(enum kvb_pod_preset preset)
{
    struct kvb_pod_rules rules = { .preset = preset,
                                   .events_port = KVB_POD_PORT_OF_PRESET,
                                   .replay_port = KVB_POD_PORT_OF_PRESET,
                                   .metrics_port = KVB_POD_PORT_OF_PRESET,
                                   .ranks = 1 };

    (void)snprintf(rules.model, sizeof rules.model, "m");
    (void)snprintf(rules.role_label, sizeof rules.role_label, "llm-d.ai/role");
    return rules;
}

static kvb_span span_of(const char *text)
{
    return (kvb_span){ (const uint8_t *)text, strlen(text) };
}

/* A pod with these members in metadata, spec and status. */
static const char *object_of(const char *metadata, const char *spec, const char *status)
{
    static char text[1 << 16];

    (void)snprintf(
        text, sizeof text,
        "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\",\"namespace\":\"inference\",\"uid\":\"u-"
        "1\","
        "\"resourceVersion\":\"17\",\"creationTimestamp\":\"2026-01-02T03:04:05Z\"%s},"
        "\"spec\":{\"nodeName\":\"node-a\"%s},\"status\":{\"phase\":\"Running\",\"podIP\":"
        "\"10.0.0.7\"%s}}",
        metadata, spec, status);
    return text;
}

static void read_with(
    const struct kvb_pod_rules *rules, const char *metadata, const char *spec, const char *status)
{
    assert_ok(
        kvb_pod_decode(span_of(object_of(metadata, spec, status)), rules, &pod, &refusal, &why));
}

static const char named_ports[] =
    ",\"containers\":[{\"name\":\"proxy\"},{\"ports\":["
    "{\"name\":\"http\",\"containerPort\":8001},{\"name\":\"kv-replay\",\"containerPort\":7002},"
    "{\"name\":\"kv-events\",\"containerPort\":7001}]}]";

static void named_container_ports_come_first(void **state)
{
    struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    rules.events_port = 1;
    rules.metrics_port = 2;
    read_with(&rules, "", named_ports, "");
    assert_int_equal(pod.state, KVB_POD_TAKEN);
    assert_int_equal(pod.events_port, 7001);
    assert_int_equal(pod.replay_port, 7002);
    assert_int_equal(pod.metrics_port, 8001); /* the http port, because none is named metrics */
    assert_string_equal(pod.facts.address, "http://10.0.0.7:8001");
    assert_string_equal(pod.facts.pod, "a");
    assert_string_equal(pod.facts.pod_namespace, "inference");
    assert_string_equal(pod.facts.node, "node-a");
    assert_string_equal(pod.version, "17");
}

static void port_numbers_of_configuration_and_preset_come_last(void **state)
{
    struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    read_with(&rules, "", "", "");
    assert_int_equal(pod.events_port, 5557);
    assert_int_equal(pod.replay_port, 6557);
    assert_int_equal(pod.metrics_port, 8000);
    rules.events_port = 15;
    rules.replay_port = 0;
    read_with(&rules, "", "", "");
    assert_int_equal(pod.events_port, 15);
    assert_int_equal(pod.replay_port, 0);
    rules.events_port = 0;
    read_with(&rules, "", "", "");
    assert_int_equal(pod.state, KVB_POD_NO_PORT);
}

/* A native sidecar: an init container with restartPolicy Always. */
static void ports_of_init_containers_count_too(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    read_with(
        &rules, "",
        ",\"initContainers\":[{\"ports\":[{\"name\":\"kv-events\",\"containerPort\":99}]}]", "");
    assert_int_equal(pod.events_port, 99);
}

static void aibrix_has_its_labels_and_annotations(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_AIBRIX);

    (void)state;
    read_with(
        &rules,
        ",\"labels\":{\"model.aibrix.ai/metric-port\":\"8081\",\"model.aibrix.ai/port\":\"8080\","
        "\"role-name\":\"decode\"},\"annotations\":{\"model.aibrix.ai/name\":\"llama\","
        "\"model.aibrix.ai/lora-id\":\"ad\"}",
        "", "");
    assert_string_equal(pod.model, "llama");
    assert_string_equal(pod.lora, "ad");
    assert_int_equal(pod.events_port, 5557);
    assert_int_equal(pod.replay_port, 5558);
    assert_int_equal(pod.metrics_port, 8081);
    assert_string_equal(pod.facts.address, "http://10.0.0.7:8080");
    assert_int_equal(pod.facts.role, KVB_ROLE_DECODE);
}

static void llm_d_has_a_role_and_a_rank_for_each_active_port(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_LLM_D);

    (void)state;
    read_with(
        &rules,
        ",\"labels\":{\"llm-d.ai/role\":\"prefill-decode\",\"llm-d.ai/model\":\"qwen\"},"
        "\"annotations\":{\"llm-d.ai/active-ports\":\"8000, 8001,8002\"}",
        "", "");
    assert_int_equal(pod.facts.role, KVB_ROLE_BOTH);
    assert_string_equal(pod.model, "qwen");
    assert_int_equal(pod.ranks, 3);
    assert_int_equal(pod.replay_port, 0);
    read_with(&rules, ",\"annotations\":{\"llm-d.ai/active-ports\":\"8000,x\"}", "", "");
    assert_int_equal(pod.ranks, 1);
}

static void dynamo_has_its_operators_labels(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_DYNAMO);

    (void)state;
    read_with(
        &rules,
        ",\"labels\":{\"nvidia.com/dynamo-sub-component-type\":\"prefill\"},"
        "\"annotations\":{\"nvidia.com/dynamo-base-model\":\"Qwen/Qwen3-0.6B\"}",
        "", "");
    assert_string_equal(pod.model, "Qwen/Qwen3-0.6B");
    assert_int_equal(pod.facts.role, KVB_ROLE_PREFILL);
}

/* As people write pods: each time the model is Qwen/Q and the blocks have 4 tokens. */
static void commands_are_read_as_the_container_runs_them(void **state)
{
#define IMAGE "\"image\":\"vllm/vllm-openai\","
    static const struct {
        const char *container;
        const char *rule;
    } cases[] = {
        { "\"command\":[\"vllm\",\"serve\"],\"args\":[\"Qwen/Q\",\"--block-size=4\"]",
          "argument of serve" },
        { IMAGE "\"args\":[\"Qwen/Q\",\"--block-size\",\"4\"]", "first argument" },
        { "\"ports\":[{\"name\":\"kv-events\",\"containerPort\":5557}],"
          "\"args\":[\"--enable-prefix-caching\",\"--port\",\"80\",\"Qwen/"
          "Q\",\"--block_size\",\"4\"]",
          "first argument" },
        { IMAGE "\"args\":[\"serve\",\"Qwen/Q\",\"--block-size\",\"4\"]", "argument of serve" },
        { "\"command\":[\"vllm\"],\"args\":[\"serve\",\"--port\",\"80\",\"--no-enable-log\","
          "\"Qwen/Q\",\"--block_size\",\"4\"]",
          "argument of serve" },
        { "\"command\":[\"python3\",\"-m\",\"vllm.entrypoints.openai.api_server\"],"
          "\"args\":[\"--model\",\"Qwen/Q\",\"--block-size\",\"4\"]",
          "argument --model" },
        { "\"command\":[\"python3\",\"-m\",\"sglang.launch_server\"],"
          "\"args\":[\"--model_path=Qwen/Q\",\"--page-size\",\"4\"]",
          "argument --model-path" },
        { "\"command\":[\"/bin/sh\",\"-c\"],\"args\":[\"vllm serve Qwen/Q --block-size 4\"]",
          "argument of serve" },
        { "\"command\":[\"bash\",\"-euo\",\"pipefail\",\"-c\",\"exec vllm serve 'Qwen/'\\\"Q\\\" "
          "--port 8000 "
          "--block-size \\\\\\n 4 >/log 2>&1\"]",
          "argument of serve" },
        { "\"command\":[\"tini\",\"--\",\"bash\",\"-lc\"],\"args\":[\"# the engine\\nulimit -n "
          "65535\\n"
          "hf download --model Other/O && HF_HOME=/x CUDA_VISIBLE_DEVICES=0 nohup /opt/bin/vllm "
          "serve "
          "Qwen\\\\/Q --block-size 4 | tee /log\"]",
          "argument of serve" },
        { "\"command\":[\"sh\",\"-c\",\"M=Qwen; if true; then vllm serve $M/${NAME} --block-size "
          "${SIZE:-4}; fi\"],\"env\":[{\"name\":\"NAME\",\"value\":\"Q\"}]",
          "argument of serve" },
        { "\"command\":[\"sh\",\"-c\",\"exec vllm serve "
          "\\\"$@\\\"\",\"--\"],\"args\":[\"$(OF)/Q\",\"--block-size\","
          "\"4\"],\"env\":[{\"name\":\"OF\",\"value\":\"Qwen\"}]",
          "argument of serve" },
        { "\"command\":[\"sh\",\"-c\",\"cat > /c.yml <<'EOF'\\nvllm serve Other/O\\nEOF\\n"
          "bash -c 'vllm serve Qwen/Q "
          "$MORE'\"],\"env\":[{\"name\":\"MORE\",\"value\":\"--block-size 4\"}]",
          "argument of serve" },
        { "\"command\":[\"sh\",\"-c\",\"vllm serve \\\"Qwen/\\\\\\nQ\\\" --block-size 4\"]",
          "argument of serve" }, /* a line continued inside quotes */
        { "\"command\":[\"sh\",\"-c\",\"python3 /app/api.py --served-model-name=Qwen/Q --model /w "
          "--block-size 4\"]",
          "argument --served-model-name" },
        { "\"command\":[\"vllm\",\"serve\",\"/w\",\"--served_model_name\",\"Qwen/Q\",\"second\","
          "\"--block-size\",\"16\",\"--block-size\",\"4\"]",
          "argument --served-model-name" }, /* the last one counts */
        { "\"args\":[\"--model=Other/O\"]},{\"command\":[\"vllm\",\"serve\",\"Qwen/"
          "Q\",\"--block-size=4\"]",
          "argument of serve" }, /* a proxy beside it */
        { "\"args\":[\"--model=Other/O\"]},{" IMAGE "\"args\":[\"Qwen/Q\",\"--block-size=4\"]",
          "first argument" },
    };
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char spec[1024];
        (void)snprintf(spec, sizeof spec, ",\"containers\":[{%s}]", cases[i].container);
        read_with(&rules, "", spec, "");
        if (strcmp(pod.model, "Qwen/Q") != 0 || pod.block_size != 4) {
            fail_msg("%s: %s, %u", cases[i].container, pod.model, pod.block_size);
        }
        assert_string_equal(pod.model_rule, cases[i].rule);
    }
}

/* What vLLM 0.33 takes: an object as JSON, or options with dots, which replace it. */
static void speculation_is_found_in_the_arguments(void **state)
{
#define VLLM(args) "\"command\":[\"vllm\",\"serve\"],\"args\":[\"Qwen/Q\"" args "]"
#define SC(json) VLLM(",\"--speculative-config\",\"" json "\"")
    static const struct {
        const char *container;
        enum kvb_speculation found;
    } cases[] = {
        { VLLM(""), KVB_SPECULATION_UNKNOWN },
        { SC("{\\\"method\\\":\\\"eagle3\\\",\\\"model\\\":\\\"x\\\"}"), KVB_SPECULATION_DROPS },
        { VLLM(",\"-sc={\\\"method\\\":\\\"deepseek_mtp\\\"}\""), KVB_SPECULATION_DROPS },
        { VLLM(",\"-sc\",\"{\\\"method\\\": \\\"ngram\\\"}\""), KVB_SPECULATION_KEEPS },
        { VLLM(",\"--speculative_config={\\\"model\\\":\\\"a/EAGLE-b\\\"}\""),
          KVB_SPECULATION_DROPS },
        { SC("{\\\"method\\\":\\\"mtp\\\",\\\"disable_eagle_block_drop\\\":true}"),
          KVB_SPECULATION_KEEPS },
        { SC("{\\\"method\\\":\\\"mtp\\\",\\\"disable_eagle_block_drop\\\":\\\"true\\\"}"),
          KVB_SPECULATION_DROPS },
        { SC("{\\\"method\\\":\\\"dflash\\\"}"), KVB_SPECULATION_UNDECIDED },
        { SC("{\\\"method\\\":\\\"dflash\\\",\\\"disable_lookahead_block_hashes\\\":false}"),
          KVB_SPECULATION_KEEPS },
        { SC("{\\\"model\\\":\\\"Qwen/Qwen3-0.6B\\\"}"), KVB_SPECULATION_UNDECIDED },
        { SC("{}"), KVB_SPECULATION_UNDECIDED },
        { SC("{\\\"method\\\":7}"), KVB_SPECULATION_UNDECIDED },
        { SC("{\\\"method\\\":"), KVB_SPECULATION_UNDECIDED },
        { SC("[1]"), KVB_SPECULATION_UNDECIDED },
        { SC("eagle"), KVB_SPECULATION_UNDECIDED },
        { SC("null"), KVB_SPECULATION_UNKNOWN },
        { SC("None"), KVB_SPECULATION_UNKNOWN },
        { SC(""), KVB_SPECULATION_UNKNOWN },
        { VLLM(",\"--speculative-config\""), KVB_SPECULATION_UNKNOWN },
        { VLLM(",\"--speculative-config.method\",\"eagle\""), KVB_SPECULATION_DROPS },
        { VLLM(",\"--speculative_config.method=suffix\""), KVB_SPECULATION_KEEPS },
        { VLLM(",\"-sc.model\",\"x/eagle3-y\",\"-sc.num_speculative_tokens=3\""),
          KVB_SPECULATION_DROPS },
        { VLLM(",\"--speculative-config.num_speculative_tokens\",\"3\""),
          KVB_SPECULATION_UNDECIDED },
        { VLLM(",\"-sc.method=eagle\",\"-sc.disable_eagle_block_drop=true\""),
          KVB_SPECULATION_KEEPS },
        { SC("{\\\"method\\\":\\\"eagle\\\"}\",\"-sc.method\",\"ngram"), KVB_SPECULATION_KEEPS },
        { VLLM(",\"--spec-method\",\"eagle\",\"--spec-model=x\""), KVB_SPECULATION_DROPS },
        { VLLM(",\"--spec-model=x/eagle3\""), KVB_SPECULATION_DROPS },
        { "\"command\":[\"sh\",\"-c\",\"vllm serve Qwen/Q --speculative-config "
          "'{\\\"method\\\": \\\"mtp\\\"}'\"]",
          KVB_SPECULATION_DROPS },
        { "\"command\":[\"sh\",\"-c\",\"vllm serve Qwen/Q -sc $SPEC\"]", KVB_SPECULATION_UNKNOWN },
    };
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char spec[1024];
        (void)snprintf(spec, sizeof spec, ",\"containers\":[{%s}]", cases[i].container);
        read_with(&rules, "", spec, "");
        assert_string_equal(pod.model, "Qwen/Q");
        if (pod.facts.speculation_of_arguments != cases[i].found) {
            fail_msg("%s: %d", cases[i].container, (int)pod.facts.speculation_of_arguments);
        }
    }
}

/* What only the container knows is not guessed. */
static void words_that_the_pod_does_not_contain_name_no_model(void **state)
{
    static const char *const cases[] = {
        "\"command\":[\"sh\",\"-c\",\"vllm serve $MODEL --port 80\"]",
        "\"command\":[\"sh\",\"-c\",\"vllm serve $(cat /model) --port 80\"]",
        "\"command\":[\"sh\",\"-c\",\"vllm serve `cat /model`/x --port 80\"]",
        "\"command\":[\"sh\",\"-c\",\"vllm serve ${MODEL%/} --port 80\"]",
        ("\"command\":[\"vllm\",\"serve\",\"$(MODEL)\"],\"env\":[{\"name\":\"MODEL\",\"valueFrom\":"
         "{"
         "}}]"),
        ("\"command\":[\"sh\",\"-c\",\"vllm serve "
         "${MODEL:-x}\"],\"env\":[{\"name\":\"MODEL\",\"valueFrom\":{}}]"),
        "\"command\":[\"sh\",\"/start.sh\",\"-c\",\"vllm serve x\"]",
        "\"image\":\"nginx\",\"args\":[\"nginx\",\"-g\"]",
        "\"image\":\"vllm/vllm-openai\",\"args\":[\"--port\",\"80\"]",
        "\"command\":[\"sh\",\"-c\",\"vllm serve 'unclosed\"]",
        "\"command\":[\"sh\",\"-c\"]",
        "\"command\":[\"vllm\",\"serve\"]",
        "\"command\":[\"vllm\",\"serve\",\"--port\",\"80\"]",
        "\"command\":[\"sh\",\"-c\",\"vllm serve --model x --model $MODEL\"]",
        /* Nor does a proxy beside the engine. */
        "\"command\":[\"sh\",\"-c\",\"vllm serve $MODEL\"]},{\"args\":[\"--model=x\"]",
        "\"command\":[\"sh\",\"-c\",\"sglang --model-path $MODEL\"]},{\"args\":[\"--model=x\"]",
        IMAGE "\"args\":[\"$(MODEL)\"],\"env\":[{\"name\":\"MODEL\",\"valueFrom\":{}}]},"
              "{\"args\":[\"--model=x\"]",
    };
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char spec[512];
        (void)snprintf(spec, sizeof spec, ",\"containers\":[{%s}]", cases[i]);
        read_with(&rules, "", spec, "");
        if (strcmp(pod.model, "m") != 0) {
            fail_msg("%s: %s", cases[i], pod.model);
        }
    }
    assert_string_equal(pod.model_rule, "defaults.model");
}

/* The text of all words moves while it grows: at each length once between two of these words. */
static void words_after_a_line_may_have_any_length(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    for (int len = 1; len <= 300; len++) {
        char spec[1024];
        (void)snprintf(
            spec, sizeof spec,
            ",\"containers\":[{\"command\":[\"sh\",\"-c\",\"vllm serve "
            "\\\"$@\\\"\",\"--\"],\"args\":[\"--x=%0*d\",\"Qwen/Q\",\"--block-size\",\"4\"]}]",
            len, 0);
        read_with(&rules, "", spec, "");
        assert_string_equal(pod.model, "Qwen/Q");
    }
}

static void a_label_without_a_model_leaves_it_to_the_arguments(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_LLM_D);

    (void)state;
    read_with(
        &rules, ",\"labels\":{\"llm-d.ai/model\":\"\"}",
        ",\"containers\":[{\"command\":[\"vllm\",\"serve\",\"Qwen/Q\"]}]", "");
    assert_string_equal(pod.model, "Qwen/Q");
    assert_string_equal(pod.model_rule, "argument of serve");
}

/* Values that name each other, many times over. */
static void a_pod_cannot_make_its_reader_work_without_end(void **state)
{
    static char spec[60000];
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);
    size_t len = 0;

    (void)state;
    len +=
        (size_t)snprintf(spec, sizeof spec, ",\"containers\":[{\"command\":[\"$(A)\"],\"env\":[");
    for (int name = 'A'; name <= 'D'; name++) {
        len +=
            (size_t)snprintf(spec + len, sizeof spec - len, "{\"name\":\"%c\",\"value\":\"", name);
        for (int i = 0; i < 3000; i++) {
            len += (size_t)snprintf(spec + len, sizeof spec - len, "$(%c)", name + 1);
        }
        len += (size_t)snprintf(spec + len, sizeof spec - len, "\"},");
    }
    (void)snprintf(spec + len, sizeof spec - len, "{\"name\":\"E\",\"value\":\"\"}]}]");
    read_with(&rules, "", spec, "");
    assert_string_equal(pod.model, "m");
}

static void its_id_comes_from_its_name_its_uid_or_a_label(void **state)
{
    struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    read_with(&rules, "", "", "");
    assert_true(pod.id == kvb_pod_name_hash(span_of("a")));
    assert_ok(kvb_pod_rules_take_id(&rules, "uid"));
    read_with(&rules, "", "", "");
    assert_true(pod.id == kvb_pod_name_hash(span_of("u-1")));
    assert_ok(kvb_pod_rules_take_id(&rules, "label:worker/id"));
    read_with(&rules, ",\"labels\":{\"worker/id\":\"9223372036854775807\"}", "", "");
    assert_true(pod.id == INT64_MAX && pod.state == KVB_POD_TAKEN);
    assert_int_equal(kvb_pod_rules_take_id(&rules, "label:"), KVB_BAD_CONFIG);
    assert_int_equal(kvb_pod_rules_take_id(&rules, "names"), KVB_BAD_CONFIG);
}

static void of_300_ports_64_are_read_and_the_rest_is_counted(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);
    static char spec[1 << 15];
    size_t len = (size_t)snprintf(
        spec, sizeof spec,
        ",\"containers\":[{\"ports\":[{\"name\":\"kv-events\","
        "\"containerPort\":777}");

    (void)state;
    for (int i = 1; i < 300; i++) {
        len += (size_t)snprintf(
            spec + len, sizeof spec - len, ",{\"name\":\"%s\",\"containerPort\":%d}",
            i == 299 ? "kv-replay" : "p", i);
    }
    (void)snprintf(spec + len, sizeof spec - len, "]}]");
    read_with(&rules, "", spec, "");
    assert_int_equal(pod.events_port, 777);
    assert_int_equal(pod.replay_port, 6557); /* the last port was not read */
    assert_int_equal(pod.ports_beyond, 300 - kvb_max_pod_ports);
}

/* Invalid ports, and labels that are not used, are ignored. */
static void odd_labels_and_ports_are_ignored(void **state)
{
    struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_AIBRIX);

    (void)state;
    assert_ok(kvb_label_names_add(&rules.labels, "tier", NULL));
    assert_ok(kvb_label_names_add(&rules.labels, "odd", NULL));
    read_with(
        &rules,
        ",\"labels\":{\"tier\":\"gold\",\"odd\":\"a\\u0000b\",\"model.aibrix.ai/port\":\"70000\","
        "\"model.aibrix.ai/name\":\"\\u0001\"}",
        ",\"containers\":[{\"ports\":[{\"name\":\"kv-events\",\"containerPort\":0},"
        "{\"name\":\"kv-events\",\"containerPort\":-5},{\"name\":\"kv-events\"},7,null]}]",
        "");
    assert_int_equal(pod.events_port, 5557);
    assert_string_equal(pod.model, "m");
    assert_string_equal(kvb_labels_find(&pod.facts.labels, "tier"), "gold");
    assert_null(kvb_labels_find(&pod.facts.labels, "odd"));
    read_with(&rules, ",\"labels\":{\"odd\":\"a\\u0007b\"}", "", "");
    assert_int_equal(pod.labels_left_out, 1);
}

/* Kubernetes allows a prefix of 253 bytes and a name of 63. */
static void labels_with_the_longest_names_do_no_harm(void **state)
{
    struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);
    char prefix[sizeof rules.role_label - (sizeof "/role" - 1)];
    char labels[1024];

    (void)state;
    assert_ok(kvb_label_names_add(&rules.labels, "tier", NULL));
    memset(prefix, 'p', sizeof prefix);
    prefix[sizeof prefix - 1] = '\0';
    (void)snprintf(rules.role_label, sizeof rules.role_label, "%s/role", prefix);
    (void)snprintf(
        labels, sizeof labels,
        ",\"labels\":{\"%0253d/%063d\":\"x\",\"%s/role\":\"decode\",\"%s/tier\":\"y\","
        "\"tier\":\"gold\"}",
        0, 0, prefix, prefix);
    read_with(&rules, labels, "", "");
    assert_int_equal(pod.facts.role, KVB_ROLE_DECODE);
    assert_string_equal(kvb_labels_find(&pod.facts.labels, "tier"), "gold");
    assert_int_equal(pod.facts.labels.count, 1);
    assert_int_equal(pod.labels_left_out, 0);
}

static void invalid_pods_are_refused_with_the_reason(void **state)
{
    static const struct {
        const char *text;
        enum kvb_pod_refusal refusal;
    } rows[] = {
        { "{", KVB_POD_INVALID },
        { "{\"metadata\":{\"name\":\"\xff\",\"uid\":\"u\"}}", KVB_POD_INVALID },
        { "{\"kind\":\"Pod\",\"metadata\":{\"uid\":\"u\"}}", KVB_POD_INVALID },
        { "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}", KVB_POD_INVALID },
        { "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\\n\",\"uid\":\"u\"}}", KVB_POD_INVALID },
        { "{\"kind\":\"Node\",\"metadata\":{\"name\":\"a\",\"uid\":\"u\"}}", KVB_POD_OTHER },
        { "[]", KVB_POD_OTHER },
        { "", KVB_POD_TOO_LARGE }, /* what the splitter returns for an object above 1 MiB */
    };
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);
    char deep[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(
            kvb_pod_decode(span_of(rows[i].text), &rules, &pod, &refusal, &why), KVB_BAD_INPUT);
        assert_int_equal(refusal, rows[i].refusal);
        assert_true(why.text[0] != '\0' && kvb_pod_refusal_name(refusal)[0] != '\0');
    }
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_int_equal(kvb_pod_decode(span_of(deep), &rules, &pod, &refusal, &why), KVB_BAD_INPUT);
    assert_int_equal(refusal, KVB_POD_TOO_LARGE);
}

/* The watch continues after this line. */
static void a_line_with_another_kind_still_has_a_version(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);
    static struct kvb_pod_line line;

    (void)state;
    assert_int_equal(
        kvb_pod_line_decode(
            span_of("{\"type\":\"ADDED\",\"object\":{\"kind\":\"Node\",\"metadata\":{\"name\":"
                    "\"n\",\"uid\":\"u\",\"resourceVersion\":\"8\"}}}"),
            &rules, &line, &refusal, &why),
        KVB_BAD_INPUT);
    assert_int_equal(refusal, KVB_POD_OTHER);
    assert_string_equal(line.version, "8");
}

static void an_ipv6_address_is_in_brackets(void **state)
{
    const struct kvb_pod_rules rules = rules_of(KVB_POD_PRESET_PORTS);

    (void)state;
    read_with(&rules, "", "", ",\"podIP\":\"fd00::7\"");
    assert_string_equal(pod.facts.address, "http://[fd00::7]:8000");
}

SUITE(pod)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_container_ports_come_first),
        cmocka_unit_test(port_numbers_of_configuration_and_preset_come_last),
        cmocka_unit_test(ports_of_init_containers_count_too),
        cmocka_unit_test(aibrix_has_its_labels_and_annotations),
        cmocka_unit_test(llm_d_has_a_role_and_a_rank_for_each_active_port),
        cmocka_unit_test(dynamo_has_its_operators_labels),
        cmocka_unit_test(commands_are_read_as_the_container_runs_them),
        cmocka_unit_test(speculation_is_found_in_the_arguments),
        cmocka_unit_test(words_that_the_pod_does_not_contain_name_no_model),
        cmocka_unit_test(words_after_a_line_may_have_any_length),
        cmocka_unit_test(a_label_without_a_model_leaves_it_to_the_arguments),
        cmocka_unit_test(a_pod_cannot_make_its_reader_work_without_end),
        cmocka_unit_test(its_id_comes_from_its_name_its_uid_or_a_label),
        cmocka_unit_test(of_300_ports_64_are_read_and_the_rest_is_counted),
        cmocka_unit_test(odd_labels_and_ports_are_ignored),
        cmocka_unit_test(labels_with_the_longest_names_do_no_harm),
        cmocka_unit_test(invalid_pods_are_refused_with_the_reason),
        cmocka_unit_test(a_line_with_another_kind_still_has_a_version),
        cmocka_unit_test(an_ipv6_address_is_in_brackets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
