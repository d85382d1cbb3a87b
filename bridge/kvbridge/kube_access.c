#include "kvbridge/kube_access.h"

#include "core/own.h"
#include "core/secret_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kubernetes mounts the service account of a pod here. */
#define ACCOUNT "/var/run/secrets/kubernetes.io/serviceaccount/"

static void put_base(struct kvb_kube_access *access, const char *url)
{
    (void)snprintf(access->base, sizeof access->base, "%s", url);
    const size_t len = strlen(access->base);
    access->base[len - (len > 0 && access->base[len - 1] == '/')] = '\0';
}

/* ---- A kubeconfig ---- */

static void drop_kubeconfig_text(char **text)
{
    if (*text) {
        explicit_bzero(*text, kvb_kubeconfig_bytes);
        free(*text);
    }
}

static kvb_status
read_kubeconfig_file(const char *path, struct kvb_kubeconfig *out, struct kvb_detail *detail)
{
    KVB_OWN(drop_kubeconfig_text) char *text = calloc(1, kvb_kubeconfig_bytes);
    struct kvb_detail why = { .text = "" };
    size_t len = 0;

    if (!text) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_secret_file_read(path, KVB_FILE_PRIVATE, text, kvb_kubeconfig_bytes, &len, detail));
    const kvb_status status =
        kvb_kubeconfig_decode((kvb_span){ (const uint8_t *)text, len }, out, &why);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "%.100s: %.140s", path, why.text);
    }
    return status;
}

/* Paths within a kubeconfig are relative to its folder. */
static kvb_status put_named_path(
    char out[kvb_config_path_bytes], const char *kubeconfig, const char *named,
    struct kvb_detail *detail)
{
    const char *slash = strrchr(kubeconfig, '/');
    const int folder =
        named[0] == '\0' || named[0] == '/' || !slash ? 0 : (int)(slash - kubeconfig) + 1;

