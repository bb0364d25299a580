// What a user asks for: job.toml and cluster.toml as plain structs.
//
// A spec is parsed, checked and completed with defaults in one call; every problem is reported at
// once with its position. All structs are plain data and may be copied.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/cluster.h"
#include "dp/diag.h"
#include "dp/error.h"
#include "dp/limits.h"
#include "dp/strategy.h"

typedef enum dp_router_kind { DP_MODEL_SOFTMAX, DP_MODEL_SIGMOID } dp_router_kind;
typedef enum dp_rope_kind {
    DP_ROPE_PLAIN,
    DP_ROPE_LINEAR, // positions divided by factor
    DP_ROPE_LLAMA3, // slow pairs alone, by their wave length (Llama 3.1)
    DP_ROPE_YARN,   // Peng et al., arXiv 2309.00071
} dp_rope_kind;

// Rotary angles for sequences longer than those that a model was trained on, as the `transformers`
// package computes them. 0 = the default of each.
struct dp_rope_scaling {
    dp_rope_kind kind;
    int32_t original; // the longest sequence before
    double factor;
    double low_factor, high_factor; // LLAMA3: wave lengths original / high .. original / low; 1, 4
    double beta_fast, beta_slow;    // YARN: turns over `original` between which it blends; 32, 1
    double mscale, mscale_all; // YARN: of the table, and of scores, in units of ln(factor) / 10
    double attention_factor;   // YARN: of the table, in place of what mscale makes
    int32_t untruncated;       // YARN: 1 = the blend's ends are not rounded to whole pairs
};

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
    int32_t expert_groups, top_groups; // group-limited routing; 0 = none
    dp_router_kind router;             // how logits become scores
    int32_t raw_weights; // 1 = weights are the scores, not divided by their sum over the chosen
    double route_scale;  // multiplies the weights; 0 = 1
    int32_t vocabulary;
    int32_t mtp_layers;     // multi-token-prediction layers
    double mtp_loss_weight; // of the mean of their losses; 0 = 0.3
    // Multi-head latent attention widths; mla_kv_rank 0 = plain GQA
    int32_t mla_q_rank, mla_kv_rank, mla_nope_dim, mla_rope_dim, mla_v_dim;
    double rope_theta;
    int32_t rotary_dim; // of a head, from its front, that turns with the position; 0 = all of it
    struct dp_rope_scaling rope;
    double norm_eps;
    double aux_loss_weight; // sequence-wise load-balance loss, 0 = off
    double bias_update;     // what a step moves the bias of an expert's score by, 0 = no bias
    dp_format format;       // it was trained in; AUTO = bf16
    int32_t ffn_matrices;   // of an FFN or expert: 0 or 3 = gated (SwiGLU), 2 = plain (GELU)
    int32_t window;         // tokens that sliding-window attention looks back on; 0 = none
    int32_t window_layers;  // how many of the layers have that window
    int32_t window_from;    // the first layer that may have it
    int32_t tied_embedding; // 1 = embedding and head are one matrix
    int32_t positions;      // learned position embeddings; 0 = rotary
    int32_t qk_norm;        // 1 = RMSNorm over each query's and key's head_dim
    int32_t sinks;          // 1 = one learned sink per attention head
    int32_t biases;         // DP_BIAS_* that exist
    int32_t shared_gate;    // 1 = a learned scalar gate on the shared experts (Qwen2-MoE)
};

enum {
    DP_BIAS_QKV = 1 << 0,
    DP_BIAS_OUTPUT = 1 << 1, // of attention's output projection
    DP_BIAS_FFN = 1 << 2,    // of dense and shared FFNs
    DP_BIAS_ROUTER = 1 << 3, // or a correction of its scores that is learned aside (DeepSeek-V3)
    DP_BIAS_EXPERT = 1 << 4,
    DP_BIAS_NORM = 1 << 5, // LayerNorm instead of RMSNorm
};
// "softmax", "sigmoid"; "none", "linear", "llama3", "yarn".
const char *dp_router_kind_text(dp_router_kind kind);
dp_status dp_router_kind_parse(const char *text, dp_router_kind *ret_kind, struct dp_error *err);
const char *dp_rope_kind_text(dp_rope_kind kind);
dp_status dp_rope_kind_parse(const char *text, dp_rope_kind *ret_kind, struct dp_error *err);
// "none", or names joined by "+" or ",": "qkv+output+ffn+router+expert+norm". Writes at most
// DP_NAME_MAX bytes.
void dp_biases_text(int32_t biases, char ret_text[DP_NAME_MAX]);
dp_status dp_biases_parse(const char *text, int32_t *ret_biases, struct dp_error *err);

struct dp_data_spec {
    char path[DP_PATH_MAX];   // absolute after parsing (relative to the job file)
    double holdout;           // share of the samples kept for evaluation, in [0, 0.5]
    char format[DP_NAME_MAX]; // dp_data_format_parse; "" = auto
    int32_t token_bytes;      // of a token in a file that does not say it; 0 = by the vocabulary
    int32_t shuffle;          // 1 = samples in an order drawn from the seed, 0 = as in the file
};

