#include "kvbridge/config_file.h"
#include "kvbridge/kube_access.h"

#include <stdlib.h>
#include <string.h>

/* Checks how the keys of the group `kubernetes` fit together. */

static void check_namespaces(struct kvb_conf *conf, const struct kvb_kubernetes_config *config)
{
    const struct kvb_kubernetes_namespaces *list = &config->namespaces;

    for (size_t i = 0; i < list->count; i++) {
        for (size_t other = 0; other < i; other++) {
            if (strcmp(list->names[i], list->names[other]) == 0) {
                kvb_conf_error(conf, "kubernetes.namespaces", "has a name twice: leave one out");
            }
        }
        if (list->names[i][0] == '\0' && list->count > 1) {
            kvb_conf_error(
                conf, "kubernetes.namespaces",
                "\"*\" stands for all namespaces: give it alone, or give names");
        }
    }
}

static void warn_of_kubeconfig(struct kvb_conf *conf, const struct kvb_detail *doubt)
{
    if (doubt->text[0] != '\0') {
        kvb_conf_warning(conf, "kubernetes.kubeconfig", "%s", doubt->text);
    }
}

static void check_kubeconfig(struct kvb_conf *conf, const struct kvb_kubernetes_config *config)
{
    struct kvb_detail detail = { .text = "" };
    struct kvb_kube_doubts doubts = { .token = { .text = "" } };

    if (config->kubeconfig[0] != '/') {
        kvb_conf_error(
            conf, "kubernetes.kubeconfig",
            "begin it with /: it must not depend on where the daemon starts");
    } else if (kvb_kube_access_check(config->kubeconfig, &doubts, &detail) != KVB_OK) {
        kvb_conf_error(conf, "kubernetes.kubeconfig", "%s", detail.text);
    }
    warn_of_kubeconfig(conf, &doubts.token);
    warn_of_kubeconfig(conf, &doubts.server);
}

void kvb_bridge_config_settle_kubernetes(struct kvb_conf *conf, struct kvb_bridge_config *config)
{
    struct kvb_kubernetes_config *of = &config->kubernetes;

    if (!of->is_on) {
        return;
    }
    of->rules.events_port = config->defaults.events_port;
    of->rules.replay_port = config->defaults.replay_port;
    of->rules.metrics_port = config->defaults.metrics_port;
    of->rules.ranks = config->defaults.spec->ranks;
    of->rules.labels = config->publish.labels;
    (void)snprintf(of->rules.model, sizeof of->rules.model, "%s", config->defaults.spec->model);
    if (kvb_pod_rules_take_id(&of->rules, of->id_from) != KVB_OK) {
        kvb_conf_error(conf, "kubernetes.id_from", "expected name, uid or label:KEY");
    }
    check_namespaces(conf, of);
    if (of->kubeconfig[0] != '\0') {
        check_kubeconfig(conf, of);
    } else if (!secure_getenv("KUBERNETES_SERVICE_HOST")) { /* --check may run outside of the pod */
        kvb_conf_warning(
            conf, "kubernetes.kubeconfig",
            "is not set, and this is not a pod (KUBERNETES_SERVICE_HOST is not set either): "
            "outside a cluster give the path of a kubeconfig");
    }
}
