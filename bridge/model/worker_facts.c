#include "model/worker_facts.h"

#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- Names ---- */

static const char *const roles[KVB_ROLE_COUNT] = {
    [KVB_ROLE_NONE] = "",
    [KVB_ROLE_PREFILL] = "prefill",
    [KVB_ROLE_DECODE] = "decode",
    [KVB_ROLE_BOTH] = "both",
};

const char *kvb_worker_role_name(enum kvb_worker_role role)
{
    return (unsigned)role < KVB_ROLE_COUNT ? roles[role] : "";
}

kvb_status kvb_worker_role_find(const char *name, enum kvb_worker_role *out_role)
{
    for (unsigned i = KVB_ROLE_NONE + 1; i < KVB_ROLE_COUNT; i++) {
        if (strcmp(name, roles[i]) == 0) {
            *out_role = (enum kvb_worker_role)i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

bool kvb_worker_tokenize_is_valid(const char *url)
{
    static const char *const schemes[] = { "http://", "https://" };
    const size_t len = strnlen(url, kvb_worker_address_bytes + 1);

    if (len == 0) {
        return true;
    }
    /* What is appended is a path, so query, fragment, login and a slash at the end would spoil
     * it. */
    if (len > kvb_worker_address_bytes || !kvb_utf8_is_plain(url) || strcspn(url, " ?#@\\") < len ||
        url[len - 1] == '/') {
        return false;
    }
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        const size_t scheme_len = strlen(schemes[i]);
        if (strncmp(url, schemes[i], scheme_len) == 0) {
            return url[scheme_len] != '\0' && url[scheme_len] != '/';
        }
    }
    return false;
}

/* ---- From labels ---- */

static kvb_status settle_role(struct kvb_worker_facts *facts, struct kvb_detail *detail)
{
    const char *label = kvb_labels_find(&facts->labels, "role");
    enum kvb_worker_role role = KVB_ROLE_NONE;

    if (label && facts->role != KVB_ROLE_NONE && strcmp(label, roles[facts->role]) != 0) {
        kvb_detail_set(detail, "role: differs from labels.role; give one of them");
        return KVB_BAD_INPUT;
    }
    /* Another word is a label like any other, and no role that routing knows. */
    if (label && kvb_worker_role_find(label, &role) == KVB_OK) {
        facts->role = role;
    }
    return KVB_OK;
}

static kvb_status settle_address(struct kvb_worker_facts *facts, struct kvb_detail *detail)
{
    const char *address = kvb_labels_find(&facts->labels, "address");

    if (address && facts->address[0] != '\0' && strcmp(address, facts->address) != 0) {
        kvb_detail_set(detail, "address: differs from labels.address; give one of them");
        return KVB_BAD_INPUT;
    }
    if (address) {
        (void)snprintf(facts->address, sizeof facts->address, "%s", address);
    }
    return KVB_OK;
}

kvb_status kvb_worker_facts_settle(struct kvb_worker_facts *facts, struct kvb_detail *detail)
{
    const kvb_status of_address = settle_address(facts, detail);
    const kvb_status of_role = settle_role(facts, detail);

    return of_address != KVB_OK ? of_address : of_role;
}

/* ---- Selecting ---- */

static bool has_role(const struct kvb_worker_facts *facts, const char *wanted)
{
    enum kvb_worker_role role = KVB_ROLE_NONE;

    if (kvb_worker_role_find(wanted, &role) != KVB_OK) {
        /* A role of the operator's own. */
        const char *label = kvb_labels_find(&facts->labels, "role");
        return label && strcmp(label, wanted) == 0;
    }
    return facts->role == role || facts->role == KVB_ROLE_BOTH;
}

static bool is_named(const struct kvb_label *label, const char *name)
{
    return strlen(name) == label->name_len && memcmp(label->pair, name, label->name_len) == 0;
}

static bool has_label(const struct kvb_worker_facts *facts, const struct kvb_label *wanted)
{
    if (is_named(wanted, "role")) {
        return has_role(facts, wanted->value);
    }
    if (is_named(wanted, "address")) {
        return strcmp(facts->address, wanted->value) == 0;
    }
    return kvb_labels_have(&facts->labels, wanted->pair);
}

bool kvb_worker_facts_include(const struct kvb_worker_facts *facts, const struct kvb_labels *wanted)
{
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(wanted, &at, &label);) {
        if (!has_label(facts, &label)) {
            return false;
        }
    }
    return true;
}

bool kvb_worker_facts_are_known(const struct kvb_worker_facts *facts)
{
    static const struct kvb_worker_facts none = { 0 };

    return !kvb_worker_facts_are_same(facts, &none);
}

bool kvb_worker_facts_are_same(
    const struct kvb_worker_facts *one, const struct kvb_worker_facts *other)
{
    return one->role == other->role && one->ready == other->ready &&
           one->is_draining == other->is_draining && one->restarts == other->restarts &&
           one->speculation_of_arguments == other->speculation_of_arguments &&
           one->speculation_of_server == other->speculation_of_server &&
           strcmp(one->address, other->address) == 0 &&
           strcmp(one->tokenize, other->tokenize) == 0 && strcmp(one->pod, other->pod) == 0 &&
           strcmp(one->pod_namespace, other->pod_namespace) == 0 &&
           strcmp(one->node, other->node) == 0 && kvb_labels_are_same(&one->labels, &other->labels);
}