    if (snprintf(out, kvb_config_path_bytes, "%.*s%s", folder, kubeconfig, named) >=
        kvb_config_path_bytes) {
        kvb_detail_set(detail, "%.128s: the path is too long", named);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status
check_named_file(const char *path, enum kvb_file_access access, struct kvb_detail *detail)
{
    return path[0] == '\0' ? KVB_OK : kvb_secret_file_check(path, access, detail);
}

/* OpenSSL would ask for its password on the terminal. */
static kvb_status check_kube_key(const char *path, const char *pem_text, struct kvb_detail *detail)
{
    char text[kvb_kubeconfig_pem_bytes];

    KVB_TRY(check_named_file(path, KVB_FILE_PRIVATE, detail));
    if (path[0] != '\0') {
        KVB_TRY(kvb_secret_file_read(path, KVB_FILE_PRIVATE, text, sizeof text, NULL, detail));
    }
    const char *key = path[0] != '\0' ? text : pem_text;
    /* Both forms of an encrypted key have the word in their PEM: that of PKCS #8 and that of
     * OpenSSL. */
    const bool is_encrypted = key && strstr(key, "ENCRYPTED");
    explicit_bzero(text, sizeof text);
    if (is_encrypted) {
        kvb_detail_set(
            detail,
            "client-key is encrypted, and nobody is asked for its password: decrypt it with "
            "openssl pkey");
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* A token file is read after this.  Until then, and when that fails, the former token stays in use:
 * but only with the server and the token file for which it was read. */
static const char *
token_until_read(const struct kvb_kube_access *old, const struct kvb_kube_access *new)
{
    const bool is_same = new->token_file[0] != '\0' &&
                         strcmp(new->token_file, old->token_file) == 0 &&
                         strcmp(new->base, old->base) == 0;

    return is_same ? old->token : "";
}

/* Replaces the access as a whole: the old one stays until the new one is complete. */
static kvb_status load_kubeconfig(struct kvb_kube_access *access, struct kvb_detail *detail)
{
    const char *path = access->config->kubeconfig;
    struct kvb_kube_access new = { .config = access->config };

    KVB_TRY(read_kubeconfig_file(path, &new.kubeconfig, detail));
    const struct kvb_kubeconfig *of = &new.kubeconfig;
    put_base(&new, of->server);
    kvb_status status = put_named_path(new.ca_file, path, of->authority.path, detail);
    status =
        status ? status : put_named_path(new.certificate_file, path, of->certificate.path, detail);
    status = status ? status : put_named_path(new.key_file, path, of->key.path, detail);
    status = status ? status : put_named_path(new.token_file, path, of->token_path, detail);
    status = status ? status : check_named_file(new.ca_file, KVB_FILE_OF_ANYONE, detail);
    status = status ? status : check_named_file(new.certificate_file, KVB_FILE_OF_ANYONE, detail);
    status = status ? status : check_kube_key(new.key_file, of->key.text, detail);
    status = status ? status : kvb_fetch_check_url(new.base, detail);
    if (status != KVB_OK) {
        kvb_kubeconfig_done(&new.kubeconfig);
        return status;
    }
    (void)snprintf(
        new.token, sizeof new.token, "%s",
        of->token[0] != '\0' ? of->token : token_until_read(access, &new));
    /* Only now, because token_until_read() has compared it with the old one. */
    kvb_kube_access_close(access);
    *access = new;
    explicit_bzero(new.token, sizeof new.token);
    return KVB_OK;
}

static kvb_status renew_token(struct kvb_kube_access *access, struct kvb_detail *detail)
{
    char text[kvb_kubeconfig_token_bytes];

    if (access->token_file[0] == '\0') {
        return KVB_OK;
    }
    KVB_TRY(kvb_secret_file_read_line(
        access->token_file, KVB_FILE_OF_ANYONE, text, sizeof text, detail));
    memcpy(access->token, text, sizeof access->token);
    explicit_bzero(text, sizeof text);
    return KVB_OK;
}

static void look_for_doubts(struct kvb_kube_access *access, struct kvb_kube_doubts *out)
{
    const bool has_token = access->token[0] != '\0' || access->token_file[0] != '\0';
    struct kvb_detail why = { .text = "" };

    if (renew_token(access, &why) == KVB_BAD_CONFIG) {
        kvb_detail_set(&out->token, "tokenFile cannot be used now: %s", why.text);
    }
    if (has_token && strncmp(access->base, "http://", strlen("http://")) == 0) {
        kvb_detail_set(
            &out->server,
            "the token goes over http:// in clear: give server an https:// url outside this host");
    }
}

kvb_status kvb_kube_access_check(
    const char *kubeconfig, struct kvb_kube_doubts *out_doubts, struct kvb_detail *detail)
{
    struct kvb_kubernetes_config config = { .is_on = true };
    struct kvb_kube_access *access = calloc(1, sizeof *access);

    if (!access) {
        return KVB_NO_MEMORY;
    }
    (void)snprintf(config.kubeconfig, sizeof config.kubeconfig, "%s", kubeconfig);
    access->config = &config;
    const kvb_status status = load_kubeconfig(access, detail);
    if (status == KVB_OK) {
        look_for_doubts(access, out_doubts);
    }
    kvb_kube_access_close(access);
    free(access);
    return status;
}

/* ---- Opening ---- */

static kvb_status find_own_cluster(struct kvb_kube_access *access, struct kvb_detail *detail)
{
    const char *host = secure_getenv("KUBERNETES_SERVICE_HOST");
    const char *port = secure_getenv("KUBERNETES_SERVICE_PORT");

    /* KVB_IO: a later turn tries again, and the state of the source says why meanwhile. */
    if (!host || host[0] == '\0') {
        kvb_detail_set(
            detail, "this is not a pod, because KUBERNETES_SERVICE_HOST is not set: set "
                    "kubernetes.kubeconfig, or run the bridge in the cluster");
        return KVB_IO;
    }
    (void)snprintf(
        access->base, sizeof access->base, strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s",
        host, port ? port : "443");
    return KVB_OK;
}

kvb_status kvb_kube_access_open(
    struct kvb_kube_access *access, const struct kvb_kubernetes_config *config,
    struct kvb_detail *detail)
{
    access->config = config;
    if (config->kubeconfig[0] != '\0') {
        return load_kubeconfig(access, detail) == KVB_OK ? KVB_OK : KVB_IO;
    }
    (void)snprintf(access->token_file, sizeof access->token_file, "%s", ACCOUNT "token");
    (void)snprintf(access->ca_file, sizeof access->ca_file, "%s", ACCOUNT "ca.crt");
    return find_own_cluster(access, detail);
}

void kvb_kube_access_close(struct kvb_kube_access *access)
{
    kvb_kubeconfig_done(&access->kubeconfig);
    explicit_bzero(access->token, sizeof access->token);
}

/* ---- Using it ---- */

kvb_status kvb_kube_access_renew(struct kvb_kube_access *access, struct kvb_detail *detail)
{
    const bool has_kubeconfig = access->config && access->config->kubeconfig[0] != '\0';
    const kvb_status loaded = has_kubeconfig ? load_kubeconfig(access, detail) : KVB_OK;
    /* The token also when the kubeconfig cannot be read: the one in use has its own file, and
     * expires. */
    const kvb_status status = renew_token(access, loaded == KVB_OK ? detail : NULL);

    return loaded != KVB_OK ? loaded : status;
}

kvb_status kvb_kube_access_namespace(
    const struct kvb_kube_access *access, char out[kvb_pod_namespace_bytes + 1],
    struct kvb_detail *detail)
{
    if (access->config->kubeconfig[0] == '\0') {
        return kvb_secret_file_read_line(
            ACCOUNT "namespace", KVB_FILE_OF_ANYONE, out, kvb_pod_namespace_bytes + 1, detail);
    }
    const char *named = access->kubeconfig.name_space;
    (void)snprintf(out, kvb_pod_namespace_bytes + 1, "%s", named[0] != '\0' ? named : "default");
    return KVB_OK;
}

void kvb_kube_access_show(const struct kvb_kube_access *access, struct kvb_fetch_options *out)
{
    const struct kvb_kubeconfig *of = &access->kubeconfig;

    out->token = access->token;
    out->authority = (struct kvb_fetch_pem){ access->ca_file, of->authority.text };
    out->certificate = (struct kvb_fetch_pem){ access->certificate_file, of->certificate.text };
    out->key = (struct kvb_fetch_pem){ access->key_file, of->key.text };
}