// Whether what lies there is read as bytes, as far as format and path say.
bool dp_data_may_be_bytes(const struct dp_data_spec *data);

struct dp_train_spec {
    int64_t steps;
    int32_t global_batch;   // samples (sequences) per step over the whole job
    int32_t sequence;       // tokens per sample
    uint64_t seed;          // weights and sample order
    int64_t evaluate_every; // steps between evaluations on what is held out; 0 = only at the end
};

struct dp_optimizer_spec {
    double lr, lr_min; // before and after the decay of the schedule
    int64_t warmup_steps;
    double beta1, beta2, eps, weight_decay;
    double grad_clip;           // global L2 norm; 0 = off
    char schedule[DP_NAME_MAX]; // dp_lr_schedule_parse; "" = cosine
    int64_t decay_steps;        // wsd: the last ones, over which the rate falls; 0 = a tenth
    char moments[DP_NAME_MAX];  // dp_moments_parse; "" = fp32
};

#define DP_REBALANCE_STEPS 100

// 0 (or "") = the planner chooses; a value is obeyed or refused with the reason.
struct dp_parallel_spec {
    int32_t pipeline, expert, data, tensor, context, virtual_stages;
    int32_t microbatches;     // per step and pipeline replica
    int32_t micro_batch_size; // samples
    char schedule[DP_NAME_MAX];
    int32_t expert_tensor;
    int32_t sequence_parallel;       // 1 = on, -1 = off
    int32_t overlap;                 // of exchanges and computation: 1, 0 = on, -1 = off
    char precision[DP_NAME_MAX];     // dp_format_parse
    char shard[DP_NAME_MAX];         // dp_shard_parse
    char recompute[2 * DP_NAME_MAX]; // dp_recompute_parse; "" = the planner chooses
    char offload[2 * DP_NAME_MAX];   // dp_offload_parse; "" = none
    int32_t save_fp8;                // 1 = rows that experts receive are kept in E4M3
    char transport[DP_NAME_MAX];     // dp_transport_name_check; "" = auto
    double peer_timeout_s;           // without a word of a peer it is lost; 0 = as planned
    // Where experts lie among expert ranks: dp_expert_placement_parse, and every so many steps; 0 =
    // DP_REBALANCE_STEPS.
    char expert_placement[DP_NAME_MAX];
    int64_t rebalance_every;
    int32_t expert_copies; // slots more on each rank, for copies of busy experts
    int32_t comm_units;    // multiprocessors that communicate during an FB
    double imbalance;      // fullest expert rank over the mean; 0 = 1, balanced
    // Layers of each stage in order, "4,4,3,...", as many as the schedule has stages.
    char layers_per_stage[4 * DP_STAGES_MAX];
};

struct dp_checkpoint_spec {
    char directory[DP_PATH_MAX]; // absolute; "" = under the controller's state
    int64_t every_steps;         // 0 = only at the end and on demand
    int32_t keep;                // the newest ones; 0 = all
    char resume[DP_PATH_MAX];    // a checkpoint to start from; "" = from scratch
};

struct dp_queue_spec {
    int32_t priority;    // higher goes first
    int32_t preemptible; // 1: makes way for a job of higher priority, with a checkpoint
};

struct dp_retry_spec {
    int32_t max;         // faults of its own that the job survives
    int32_t backoff_s;   // before the first new attempt; doubles
    int32_t no_progress; // attempts in a row without a newer checkpoint that end the job; 0 = none
};

struct dp_recovery_spec {
    char policy[DP_NAME_MAX]; // of ranks that are lost: dp_recovery_parse
};

struct dp_straggler_spec {
    char policy[DP_NAME_MAX]; // of ranks that are slow: dp_straggler_policy_parse
    double threshold;         // how many times as long as others take makes a rank suspected
};

typedef enum dp_device_kind { DP_DEVICE_CPU, DP_DEVICE_SIM, DP_DEVICE_CUDA } dp_device_kind;
const char *dp_device_kind_text(dp_device_kind kind);

struct dp_resources_spec {
    dp_device_kind device;
    int32_t ranks;            // wanted; 0 = what the parallel sizes need, else all that are free
    int32_t threads_per_rank; // that share a rank's computations
    int32_t learn;            // 1: what it took corrects the profiles of its nodes
};

// Times for the sim device, seconds for one micro-batch through one layer; scaled by `scale`.
struct dp_sim_spec {
    double forward_s, input_grad_s, weight_grad_s, pair_s; // F, I, W and one overlapped FB
    double embedding_s, head_s; // added to F of the first and last stage; I and W in proportion
    double hop_s;               // latency of one pipeline hop
    double scale;               // every time above is multiplied by it
    // What is not as planned; the planner does not know of it. Lists, with ';' between their items
    // (dp/sim_items.h).
    char slow[DP_SIM_ITEMS_TEXT_MAX];
    char slow_link[DP_SIM_ITEMS_TEXT_MAX];
    char gap[DP_SIM_ITEMS_TEXT_MAX];
    double noise;                 // of the logarithm of every action's factor; 0 = none
    char noise_file[DP_PATH_MAX]; // "" = none
};

