// What a user asks for: job.toml and cluster.toml as plain structs.
//
// A spec is parsed, checked and completed with defaults in one call; every problem is reported at
// once with its position. All structs are plain data and may be copied.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/diag.h"
#include "dp/error.h"
#include "dp/limits.h"
#include "dp/strategy.h"

// Shapes of a decoder-only transformer. h = hidden, E = experts.
struct dp_model_spec {
    char name[DP_NAME_MAX];
    int32_t layers;
    int32_t dense_layers; // the first ones, with a dense FFN; the rest are MoE if experts > 0
    int32_t hidden;
    int32_t heads, kv_heads, head_dim;
    int32_t ffn;     // intermediate width of a dense layer
    int32_t experts; // routed experts per MoE layer; 0 = dense model
    int32_t top_k;
    int32_t shared_experts; // their widths add up: shared width = shared_experts * expert_ffn
    int32_t expert_ffn;     // intermediate width of one expert
    int32_t expert_groups, top_groups; // group-limited routing (cost model only); 0 = none
    int32_t vocabulary;
    int32_t mtp_layers; // multi-token-prediction layers (cost model only)
    // Multi-head latent attention widths (cost model only); mla_kv_rank 0 = plain GQA
    int32_t mla_q_rank, mla_kv_rank, mla_nope_dim, mla_rope_dim, mla_v_dim;
    double rope_theta;
    double norm_eps;
    double aux_loss_weight; // sequence-wise load-balance loss, 0 = off
    // What follows only the cost model knows; 0 = what the models above have.
    dp_format format;       // it was trained in; AUTO = bf16
    int32_t ffn_matrices;   // of an FFN or expert: 0 or 3 = gated (SwiGLU), 2 = plain (GELU)
    int32_t window;         // tokens that sliding-window attention looks back on; 0 = none
    int32_t window_layers;  // how many of the layers have that window
    int32_t tied_embedding; // 1 = embedding and head are one matrix
    int32_t positions;      // learned position embeddings; 0 = rotary
    int32_t qk_norm;        // 1 = RMSNorm over each query's and key's head_dim
    int32_t sinks;          // 1 = one learned sink per attention head
    int32_t biases;         // DP_BIAS_* that exist
};

enum {
    DP_BIAS_QKV = 1 << 0,
    DP_BIAS_OUTPUT = 1 << 1, // of attention's output projection
    DP_BIAS_FFN = 1 << 2,    // of dense and shared FFNs
    DP_BIAS_ROUTER = 1 << 3,
    DP_BIAS_EXPERT = 1 << 4,
    DP_BIAS_NORM = 1 << 5, // LayerNorm instead of RMSNorm
};

struct dp_data_spec {
    char path[DP_PATH_MAX]; // absolute after parsing (relative to the job file)
    double holdout;         // share of the samples kept for evaluation, in [0, 0.5]
};

struct dp_train_spec {
    int64_t steps;
    int32_t global_batch; // samples (sequences) per step over the whole job
    int32_t sequence;     // tokens per sample
    uint64_t seed;        // weights and sample order
};

struct dp_optimizer_spec {
    double lr, lr_min; // from lr to lr_min by a cosine over the steps after warm-up
    int64_t warmup_steps;
    double beta1, beta2, eps, weight_decay;
    double grad_clip; // global L2 norm; 0 = off
};

// 0 (or "") = the planner chooses; a value is obeyed or refused with the reason.
struct dp_parallel_spec {
    int32_t pipeline, expert, data, tensor, context, virtual_stages;
    int32_t microbatches;     // per step and pipeline replica
    int32_t micro_batch_size; // samples
    char schedule[DP_NAME_MAX];
    int32_t expert_tensor;
    int32_t sequence_parallel;       // 1 = on, -1 = off
    char precision[DP_NAME_MAX];     // dp_format_parse
    char shard[DP_NAME_MAX];         // dp_shard_parse
    char recompute[2 * DP_NAME_MAX]; // dp_recompute_parse; "" = the planner chooses
    int32_t comm_units;              // multiprocessors that communicate during an FB
    double imbalance;                // fullest expert rank over the mean; 0 = 1, balanced
    // Layers of each stage in order, "4,4,3,...", as many as the schedule has stages.
    char layers_per_stage[4 * DP_STAGES_MAX];
};

