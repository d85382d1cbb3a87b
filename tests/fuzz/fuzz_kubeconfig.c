#include "pods/kubeconfig.h"
#include "target.h"

#include <stdlib.h>
#include <string.h>

static bool is_whole(const struct kvb_kubeconfig_pem *pem)
{
    return pem->text == NULL || pem->path[0] == '\0'; /* a text or a path, never both */
}

/* An accepted kubeconfig names a server; a refused one leaves the result as it was. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_kubeconfig config = { .server = "as before" };
    struct kvb_detail why = { .text = "" };
    const kvb_status status = kvb_kubeconfig_decode((kvb_span){ data, size }, &config, &why);
    const bool is_as_before = strcmp(config.server, "as before") == 0 && config.token == NULL;

    check(status == KVB_OK || (is_as_before && why.text[0] != '\0'));
    check(
        status != KVB_OK ||
        (config.server[0] != '\0' && config.token != NULL && is_whole(&config.authority) &&
         is_whole(&config.certificate) && is_whole(&config.key)));
    kvb_kubeconfig_done(&config);
    return 0;
}
