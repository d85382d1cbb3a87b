#include "core/networks.h"

#include "core/own.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { text_bytes = 64, mapped_bits = 96, max_bits = 128 };

static const uint8_t mapped_prefix[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

/* ---- Parsing ---- */

static bool read_ip(const char *text, uint8_t out_bytes[kvb_network_bytes], bool *out_is_four)
{
    *out_is_four = strchr(text, ':') == NULL;
    if (!*out_is_four) {
        return inet_pton(AF_INET6, text, out_bytes) == 1;
    }
    memcpy(out_bytes, mapped_prefix, sizeof mapped_prefix);
    return inet_pton(AF_INET, text, out_bytes + sizeof mapped_prefix) == 1;
}

/* The bits after '/', counted as those of IPv6; false: not a number within the address. */
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

/* True when no bit after the prefix is set: 10.0.0.1/8 is more likely a typing error than a
 * network. */
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

/* Without brackets and zone. */
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

bool kvb_networks_allow(const struct kvb_networks *networks, const char *address)
{
    static const struct kvb_network refused[] = {
        { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 169, 254 }, mapped_bits + 16 },
        { { 0xfe, 0x80 }, 10 },
        { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 169, 254 }, mapped_bits + 16 }, /* ::169.254.x.x */
        { { 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 169, 254 }, mapped_bits + 16 }, /* NAT64 */
        { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 100, 100, 100, 200 }, max_bits },
        { { 0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54 }, max_bits },
    };
    uint8_t bytes[kvb_network_bytes];

    if (!read_address(address, bytes)) {
        return false;
    }
    return networks->count > 0 ? is_in_list(networks->items, networks->count, bytes)
                               : !is_in_list(refused, KVB_COUNT_OF(refused), bytes);
}