struct dp_job_spec {
    char name[DP_NAME_MAX];
    struct dp_model_spec model;
    struct dp_data_spec data;
    struct dp_train_spec train;
    struct dp_optimizer_spec optimizer;
    struct dp_parallel_spec parallel;
    struct dp_checkpoint_spec checkpoint;
    struct dp_queue_spec queue;
    struct dp_retry_spec retry;
    struct dp_recovery_spec recovery;
    struct dp_straggler_spec straggler;
    struct dp_resources_spec resources;
    struct dp_sim_spec sim;
};

// What a job file says when it says nothing: every default, no model.
void dp_job_spec_init(struct dp_job_spec *spec);
// A job around a model alone, for a question of strategy: one step of 1024 samples of 4096 tokens,
// or of as many as the model has learned positions.
void dp_job_spec_of_model(const struct dp_model_spec *model, dp_device_kind device,
                          struct dp_job_spec *ret_spec);
// Parses job TOML. `base_directory` is what relative paths hang on; with NULL they are refused.
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

// Built-in models by name ("tiny-moe", "deepseek-v3", ...); DP_NOT_FOUND lists the names. Case,
// spaces and "_.-/" do not count, and aliases are known: "DeepSeek-V3/R1", "LLAMA3.1_405B".
dp_status dp_model_preset(const char *name, struct dp_model_spec *ret_model, struct dp_error *err);
const char *const *dp_model_preset_names(void); // ends with NULL
// A Hugging Face config.json, told by its "architectures" and "model_type". DP_UNSUPPORTED names an
// architecture that is not known, why, and the nearest one that is.
dp_status dp_model_from_hf_config(const char *json, size_t length, const char *name,
                                  struct dp_model_spec *ret_model, struct dp_error *err);

// Parameters of one layer by where they work. Matrices multiply every token that reaches them (2
// operations each, forward); vectors are added or scaled by, and are what is left.
struct dp_layer_parts {
    int64_t attention;        // matrices of the projections
    int64_t router;           // its matrix; 0 in a dense layer
    int64_t shared;           // matrices of the dense FFN, or of the shared experts and their gate
    int64_t expert_each;      // matrices of one routed expert; 0 in a dense layer
    int64_t norms;            // of the layer, of MLA's latents, of queries and keys
    int64_t attention_biases; // and sinks
    int64_t router_biases, shared_biases, expert_biases_each;
    int32_t experts, visited; // routed experts of the layer, and how many a token visits
};
// The layer `model->layers` stands for one MTP layer's transformer block.
void dp_model_layer_parts(const struct dp_model_spec *model, int32_t layer,
                          struct dp_layer_parts *ret_parts);
// All that is not routed experts, all of the layer, and what one token meets.
int64_t dp_layer_parts_common(const struct dp_layer_parts *parts);
int64_t dp_layer_parts_total(const struct dp_layer_parts *parts);
int64_t dp_layer_parts_active(const struct dp_layer_parts *parts);
// Tokens that layer's attention looks back on; 0 = all. `window_layers` of the layers have the
// model's window, spread evenly from `window_from` on (every other one of gpt-oss, the last ones of
// Qwen2).
int32_t dp_model_layer_window(const struct dp_model_spec *model, int32_t layer);

// Outside the layers: the embedding with learned positions, and the final norm with the head. A
// head that is tied has its matrix here as well (two stages hold it), but once in a model's total.
int64_t dp_model_embedding_parameters(const struct dp_model_spec *model);
int64_t dp_model_head_parameters(const struct dp_model_spec *model);

// Parameter counts, as the published tensors have them.
int64_t dp_model_layer_parameters(const struct dp_model_spec *model, int32_t layer);
// With embedding and head, without MTP layers (what Hugging Face counts when it loads a model).
int64_t dp_model_parameters(const struct dp_model_spec *model);
// That one token meets: without the input embedding, with the head (also a tied one).
int64_t dp_model_active_parameters(const struct dp_model_spec *model);
// Of the MTP layers alone, which use the model's own embedding and head: each is a layer, the
// projection of two hidden states to one, and three norms.
int64_t dp_model_mtp_parameters(const struct dp_model_spec *model);
// That one token meets in the MTP layers, each with its pass through the head.
int64_t dp_model_mtp_active_parameters(const struct dp_model_spec *model);
// Of a layer, what is not routed experts.
int64_t dp_model_layer_shared_parameters(const struct dp_model_spec *model, int32_t layer);

static inline bool dp_model_layer_is_moe(const struct dp_model_spec *model, int32_t layer)
{
    return model->experts > 0 && layer >= model->dense_layers;
}
