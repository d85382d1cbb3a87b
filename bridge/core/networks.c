#include "core/networks.h"

#include "core/own.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { text_bytes = 64, mapped_bits = 96, max_bits = 128 };

/* The first bytes of an IPv4 address as mapped into IPv6. */
#define MAPPED 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff

static const uint8_t mapped_prefix[] = { MAPPED };

/* ---- Parsing ---- */

static bool read_ip(const char *text, uint8_t out_bytes[kvb_network_bytes], bool *out_is_four)
{
    *out_is_four = strchr(text, ':') == NULL;
    if (!*out_is_four) {
        return inet_pton(AF_INET6, text, out_bytes) == 1;
    }
    /* IPv4 as a part of IPv6: one form for all comparisons. */
    memcpy(out_bytes, mapped_prefix, sizeof mapped_prefix);
    return inet_pton(AF_INET, text, out_bytes + sizeof mapped_prefix) == 1;
}

/* Reads the number after '/' and converts it to bits of IPv6.  Returns false when it is not a
 * number or is larger than the address. */
static bool read_prefix(const char *text, bool is_four, uint8_t *out_bits)
{
    const unsigned before = is_four ? mapped_bits : 0;
    char *end = NULL;
    const unsigned long bits = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || bits > max_bits - before) {
        return false;
    }
    *out_bits = (uint8_t)(bits + before);
    return true;
}

static bool is_bit_set(const uint8_t *bytes, unsigned bit)
{
    return (bytes[bit / 8] >> (7 - bit % 8) & 1) != 0;
}

/* Whether no bit after the prefix is set.  10.0.0.1/8 is refused as a probable typing error. */
static bool is_whole_network(const struct kvb_network *network)
{
    for (unsigned bit = network->bits; bit < max_bits; bit++) {
        if (is_bit_set(network->bytes, bit)) {
            return false;
        }
    }
    return true;
}

static bool read_network(const char *text, struct kvb_network *out_network)
{
    const char *slash = strchr(text, '/');
    const size_t len = slash ? (size_t)(slash - text) : strlen(text);
    char address[text_bytes];
    bool is_four = false;

    if (len >= sizeof address) {
        return false;
    }
    memcpy(address, text, len);
    address[len] = '\0';
    out_network->bits = max_bits;
    return read_ip(address, out_network->bytes, &is_four) &&
           (!slash || read_prefix(slash + 1, is_four, &out_network->bits));
}

kvb_status
kvb_networks_add(struct kvb_networks *networks, const char *text, struct kvb_detail *detail)
{
    struct kvb_network network;

    if (networks->count == kvb_max_networks) {
        kvb_detail_set(detail, "at most %d networks: combine them", kvb_max_networks);
        return KVB_TOO_LARGE;
    }
    if (!read_network(text, &network)) {
        kvb_detail_set(
            detail, "\"%.60s\" is no network: expected one such as 10.0.0.0/8 or fd00::/8", text);
        return KVB_BAD_CONFIG;
    }
    if (!is_whole_network(&network)) {
        kvb_detail_set(
            detail, "\"%.60s\" has bits beyond its prefix: set them to 0, or lengthen it", text);
        return KVB_BAD_CONFIG;
    }
    networks->items[networks->count++] = network;
    return KVB_OK;
}

/* ---- Matching ---- */

static bool is_in_network(const struct kvb_network *network, const uint8_t *bytes)
{
    const unsigned whole = network->bits / 8;

    /* Whole bytes at once, the bits of the last one singly. */
    if (memcmp(network->bytes, bytes, whole) != 0) {
        return false;
    }
    for (unsigned bit = whole * 8; bit < network->bits; bit++) {
        if (is_bit_set(network->bytes, bit) != is_bit_set(bytes, bit)) {
            return false;
        }
    }
    return true;
}

static bool is_in_list(const struct kvb_network *networks, size_t count, const uint8_t *bytes)
{
    for (size_t i = 0; i < count; i++) {
        if (is_in_network(&networks[i], bytes)) {
            return true;
        }
    }
    return false;
}

/* Reads an address and ignores brackets and zone. */
static bool read_address(const char *text, uint8_t out_bytes[kvb_network_bytes])
{
    const size_t from = text[0] == '[';
    const size_t len = strcspn(text + from, "]%");
    char address[text_bytes];
    bool is_four = false;

    if (len >= sizeof address) {
        return false;
    }
    memcpy(address, text + from, len);
    address[len] = '\0';
    return read_ip(address, out_bytes, &is_four);
}

/* Metadata services of clouds.  They answer any process on the machine with the machine's
 * credentials.  Sources: the manuals of the clouds; for rows that are not in these, the data
 * sources of cloud-init. */