struct dp_checkpoint_spec {
    char directory[DP_PATH_MAX]; // absolute; "" = under the controller's state
    int64_t every_steps;         // 0 = only at the end and on demand
    char resume[DP_PATH_MAX];    // a checkpoint to start from; "" = from scratch
};

typedef enum dp_device_kind { DP_DEVICE_CPU, DP_DEVICE_SIM, DP_DEVICE_CUDA } dp_device_kind;
const char *dp_device_kind_text(dp_device_kind kind);

struct dp_resources_spec {
    dp_device_kind device;
    int32_t ranks;            // wanted; 0 = what the parallel sizes need, else all that are free
    int32_t threads_per_rank; // BLAS threads
};

// Times for the sim device, seconds for one micro-batch through one layer; scaled by `scale`.
struct dp_sim_spec {
    double forward_s, input_grad_s, weight_grad_s, pair_s; // F, I, W and one overlapped FB
    double embedding_s, head_s; // added to F of the first and last stage; I and W in proportion
    double hop_s;               // latency of one pipeline hop
    double scale;               // every time above is multiplied by it
};

struct dp_job_spec {
    char name[DP_NAME_MAX];
    struct dp_model_spec model;
    struct dp_data_spec data;
    struct dp_train_spec train;
    struct dp_optimizer_spec optimizer;
    struct dp_parallel_spec parallel;
    struct dp_checkpoint_spec checkpoint;
    struct dp_resources_spec resources;
    struct dp_sim_spec sim;
};

// What a job file says when it says nothing: every default, no model.
void dp_job_spec_init(struct dp_job_spec *spec);
// Parses job TOML. `base_directory` is what relative paths hang on; NULL keeps them as they are.
// On DP_INVALID every problem is in diags (which the caller inits with the text and deinits).
// [model] hf_config needs a file to read and is refused here: dpctl inlines it before it submits.
dp_status dp_job_spec_parse(const char *text, size_t length, const char *base_directory,
                            struct dp_diags *diags, struct dp_job_spec *ret_spec,
                            struct dp_error *err);
// Reads and parses a file ("-" = standard input); err holds the rendered problems.
dp_status dp_job_spec_load(const char *path, struct dp_job_spec *ret_spec, struct dp_error *err);
// The same, and lists the problems of the text in *ret_problems, which the caller deinits whatever
// came out (its text is gone by then).
dp_status dp_job_spec_examine(const char *path, struct dp_diags *ret_problems,
                              struct dp_job_spec *ret_spec, struct dp_error *err);
// `--set key=value` on a spec: keys of [parallel] by name, others as "section.key"; "auto" gives a
// size of [parallel] back to the planner, "any" its schedule (schedule = "auto" asks for an order
// that is searched for). Check the spec afterwards.
dp_status dp_job_spec_set(struct dp_job_spec *spec, const char *assignment, struct dp_error *err);
// Checks what a struct must satisfy after edits (the parser has already done so).
dp_status dp_job_spec_check(const struct dp_job_spec *spec, struct dp_error *err);
// How many ranks the job asks for: [resources] ranks, else the fewest that the sizes of [parallel]
// allow (expert stands in for an absent data); 1 when it sets none. *ret_fixed (may be NULL) says
// whether it cannot use more.
int32_t dp_job_spec_ranks(const struct dp_job_spec *spec, bool *ret_fixed);
// Canonical TOML with absolute paths that parses back to the same spec: what submit sends.
void dp_job_spec_write(const struct dp_job_spec *spec, struct dp_buf *out);

