#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* A request to start or stop reading one rank of a worker. */

enum { kvb_registration_address_bytes = 256, kvb_registration_topic_bytes = 128 };

struct kvb_registration {
    bool has_worker_id;
    uint64_t worker_id;                 /* 0 .. 2^63-1; from a name such as "vllm-1": below 2^53 */
    char instance[kvb_model_bytes + 1]; /* the id as it was given; "" when it was not */
    bool is_instance_text;              /* it was given as a JSON string */
    char endpoint[kvb_registration_address_bytes];
    char replay_endpoint[kvb_registration_address_bytes]; /* "" for none */
    char topic[kvb_registration_topic_bytes];
    char model[kvb_model_bytes + 1];
    char lora[kvb_model_bytes + 1];
    uint32_t block_size;
    bool has_rank;
    uint32_t dp_rank;
    struct kvb_labels labels;
};
