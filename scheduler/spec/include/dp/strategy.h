// How one model is divided over ranks: every size and choice that a plan fixes.
//
// World = pipeline * data * tensor * context. An expert group is `expert` ranks out of the
// data * tensor * context ranks of one pipeline position (arXiv 2504.14960): expert * expert_tensor
// divides that product, and what is left over holds copies of the same experts.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/limits.h"

// Number format of matrix products; everything else stays in bf16 or fp32.
typedef enum dp_format {
    DP_FORMAT_AUTO, // the model's own where the device has it, else bf16
    DP_FORMAT_FP32,
    DP_FORMAT_BF16,
    DP_FORMAT_FP8,       // one scale per tensor
    DP_FORMAT_FP8_BLOCK, // 1 x 128 activations, 128 x 128 weights
    DP_FORMAT_MXFP8,     // one scale per 32 elements
    DP_FORMAT_NVFP4,     // 4 bits, one scale per 16 elements
    DP_FORMAT_COUNT
} dp_format;
const char *dp_format_text(dp_format format); // "auto", "fp32", "bf16", "fp8", "fp8-block", ...
// DP_INVALID lists the names.
dp_status dp_format_parse(const char *text, dp_format *ret_format, struct dp_error *err);

// What the data-parallel replicas of a parameter share between them.
typedef enum dp_shard {
    DP_SHARD_AUTO,
    DP_SHARD_NONE,  // every replica keeps all
    DP_SHARD_ZERO1, // optimizer states are split
    DP_SHARD_FSDP,  // weights and gradients as well: gathered before use (ZeRO-3)
    DP_SHARD_COUNT
} dp_shard;
const char *dp_shard_text(dp_shard shard); // "auto", "none", "zero1", "fsdp"
// Whether it names what ranks can reach each other over: "auto", "shm", "tcp", "verbs".
dp_status dp_transport_name_check(const char *text, struct dp_error *err);
dp_status dp_shard_parse(const char *text, dp_shard *ret_shard, struct dp_error *err);

// How the learning rate goes on after it has risen over the warm-up.
typedef enum dp_lr_schedule {
    DP_LR_COSINE,   // falls by a half cosine to lr_min at the last step
    DP_LR_WSD,      // stays, then falls by a straight line over the last decay_steps
    DP_LR_CONSTANT, // stays
} dp_lr_schedule;
const char *dp_lr_schedule_text(dp_lr_schedule schedule); // "cosine", "wsd", "constant"
// These take "" as their first name.
dp_status dp_lr_schedule_parse(const char *text, dp_lr_schedule *ret_schedule,
                               struct dp_error *err);

// What the moments of the optimizer are kept in.
typedef enum dp_moments { DP_MOMENTS_FP32, DP_MOMENTS_BF16 } dp_moments;
dp_status dp_moments_parse(const char *text, dp_moments *ret_moments, struct dp_error *err);

// Whether experts move to other ranks by their loads.
typedef enum dp_expert_placement {
    DP_EXPERT_PLACEMENT_OFF,
    DP_EXPERT_PLACEMENT_ADVISE, // what would move is told
    DP_EXPERT_PLACEMENT_AUTO,
} dp_expert_placement;
// "off" (also for ""), "advise", "auto".
dp_status dp_expert_placement_parse(const char *text, dp_expert_placement *ret_placement,
                                    struct dp_error *err);

// What becomes of a job that loses ranks: "auto" (also for ""), the ranks that are left hold their
// state and the job goes on from it, or where a part of it is lost from the newest checkpoint;
// "checkpoint", from the newest checkpoint; "off", it fails.
typedef enum dp_recovery {
    DP_RECOVERY_AUTO,
    DP_RECOVERY_CHECKPOINT,
    DP_RECOVERY_OFF,
} dp_recovery;
dp_status dp_recovery_parse(const char *text, dp_recovery *ret_recovery, struct dp_error *err);