// Built-in models by name ("tiny-moe", "deepseek-v3", ...); DP_NOT_FOUND lists the names.
dp_status dp_model_preset(const char *name, struct dp_model_spec *ret_model, struct dp_error *err);
const char *const *dp_model_preset_names(void); // ends with NULL
// A Hugging Face config.json.
dp_status dp_model_from_hf_config(const char *json, size_t length, const char *name,
                                  struct dp_model_spec *ret_model, struct dp_error *err);

// Parameter counts (exact for GQA models; MLA as in the DeepSeek papers).
int64_t dp_model_layer_parameters(const struct dp_model_spec *model, int32_t layer);
int64_t dp_model_parameters(const struct dp_model_spec *model);        // with embedding and head
int64_t dp_model_active_parameters(const struct dp_model_spec *model); // without the embedding
int64_t dp_model_mtp_parameters(const struct dp_model_spec *model);    // of the MTP layers alone
// Of a layer's attention block with its two norms, and of the part that is not routed experts.
int64_t dp_model_attention_parameters(const struct dp_model_spec *model);
int64_t dp_model_layer_shared_parameters(const struct dp_model_spec *model, int32_t layer);

static inline bool dp_model_layer_is_moe(const struct dp_model_spec *model, int32_t layer)
{
    return model->experts > 0 && layer >= model->dense_layers;
}

// Links of one level of the fabric, per rank and direction, after its oversubscription. A group of
// `ranks` neighbours needs no other level; the outermost level joins all (ranks 0).
struct dp_cluster_level {
    char name[DP_NAME_MAX]; // "scale-up", "leaf", "spine"
    int32_t ranks;          // accelerators that it joins; 0 = the whole cluster
    double bandwidth;       // bytes per second
    double latency_s;
    double oversubscription; // what was already divided into bandwidth; 1 = none
};

// One kind of node, `nodes` times.
struct dp_cluster_spec {
    char name[DP_NAME_MAX];
    char accelerator[DP_NAME_MAX]; // preset name ("h800") or "cpu"
    int32_t nodes;
    int32_t ranks_per_node;                          // accelerators, or CPU rank slots
    int32_t cores_per_node;                          // 0 = as many as ranks
    double memory_bytes;                             // per rank
    double flops_peak;                               // dense bf16, per second and rank
    double memory_bandwidth;                         // bytes per second and rank
    double scale_up_bandwidth, scale_up_latency_s;   // inside a node, per rank and direction
    double scale_out_bandwidth, scale_out_latency_s; // between nodes
    int32_t ranks;          // in all; 0 = nodes * ranks_per_node, else the last node has the rest
    int32_t scale_up_ranks; // that the scale-up fabric joins (72 on NVL72); 0 = ranks_per_node
    double fp8_flops_peak;  // dense; 0 = the device has no fp8
    int32_t units;          // multiprocessors or compute units; 0 = unknown
    // Beyond scale-up and scale-out, from inner to outer; none = one flat scale-out fabric.
    struct dp_cluster_level levels[DP_CLUSTER_LEVELS_MAX];
    int32_t levels_count;
};

dp_status dp_cluster_spec_parse(const char *text, size_t length, struct dp_diags *diags,
                                struct dp_cluster_spec *ret_spec, struct dp_error *err);
dp_status dp_cluster_spec_load(const char *path, struct dp_cluster_spec *ret_spec,
                               struct dp_error *err);
// Canonical TOML that parses back to the same spec.
void dp_cluster_spec_write(const struct dp_cluster_spec *spec, struct dp_buf *out);
// A cluster of `ranks` accelerators of one preset ("h800", "h100", ...), as many a node as its
// scale-up domain has (8, or 72 for NVL72); DP_NOT_FOUND lists the names.
dp_status dp_cluster_preset(const char *accelerator, int32_t ranks, struct dp_cluster_spec *ret,
                            struct dp_error *err);
const char *const *dp_cluster_preset_names(void); // ends with NULL
