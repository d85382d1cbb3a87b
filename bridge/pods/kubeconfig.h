#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/worker_facts.h"

/* Reads a kubeconfig, the file in which kubectl finds API servers and users.
 *
 *     current-context: c
 *     contexts:
 *     - { name: c, context: { cluster: k, user: u, namespace: n } }
 *     clusters:
 *     - { name: k, cluster: { server: https://host:6443, certificate-authority: ca.crt } }
 *     users:
 *     - { name: u, user: { token: t, client-certificate: u.crt, client-key: u.key } }
 *
 * Only the cluster, user and namespace of the current context are read.  Where a key such as
 * certificate-authority and its "-data" form are both present, the "-data" form wins, as in
 * kubectl.  Source of the format: the reference "Kubeconfig (v1)" of kubernetes.io.
 *
 * Pure.  Threads: plain data. */

enum {
    kvb_kubeconfig_bytes = 1 << 20,
    kvb_kubeconfig_text_bytes = 512,
    kvb_kubeconfig_token_bytes = 16384,
    kvb_kubeconfig_pem_bytes = 65536
};

/* A certificate or key, inline in the kubeconfig or in a file of its own. */
struct kvb_kubeconfig_pem {
    char *text;                           /* owned, PEM; NULL: not inline */
    char path[kvb_kubeconfig_text_bytes]; /* "": none; relative to the file's folder */
};

struct kvb_kubeconfig {
    char server[kvb_kubeconfig_text_bytes];
    char name_space[kvb_pod_namespace_bytes + 1]; /* "": none */
    char *token;                                  /* owned; NULL: none */
    char token_path[kvb_kubeconfig_text_bytes];
    struct kvb_kubeconfig_pem authority;
    struct kvb_kubeconfig_pem certificate;
    struct kvb_kubeconfig_pem key;
};

/* Decodes YAML or JSON.
 * KVB_BAD_CONFIG  the file cannot be parsed, lacks an entry that the context names, or uses a key
 *                 that is not supported (exec, proxy-url, ...): detail names the key and the remedy
 * KVB_NO_MEMORY */
kvb_status
kvb_kubeconfig_decode(kvb_span bytes, struct kvb_kubeconfig *out, struct kvb_detail *detail);

/* Overwrites the secrets before it frees them.  {0} is fine. */
void kvb_kubeconfig_done(struct kvb_kubeconfig *config);
