#include "kvbridge/discovery.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/ingest.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/shown.h"

/* Starts and stops what names workers while the bridge runs: pods, a DNS name, the engines' own
 * answers.  The file and registrations have no job: main.c and register.c give their lists. */

static kvb_status take_pods(
    void *context, const struct kvb_worker_list *list, enum kvb_verdict *out_verdicts,
    struct kvb_membership_result *out_answer)
{
    return kvb_bridge_take_list(context, KVB_SOURCE_KUBERNETES, list, out_verdicts, out_answer);
}

static kvb_status take_dns(
    void *context, const struct kvb_worker_list *list, enum kvb_verdict *out_verdicts,
    struct kvb_membership_result *out_answer)
{
    return kvb_bridge_take_list(context, KVB_SOURCE_DNS, list, out_verdicts, out_answer);
}

kvb_status kvb_bridge_make_sources(struct kvb_bridge *bridge)
{
    const struct kvb_kubernetes_options options = { .config = &bridge->config->kubernetes,
                                                    .defaults = &bridge->config->defaults,
                                                    .log = bridge->log,
                                                    .resolver = bridge->ingest->resolver,
                                                    .metrics = &bridge->shown->metrics,
                                                    .take = take_pods,
                                                    .context = bridge };

    return options.config->is_on ? kvb_kubernetes_new(&options, &bridge->membership->kubernetes)
                                 : KVB_OK;
}

kvb_status kvb_bridge_start_sources(struct kvb_bridge *bridge)
{
    struct bridge_membership *membership = bridge->membership;
    const struct kvb_discovery_options discovery = { .control = bridge->control,
                                                     .log = bridge->log,
                                                     .resolver = bridge->ingest->resolver,
                                                     .take = kvb_bridge_take_answer,
                                                     .context = bridge,
                                                     .sources = KVB_SOURCE_COUNT };
    const struct kvb_dns_list_options dns = { .control = bridge->control,
                                              .config = &bridge->config->dns,
                                              .defaults = &bridge->config->defaults,
                                              .log = bridge->log,
                                              .take = take_dns,
                                              .context = bridge };

    /* First, because it stands between the other lists and their ranks. */
    KVB_TRY(kvb_discovery_start(&discovery, &membership->discovery));
    KVB_TRY(kvb_discovery_set(membership->discovery, KVB_SOURCE_FILE, &bridge->config->workers));
    if (kvb_dns_list_is_configured(dns.config)) {
        KVB_TRY(kvb_dns_list_start(&dns, &membership->dns_list));
    }
    return membership->kubernetes ? kvb_kubernetes_start(membership->kubernetes) : KVB_OK;
}

void kvb_bridge_stop_sources(struct bridge_membership *membership)
{
    kvb_kubernetes_stop(membership->kubernetes);
    kvb_dns_list_stop(membership->dns_list);
    kvb_discovery_stop(membership->discovery);
}

void kvb_bridge_free_sources(struct bridge_membership *membership)
{
    kvb_kubernetes_free(membership->kubernetes);
    kvb_dns_list_free(membership->dns_list);
    kvb_discovery_free(membership->discovery);
}