// What is done when ranks are slow.
typedef enum dp_straggler_policy {
    DP_STRAGGLERS_ADVISE, // what would help is told
    DP_STRAGGLERS_OFF,
    DP_STRAGGLERS_AUTO, // it is done
} dp_straggler_policy;
// "advise" (also for ""), "off", "auto".
dp_status dp_straggler_policy_parse(const char *text, dp_straggler_policy *ret_policy,
                                    struct dp_error *err);

// What a corpus is made of.
typedef enum dp_data_format {
    DP_DATA_AUTO,     // as its name and its first bytes say
    DP_DATA_BYTES,    // any file: every byte is a token
    DP_DATA_GPT2,     // .bin files of tokens, with or without the header of llm.c
    DP_DATA_MEGATRON, // pairs of .bin and .idx
} dp_data_format;
const char *dp_data_format_text(dp_data_format format); // "auto", "bytes", "gpt2", "megatron"
dp_status dp_data_format_parse(const char *text, dp_data_format *ret_format, struct dp_error *err);

// What the backward pass computes again instead of keeping it. Bits; FULL stands alone.
enum {
    DP_RECOMPUTE_NORM = 1 << 0,       // outputs of RMSNorm / LayerNorm
    DP_RECOMPUTE_UP = 1 << 1,         // MLA's up-projections with their rotation
    DP_RECOMPUTE_ACTIVATION = 1 << 2, // SwiGLU / GELU outputs
    DP_RECOMPUTE_ATTENTION = 1 << 3,  // the attention core ("selective" of arXiv 2205.05198)
    DP_RECOMPUTE_EXPERTS = 1 << 4,    // the whole expert FFN, its dispatch excepted
    DP_RECOMPUTE_FULL = 1 << 5,       // all of a layer but its input
};
// "none", "full", "selective" (= "attention"), or names joined by "+" or ",": "norm+up+activation".
// Writes at most DP_NAME_MAX bytes.
void dp_recompute_text(uint32_t recompute, char ret_text[DP_NAME_MAX]);
dp_status dp_recompute_parse(const char *text, uint32_t *ret_recompute, struct dp_error *err);

// Saved buffers that wait for the backward pass in host memory. Bits.
enum {
    DP_OFFLOAD_INPUTS = 1 << 0,    // of attention and of the FFN
    DP_OFFLOAD_ATTENTION = 1 << 1, // queries, keys and values, and the attended rows
    DP_OFFLOAD_FFN = 1 << 2,       // the dense or shared FFN's products and activations
    DP_OFFLOAD_EXPERTS = 1 << 3,   // routed rows and their products
};
// "none", or names joined by "+" or ",": "inputs+attention+ffn+experts".
dp_status dp_offload_parse(const char *text, uint32_t *ret_offload, struct dp_error *err);

// "5,4,4": the layers of each stage of a model that has `layers`, at least one, of the stages at
// the ends none as well (an embedding or a head alone). "" is no stage at all. DP_INVALID for
// anything else, and where the sum differs.
dp_status dp_layers_per_stage_parse(const char *text, int32_t layers,
                                    int32_t ret_layers[DP_STAGES_MAX], int32_t *ret_stages,
                                    struct dp_error *err);

struct dp_strategy {
    int32_t pipeline, data, tensor, context, expert, expert_tensor; // all at least 1
    int32_t virtual_stages;                                         // 0 = the family's default
    int32_t microbatches;                                           // per step and replica
    int32_t micro_batch_size;                                       // samples
    char schedule[DP_NAME_MAX];
    bool sequence_parallel; // norms and residuals are split over tensor ranks (needs tensor > 1)
    dp_format format;       // never AUTO
    dp_shard shard;         // never AUTO
    uint32_t recompute;
    // Multiprocessors that move expert traffic while an FB computes on the rest; 0 = the best.
    int32_t comm_units;
    double imbalance; // tokens of the fullest expert rank over their mean, at least 1
};

static inline int64_t dp_strategy_world(const struct dp_strategy *s)
{
    return (int64_t)s->pipeline * s->data * s->tensor * s->context;
}
