#include "dp/check.h"
#include "dp/replay.h"

const char *dp_replay_kind_text(dp_replay_kind kind)
{
    static const char *const texts[DP_REPLAY_KIND_COUNT] = {
        [DP_REPLAY_FORWARD_COMPUTE] = "forward-compute",
        [DP_REPLAY_BACKWARD_COMPUTE] = "backward-compute",
        [DP_REPLAY_FORWARD_SEND] = "forward-send",
        [DP_REPLAY_FORWARD_RECV] = "forward-recv",
        [DP_REPLAY_BACKWARD_SEND] = "backward-send",
        [DP_REPLAY_BACKWARD_RECV] = "backward-recv",
        [DP_REPLAY_PARAMS_ALL_GATHER] = "params-all-gather",
        [DP_REPLAY_GRADS_REDUCE_SCATTER] = "grads-reduce-scatter",
        [DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE] = "layernorm-grads-all-reduce",
        [DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE] = "embedding-grads-all-reduce",
        [DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE] = "separate-grads-all-reduce",
        [DP_REPLAY_OPTIMIZER_CLIP] = "optimizer-clip-main-grad",
        [DP_REPLAY_OPTIMIZER] = "optimizer",
        [DP_REPLAY_GC] = "gc",
    };
    DP_CHECK(kind >= 0 && kind < DP_REPLAY_KIND_COUNT);
    return texts[kind];
}

const char *dp_replay_part_text(dp_replay_part part)
{
    static const char *const texts[DP_REPLAY_PART_COUNT] = {
        [DP_REPLAY_PART_FORWARD] = "forward-compute",
        [DP_REPLAY_PART_BACKWARD] = "backward-compute",
        [DP_REPLAY_PART_FORWARD_COMM] = "forward-pp-comm",
        [DP_REPLAY_PART_BACKWARD_COMM] = "backward-pp-comm",
        [DP_REPLAY_PART_PARAMS_ALL_GATHER] = "params-all-gather",
        [DP_REPLAY_PART_GRADS_REDUCE_SCATTER] = "grads-reduce-scatter",
        [DP_REPLAY_PART_LAYERNORM] = "layernorm-grads-all-reduce",
        [DP_REPLAY_PART_EMBEDDING] = "embedding-grads-all-reduce",
        [DP_REPLAY_PART_SEPARATE_GRADS] = "separate-grads-all-reduce",
        [DP_REPLAY_PART_CLIP] = "optimizer-clip-main-grad",
        [DP_REPLAY_PART_OPTIMIZER] = "optimizer",
        [DP_REPLAY_PART_GC] = "gc",
    };
    DP_CHECK(part >= 0 && part < DP_REPLAY_PART_COUNT);
    return texts[part];
}