/* clang-format off */
static const struct kvb_network metadata[] = {
    { { MAPPED, 169, 254 }, mapped_bits + 16 },                           /* link-local, RFC 3927: most clouds */
    { { MAPPED, 100, 100, 100, 200 }, max_bits },                         /* Alibaba Cloud ECS */
    { { MAPPED, 192, 0, 0, 192 }, max_bits },                             /* Oracle Cloud Infrastructure Classic */
    { { MAPPED, 168, 63, 129, 16 }, max_bits },                           /* Azure WireServer */
    { { 0xfe, 0x80 }, 10 },                                               /* link-local, RFC 4291: OpenStack, Akamai */
    { { 0xfd, 0, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54 }, max_bits },      /* Amazon EC2 */
    { { 0xfd, 0, 0x0e, 0xc2, [15] = 0x23 }, max_bits },                   /* Amazon EKS Pod Identity */
    { { 0xfd, 0x20, 0x00, 0xce, [14] = 0x02, [15] = 0x54 }, max_bits },   /* Google Compute Engine */
    { { 0xfd, 0, 0x00, 0xc1, [12] = 0xa9, 0xfe, 0xa9, 0xfe }, max_bits }, /* Oracle Cloud */
    { { 0xfd, 0, 0x01, 0, [12] = 0x01, 0x00, 0x02, 0x00 }, max_bits },    /* Alibaba Cloud ECS */
    { { 0xfd, 0, 0xa9, 0xfe, 0xa9, 0xfe, [15] = 0x01 }, max_bits },       /* Akamai (Linode) */
    { { 0xfd, 0, 0x00, 0x42, [15] = 0x42 }, max_bits },                   /* Scaleway */
};

/* IPv6 networks whose addresses contain an IPv4 address to which a translator or tunnel sends packets.
 * `at` has the positions of its four bytes.  ::ffff:0:0/96 is no row, because such an address is
 * handled as IPv4. */
static const struct ipv4_embedding {
    struct kvb_network network;
    uint8_t at[4];
} embeddings[] = {
    { { { 0 }, 96 }, { 12, 13, 14, 15 } },                         /* compatible, RFC 4291 */
    { { { [8] = 0xff, 0xff }, 96 }, { 12, 13, 14, 15 } },          /* translated, RFC 2765 */
    { { { 0, 0x64, 0xff, 0x9b }, 96 }, { 12, 13, 14, 15 } },       /* NAT64, RFC 6052 */
    { { { 0, 0x64, 0xff, 0x9b, 0, 1 }, 48 }, { 12, 13, 14, 15 } }, /* local NAT64, RFC 8215, */
    { { { 0, 0x64, 0xff, 0x9b, 0, 1 }, 48 }, { 6, 7, 9, 10 } },    /* with prefixes of 96, */
    { { { 0, 0x64, 0xff, 0x9b, 0, 1 }, 48 }, { 7, 9, 10, 11 } },   /* 48, 56 and 64 bits */
    { { { 0, 0x64, 0xff, 0x9b, 0, 1 }, 48 }, { 9, 10, 11, 12 } },
    { { { 0x20, 0x02 }, 16 }, { 2, 3, 4, 5 } },                    /* 6to4, RFC 3056 */
};
/* clang-format on */

static bool is_metadata_embedded(const uint8_t *bytes)
{
    for (size_t i = 0; i < KVB_COUNT_OF(embeddings); i++) {
        const struct ipv4_embedding *row = &embeddings[i];
        uint8_t four[kvb_network_bytes] = { MAPPED };
        for (size_t j = 0; j < sizeof row->at; j++) {
            four[sizeof mapped_prefix + j] = bytes[row->at[j]];
        }
        /* The packet would end at the metadata service. */
        if (is_in_network(&row->network, bytes) &&
            is_in_list(metadata, KVB_COUNT_OF(metadata), four)) {
            return true;
        }
    }
    return false;
}

static bool is_allowed(const uint8_t *bytes)
{
    return !is_in_list(metadata, KVB_COUNT_OF(metadata), bytes) && !is_metadata_embedded(bytes);
}

bool kvb_address_is_allowed(const char *address)
{
    uint8_t bytes[kvb_network_bytes];

    return read_address(address, bytes) && is_allowed(bytes);
}

bool kvb_networks_allow(const struct kvb_networks *networks, const char *address)
{
    uint8_t bytes[kvb_network_bytes];

    return read_address(address, bytes) && is_in_list(networks->items, networks->count, bytes) &&
           is_allowed(bytes);
}
