// What the tests of prices and of memory begin with.
#pragma once

#include "dp/price.h"

// One rank alone.
static inline struct dp_strategy plain_strategy(void)
{
    return (struct dp_strategy){
        .pipeline = 1,
        .data = 1,
        .tensor = 1,
        .context = 1,
        .expert = 1,
        .expert_tensor = 1,
        .microbatches = 1,
        .micro_batch_size = 1,
        .schedule = "1f1b",
        .format = DP_FORMAT_BF16,
        .shard = DP_SHARD_ZERO1,
        .imbalance = 1,
    };
}
