#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/worker_facts.h"

#include <stddef.h>

/* A kubeconfig: the file by which kubectl knows API servers and users.
 *
 *     current-context: c
 *     contexts: [{ name: c, context: { cluster: k, user: u, namespace: n } }]
 *     clusters: [{ name: k, cluster: { server: https://host:6443, certificate-authority: ca.crt }
 * }] users:    [{ name: u, user: { token: t, client-certificate: u.crt, client-key: u.key } }]
 *
 * Only what the current context names is read.  Where a key and the same with "-data" stand, the
 * data is taken, as kubectl does.  Source of the format: the reference "Kubeconfig (v1)" of
 * kubernetes.io.
 *
 * Pure.  Threads: plain data. */

enum {
    kvb_kubeconfig_bytes = 1 << 20,
    kvb_kubeconfig_text_bytes = 512,
    kvb_kubeconfig_token_bytes = 16384,
    kvb_kubeconfig_pem_bytes = 65536
};

/* A certificate or key: from the file itself, or from another one. */
struct kvb_kubeconfig_pem {
    char *text;                           /* owned; NULL: not in this file */
    char path[kvb_kubeconfig_text_bytes]; /* ""; or as written: relative to the kubeconfig's folder
                                           */
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

/* YAML or JSON.
 * KVB_BAD_CONFIG  it cannot be read, lacks what the context names, or has a key that would change
 *                 who is asked or how: detail names the key and the remedy
 * KVB_NO_MEMORY */
kvb_status
kvb_kubeconfig_decode(kvb_span bytes, struct kvb_kubeconfig *out, struct kvb_detail *detail);

/* Overwrites the secrets first.  {0} is fine. */
void kvb_kubeconfig_done(struct kvb_kubeconfig *config);
