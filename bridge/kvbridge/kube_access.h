#pragma once

#include "core/status.h"
#include "ingest/http/fetch.h"
#include "kvbridge/config.h"
#include "pods/kubeconfig.h"
#include "pods/pod.h"

/* The address of the Kubernetes API server, and the token and certificates for it.  They come from:
 *
 *     kubernetes.kubeconfig   the current context of this file
 *     without it              the environment and the service account of the bridge's own pod
 *
 * Files are read again by kvb_kube_access_renew(), because tokens and certificates are replaced
 * while the bridge runs.  {0} is an access that is not open.
 *
 * Threads: the caller locks. */
struct kvb_kube_access {
    const struct kvb_kubernetes_config *config; /* borrowed */
    char base[kvb_config_url_bytes];            /* https://host:port, without a slash at its end */
    char token_file[kvb_config_path_bytes];     /* "": none, or the token is in the kubeconfig */
    char ca_file[kvb_config_path_bytes];
    char certificate_file[kvb_config_path_bytes];
    char key_file[kvb_config_path_bytes];
    char token[kvb_kubeconfig_token_bytes];
    struct kvb_kubeconfig kubeconfig;
};

/* KVB_IO  nothing is configured outside a pod, or the kubeconfig cannot be used: detail says why,
 *         and the caller tries again later */
kvb_status kvb_kube_access_open(
    struct kvb_kube_access *access, const struct kvb_kubernetes_config *config,
    struct kvb_detail *detail);
void kvb_kube_access_close(struct kvb_kube_access *access);

/* Reads the token and the kubeconfig again.  On failure the old ones stay, because they may still
 * be valid, and detail says why. */
kvb_status kvb_kube_access_renew(struct kvb_kube_access *access, struct kvb_detail *detail);

/* The namespace that applies when none is configured.  KVB_IO, KVB_BAD_CONFIG: it cannot be
 * read. */
kvb_status kvb_kube_access_namespace(
    const struct kvb_kube_access *access, char out[kvb_pod_namespace_bytes + 1],
    struct kvb_detail *detail);

/* Fills in the token and certificates, which are borrowed until the access changes. */
void kvb_kube_access_show(const struct kvb_kube_access *access, struct kvb_fetch_options *out);

/* What works, or may work later, but its owner should know; "" for nothing. */
struct kvb_kube_doubts {
    struct kvb_detail token;  /* tokenFile: it may be put there later */
    struct kvb_detail server; /* the token is not encrypted */
};

/* Reads the file and what it names, for kvbridge --check.  *out_doubts must be {0}.
 * KVB_BAD_CONFIG, KVB_NO_MEMORY */
kvb_status kvb_kube_access_check(
    const char *kubeconfig, struct kvb_kube_doubts *out_doubts, struct kvb_detail *detail);
