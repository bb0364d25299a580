// Every key of job.toml: name, where it goes, range, and the line of help that errors show.

#include <math.h>
#include <stdint.h>

#include "spec_internal.h"

#define REAL_MAX 1e300

#define MODEL(member) DP_MEMBER(dp_job_spec, model.member)
#define DATA(member) DP_MEMBER(dp_job_spec, data.member)
#define TRAIN(member) DP_MEMBER(dp_job_spec, train.member)
#define OPTIMIZER(member) DP_MEMBER(dp_job_spec, optimizer.member)
#define PARALLEL(member) DP_MEMBER(dp_job_spec, parallel.member)
#define CHECKPOINT(member) DP_MEMBER(dp_job_spec, checkpoint.member)
#define QUEUE(member) DP_MEMBER(dp_job_spec, queue.member)
#define RETRY(member) DP_MEMBER(dp_job_spec, retry.member)
#define STRAGGLER(member) DP_MEMBER(dp_job_spec, straggler.member)
#define RESOURCES(member) DP_MEMBER(dp_job_spec, resources.member)
#define SIM(member) DP_MEMBER(dp_job_spec, sim.member)

#define I32 DP_KEY_INT32
#define I64 DP_KEY_INT64
#define REAL DP_KEY_DOUBLE

static const struct dp_key top_keys[] = {
    {"name", DP_KEY_TEXT, DP_MEMBER(dp_job_spec, name), 0, 0, false, false, "the job's name"},
};

static const struct dp_key model_keys[] = {
    {"preset", DP_KEY_SPECIAL, 0, 0, 0, 0, false, false, "a built-in model; keys given here win"},
    {"hf_config", DP_KEY_SPECIAL, 0, 0, 0, 0, false, false, "a Hugging Face config.json"},
    {"name", DP_KEY_TEXT, MODEL(name), 0, 0, false, false, "what the model is called"},
    {"layers", I32, MODEL(layers), 1, DP_LAYERS_MAX, false, true, "transformer layers"},
    {"dense_layers", I32, MODEL(dense_layers), 0, DP_LAYERS_MAX, false, false,
     "the first layers, with a dense FFN; the rest are MoE"},
    {"hidden", I32, MODEL(hidden), 1, DP_HIDDEN_MAX, false, true, "width of the residual stream"},
    {"heads", I32, MODEL(heads), 1, DP_HEADS_MAX, false, true, "attention heads"},
    {"kv_heads", I32, MODEL(kv_heads), 1, DP_HEADS_MAX, false, false,
     "key-value heads; default: heads"},
    {"head_dim", I32, MODEL(head_dim), 1, DP_HEADS_MAX, false, false,
     "width of a head; default: hidden / heads"},
    {"ffn", I32, MODEL(ffn), 0, DP_HIDDEN_MAX, false, false, "FFN width of a dense layer"},
    {"experts", I32, MODEL(experts), 0, DP_EXPERTS_MAX, false, false,
     "routed experts per MoE layer; 0 = a dense model"},
    {"top_k", I32, MODEL(top_k), 0, DP_EXPERTS_MAX, false, false, "experts that one token visits"},
    {"shared_experts", I32, MODEL(shared_experts), 0, DP_EXPERTS_MAX, false, false,
     "experts that every token visits"},
    {"expert_ffn", I32, MODEL(expert_ffn), 0, DP_HIDDEN_MAX, false, false,
     "FFN width of one expert"},
    {"expert_groups", I32, MODEL(expert_groups), 0, DP_EXPERTS_MAX, false, false,
     "groups for group-limited routing; 0 = none"},
    {"top_groups", I32, MODEL(top_groups), 0, DP_EXPERTS_MAX, false, false,
     "groups that one token may visit"},
    {"router", DP_KEY_ROUTER, MODEL(router), 0, 0, false, false,
     "what makes scores of experts of logits: softmax or sigmoid"},
    {"raw_weights", I32, MODEL(raw_weights), 0, 1, false, false,
     "1 = weights of experts are their scores, not divided by the sum over the chosen"},
    {"route_scale", REAL, MODEL(route_scale), 0, 1e6, false, false,
     "multiplies the weights of experts; 0 = 1"},
    {"vocabulary", I32, MODEL(vocabulary), 1, DP_VOCABULARY_MAX, false, false,
     "token kinds; default: 256, bytes"},
    {"mtp_layers", I32, MODEL(mtp_layers), 0, DP_LAYERS_MAX, false, false,
     "multi-token-prediction layers"},
    {"mtp_loss_weight", REAL, MODEL(mtp_loss_weight), 0, 1e3, false, false,
     "weight of the loss of multi-token prediction; 0 = 0.3"},
    {"mla_q_rank", I32, MODEL(mla_q_rank), 0, DP_HIDDEN_MAX, false, false,
     "multi-head latent attention: query rank; 0 = full"},
    {"mla_kv_rank", I32, MODEL(mla_kv_rank), 0, DP_HIDDEN_MAX, false, false,
     "multi-head latent attention: key-value rank; 0 = plain attention"},
    {"mla_nope_dim", I32, MODEL(mla_nope_dim), 0, DP_HEADS_MAX, false, false,
     "multi-head latent attention: head width without position"},
    {"mla_rope_dim", I32, MODEL(mla_rope_dim), 0, DP_HEADS_MAX, false, false,
     "multi-head latent attention: head width with position"},
    {"mla_v_dim", I32, MODEL(mla_v_dim), 0, DP_HEADS_MAX, false, false,
     "multi-head latent attention: value width"},
    {"rope_theta", REAL, MODEL(rope_theta), 1, 1e12, false, false, "base of the rotary angles"},
    {"rotary_dim", I32, MODEL(rotary_dim), 0, DP_HEADS_MAX, false, false,
     "width of a head, from its front, that turns with the position; 0 = all of it"},
    {"rope_scaling", DP_KEY_ROPE, MODEL(rope.kind), 0, 0, false, false,
     "rotary angles for longer sequences: none, linear, llama3 or yarn"},
    {"rope_factor", REAL, MODEL(rope.factor), 0, 1e6, false, false,
     "how many times longer they are"},
    {"rope_original", I32, MODEL(rope.original), 0, DP_SEQUENCE_MAX, false, false,
     "the longest sequence before"},
    {"rope_low_factor", REAL, MODEL(rope.low_factor), 0, 1e6, false, false,
     "llama3: waves longer than rope_original over it are stretched; 0 = 1"},
    {"rope_high_factor", REAL, MODEL(rope.high_factor), 0, 1e6, false, false,
     "llama3: waves shorter than rope_original over it are left alone; 0 = 4"},
    {"rope_beta_fast", REAL, MODEL(rope.beta_fast), 0, 1e6, false, false,
     "yarn: pairs with more turns over rope_original are left alone; 0 = 32"},
    {"rope_beta_slow", REAL, MODEL(rope.beta_slow), 0, 1e6, false, false,
     "yarn: pairs with fewer turns over rope_original are stretched; 0 = 1"},
    {"rope_mscale", REAL, MODEL(rope.mscale), 0, 1e3, false, false,
     "yarn: what queries and keys grow by with the logarithm of rope_factor"},
    {"rope_mscale_all", REAL, MODEL(rope.mscale_all), 0, 1e3, false, false,
     "yarn: what the scores of latent attention grow by with that logarithm"},
    {"rope_attention_factor", REAL, MODEL(rope.attention_factor), 0, 1e3, false, false,
     "yarn: what turned queries and keys are multiplied by; 0 = follows from rope_factor"},
    {"rope_untruncated", I32, MODEL(rope.untruncated), 0, 1, false, false,
     "yarn: 1 = the ends of the blend are not rounded to whole pairs"},
    {"norm_eps", REAL, MODEL(norm_eps), 0, 1, false, false, "added to the mean square in RMSNorm"},
    {"aux_loss_weight", REAL, MODEL(aux_loss_weight), 0, 1e3, false, false,
     "weight of the load-balance loss; 0 = off"},
    {"bias_update", REAL, MODEL(bias_update), 0, 1, false, false,
     "what a step moves the bias of an expert's score by, towards balance; 0 = no bias"},
    {"format", DP_KEY_FORMAT, MODEL(format), 0, 0, false, false,
     "number format it was trained in: bf16, fp8, fp8-block, mxfp8, nvfp4, fp32; auto = bf16"},
    {"ffn_matrices", I32, MODEL(ffn_matrices), 0, 3, false, false,
     "matrices of an FFN or expert: 3 = gated (SwiGLU), 2 = plain (GELU); 0 = 3"},
    {"window", I32, MODEL(window), 0, DP_SEQUENCE_MAX, false, false,
     "tokens that sliding-window attention looks back on; 0 = all"},
    {"window_layers", I32, MODEL(window_layers), 0, DP_LAYERS_MAX, false, false,
     "layers with that window, spread evenly from window_from on; default: all of those"},
    {"window_from", I32, MODEL(window_from), 0, DP_LAYERS_MAX, false, false,
     "the first layer that may have that window"},
    {"tied_embedding", I32, MODEL(tied_embedding), 0, 1, false, false,
     "1 = embedding and head are one matrix"},
    {"positions", I32, MODEL(positions), 0, DP_SEQUENCE_MAX, false, false,
     "learned position embeddings; 0 = rotary"},
    {"qk_norm", I32, MODEL(qk_norm), 0, 1, false, false,
     "1 = RMSNorm over the head_dim of queries and keys"},
    {"sinks", I32, MODEL(sinks), 0, 1, false, false, "1 = a learned sink per attention head"},
    {"biases", DP_KEY_BIASES, MODEL(biases), 0, 0, false, false,
     "where biases are: none, or names joined by +: qkv, output, ffn, router, expert, norm"},
    {"shared_gate", I32, MODEL(shared_gate), 0, 1, false, false,
     "1 = a learned gate on the shared experts"},
};

static const struct dp_key data_keys[] = {
    {"path", DP_KEY_PATH, DATA(path), 0, 0, false, false,
     "a file of text or tokens, or a directory of token files; relative to the job file; default: "
     "/usr/share/common-licenses/GPL-3"},
    {"format", DP_KEY_TEXT, DATA(format), 0, 0, false, false,
     "auto, bytes, gpt2 (.bin of tokens, also with llm.c's header) or megatron (.bin with .idx)"},
    {"token_bytes", I32, DATA(token_bytes), 0, 4, false, false,
     "bytes of a token where the file does not say: 2 or 4; 0 = 2 while the vocabulary fits"},
    {"shuffle", I32, DATA(shuffle), 0, 1, false, false,
     "1 = samples in an order drawn from the seed, anew each epoch; 0 = as they lie"},
    {"holdout", REAL, DATA(holdout), 0, 0.5, false, false,
     "share of the samples kept for evaluation"},
};

static const struct dp_key train_keys[] = {
    {"steps", I64, TRAIN(steps), 1, DP_STEPS_MAX, false, true, "optimizer steps"},
    {"global_batch", I32, TRAIN(global_batch), 1, DP_GLOBAL_BATCH_MAX, false, true,
     "samples per step over the whole job"},
    {"sequence", I32, TRAIN(sequence), 1, DP_SEQUENCE_MAX, false, true, "tokens per sample"},
    {"seed", DP_KEY_UINT64, TRAIN(seed), 0, DP_SEED_MAX, false, false,
     "of weights and sample order"},
    {"evaluate_every", I64, TRAIN(evaluate_every), 0, DP_STEPS_MAX, false, false,
     "steps between evaluations on what is held out; 0 = only at the end"},
};

static const struct dp_key optimizer_keys[] = {
    {"lr", REAL, OPTIMIZER(lr), 0, 1e3, false, false, "learning rate after warm-up"},
    {"lr_min", REAL, OPTIMIZER(lr_min), 0, 1e3, false, false,
     "learning rate at the end of the decay"},
    {"warmup_steps", I64, OPTIMIZER(warmup_steps), 0, DP_STEPS_MAX, false, false,
     "steps over which the rate rises from 0"},
    {"beta1", REAL, OPTIMIZER(beta1), 0, 1, true, false, "decay of the first moment"},
    {"beta2", REAL, OPTIMIZER(beta2), 0, 1, true, false, "decay of the second moment"},
    {"eps", REAL, OPTIMIZER(eps), 0, 1, false, false, "added to the root of the second moment"},
    {"weight_decay", REAL, OPTIMIZER(weight_decay), 0, 1e3, false, false, "decoupled weight decay"},
    {"grad_clip", REAL, OPTIMIZER(grad_clip), 0, REAL_MAX, false, false,
     "largest global L2 norm of the gradient; 0 = off"},
    {"schedule", DP_KEY_TEXT, OPTIMIZER(schedule), 0, 0, false, false,
     "after warm-up: cosine, wsd (stays, then falls over decay_steps) or constant"},
    {"decay_steps", I64, OPTIMIZER(decay_steps), 0, DP_STEPS_MAX, false, false,
     "wsd: the last steps, over which the rate falls to lr_min; 0 = a tenth of all"},
    {"moments", DP_KEY_TEXT, OPTIMIZER(moments), 0, 0, false, false,
     "what both moments are kept in: fp32, or bf16 with a beta2 of at most 0.98"},
};

static const struct dp_key parallel_keys[] = {
    {"pipeline", I32, PARALLEL(pipeline), 1, DP_PIPELINE_MAX, false, false, "pipeline ranks"},
    {"expert", I32, PARALLEL(expert), 1, DP_EXPERTS_MAX, false, false,
     "ranks that share one layer's experts; divides data"},
    {"data", I32, PARALLEL(data), 1, DP_RANKS_MAX, false, false, "replicas of the pipeline"},
    {"tensor", I32, PARALLEL(tensor), 1, DP_TENSOR_MAX, false, false,
     "ranks that split every matrix; only plans know more than 1"},
    {"context", I32, PARALLEL(context), 1, DP_CONTEXT_MAX, false, false,
     "ranks that split every sequence; only plans know more than 1"},
    {"expert_tensor", I32, PARALLEL(expert_tensor), 1, DP_TENSOR_MAX, false, false,
     "ranks that split every expert; only plans know more than 1"},
    {"sequence_parallel", I32, PARALLEL(sequence_parallel), -1, 1, false, false,
     "norms are split over tensor ranks: 1 = yes, -1 = no"},
    {"virtual", I32, PARALLEL(virtual_stages), 1, DP_RANK_STAGES_MAX, false, false,
     "stages per rank, where the schedule has a choice"},
    {"microbatches", I32, PARALLEL(microbatches), 1, DP_MICROBATCHES_MAX, false, false,
     "micro-batches per step and replica"},
    {"micro_batch_size", I32, PARALLEL(micro_batch_size), 1, DP_GLOBAL_BATCH_MAX, false, false,
     "samples per micro-batch"},
    {"schedule", DP_KEY_TEXT, PARALLEL(schedule), 0, 0, false, false,
     "a name from dpctl schedule list; \"auto\" = an order that is searched for"},
    {"precision", DP_KEY_TEXT, PARALLEL(precision), 0, 0, false, false,
     "format of matrix products: bf16, fp8, fp8-block, mxfp8, nvfp4, fp32"},
    {"shard", DP_KEY_TEXT, PARALLEL(shard), 0, 0, false, false,
     "what data-parallel ranks split: none, zero1 (optimizer), fsdp (weights as well)"},
    {"recompute", DP_KEY_TEXT, PARALLEL(recompute), 0, 0, false, false,
     "what backward computes again: none, full, selective, or norm+up+activation+experts"},
    {"offload", DP_KEY_TEXT, PARALLEL(offload), 0, 0, false, false,
     "saved buffers that wait in host memory: none, or inputs+attention+ffn+experts"},
    {"save_fp8", I32, PARALLEL(save_fp8), 0, 1, false, false,
     "1 = rows that experts receive are kept in fp8 with a scale for each 128 values"},
    {"transport", DP_KEY_TEXT, PARALLEL(transport), 0, 0, false, false,
     "what ranks reach each other over: auto, shm, tcp, verbs"},
    {"peer_timeout_s", REAL, PARALLEL(peer_timeout_s), 0, DP_TRANSPORT_PLANNED_MS_MAX / 1e3, false,
     false, "seconds without a word of a peer until it is lost; 0 = ten steps, 120 at least"},
    {"overlap", I32, PARALLEL(overlap), -1, 1, false, false,
     "exchanges go on beside computation: 1 = yes (default), -1 = no, to compare"},
    {"expert_placement", DP_KEY_TEXT, PARALLEL(expert_placement), 0, 0, false, false,
     "experts move to other ranks by their loads: off, advise (tell what would move), auto"},
    {"rebalance_every", I64, PARALLEL(rebalance_every), 1, DP_STEPS_MAX, false, false,
     "steps between two looks at the loads of experts; default: 100"},
    {"expert_copies", I32, PARALLEL(expert_copies), 0, DP_EXPERTS_MAX, false, false,
     "slots more on each expert rank than experts need, for copies of busy ones; needs expert"},
    {"comm_units", I32, PARALLEL(comm_units), 1, DP_COMM_UNITS_MAX, false, false,
     "multiprocessors that communicate during an overlapped pair"},
    {"imbalance", REAL, PARALLEL(imbalance), 1, DP_IMBALANCE_MAX, false, false,
     "tokens of the fullest expert rank over their mean"},
    {"layers_per_stage", DP_KEY_TEXT, PARALLEL(layers_per_stage), 0, 0, false, false,
     "layers of each stage in order, \"4,4,3\""},
};

static const struct dp_key checkpoint_keys[] = {
    {"directory", DP_KEY_PATH, CHECKPOINT(directory), 0, 0, false, false,
     "where checkpoints go; default: beside the controller's state"},
    {"every_steps", I64, CHECKPOINT(every_steps), 0, DP_STEPS_MAX, false, false,
     "steps between checkpoints; 0 = only the last"},
    {"keep", I32, CHECKPOINT(keep), 0, DP_CHECKPOINTS_KEPT_MAX, false, false,
     "how many of the directory's newest stay; 0 = all"},
    {"resume", DP_KEY_PATH, CHECKPOINT(resume), 0, 0, false, false,
     "a checkpoint to start from, or a Hugging Face directory, whose weights are taken"},
};

static const struct dp_key queue_keys[] = {
    {"priority", I32, QUEUE(priority), -DP_PRIORITY_MAX, DP_PRIORITY_MAX, false, false,
     "jobs of a higher one go first"},
    {"preemptible", I32, QUEUE(preemptible), 0, 1, false, false,
     "true = makes way, with a checkpoint, for a job of higher priority that finds no room"},
};

static const struct dp_key retry_keys[] = {
    {"max", I32, RETRY(max), 0, DP_RETRIES_MAX, false, false,
     "faults of its own (a rank that failed or was killed) after which the job begins anew from "
     "its newest checkpoint; lost nodes and preemption do not count"},
    {"backoff_s", I32, RETRY(backoff_s), 0, DP_BACKOFF_S_MAX, false, false,
     "seconds before a new attempt; doubles with each that made no progress"},
    {"no_progress", I32, RETRY(no_progress), 0, DP_RETRIES_MAX, false, false,
     "attempts in a row that fail without a newer checkpoint after which the job fails; 0 = any "
     "number"},
};

static const struct dp_key recovery_keys[] = {
    {"policy", DP_KEY_TEXT, DP_MEMBER(dp_job_spec, recovery.policy), 0, 0, false, false,
     "when ranks are lost: auto (go on with what other ranks hold, else from the newest "
     "checkpoint), checkpoint, off (the job fails)"},
};

static const struct dp_key straggler_keys[] = {
    {"policy", DP_KEY_TEXT, STRAGGLER(policy), 0, 0, false, false,
     "when ranks are slow: off, advise (tell what would help), auto (do it)"},
    {"threshold", REAL, STRAGGLER(threshold), 1.11, DP_STRAGGLER_THRESHOLD_MAX, false, false,
     "how many times as long as others that do the same makes a rank suspected"},
};

static const struct dp_key resources_keys[] = {
    {"device", DP_KEY_DEVICE, RESOURCES(device), 0, 0, false, false, "cpu, sim or cuda"},
    {"ranks", I32, RESOURCES(ranks), 1, DP_RANKS_MAX, false, false,
     "ranks wanted; default: what the parallel sizes need"},
    {"threads_per_rank", I32, RESOURCES(threads_per_rank), 1, DP_THREADS_MAX, false, false,
     "threads that share a rank's computations"},
    {"learn", I32, RESOURCES(learn), 0, 1, false, false,
     "1: what the run takes corrects the profiles of its nodes; 0: it does not"},
};

static const struct dp_key sim_keys[] = {
    {"forward_s", REAL, SIM(forward_s), 0, 1e6, false, false,
     "seconds of one layer's forward for one micro-batch"},
    {"input_grad_s", REAL, SIM(input_grad_s), 0, 1e6, false, false,
     "seconds of one layer's input gradient; default: forward_s"},
    {"weight_grad_s", REAL, SIM(weight_grad_s), 0, 1e6, false, false,
     "seconds of one layer's weight gradient; default: forward_s"},
    {"pair_s", REAL, SIM(pair_s), 0, 1e6, false, false,
     "seconds of one layer's overlapped forward and backward; default: their sum"},
    {"embedding_s", REAL, SIM(embedding_s), 0, 1e6, false, false,
     "added to the first stage's forward"},
    {"head_s", REAL, SIM(head_s), 0, 1e6, false, false, "added to the last stage's forward"},
    {"hop_s", REAL, SIM(hop_s), 0, 1e6, false, false, "latency between neighbouring stages"},
    {"scale", REAL, SIM(scale), 1e-9, 1e9, false, false, "multiplies every time above"},
    {"slow", DP_KEY_TEXTS, SIM(slow), 0, 0, false, false,
     "ranks whose actions take longer: a list of WHERE:FACTOR[@STEP[-STEP]]"},
    {"slow_link", DP_KEY_TEXTS, SIM(slow_link), 0, 0, false, false,
     "links whose hops take longer: a list of RANK-RANK or NODE~NODE:FACTOR[@STEP[-STEP]]"},
    {"gap", DP_KEY_TEXTS, SIM(gap), 0, 0, false, false,
     "ranks whose host is late with every action: a list of WHERE:SECONDS[@STEP[-STEP]]"},
    {"noise", REAL, SIM(noise), 0, 2, false, false,
     "every action takes a random factor: the deviation of its logarithm; its mean is 1"},
    {"noise_file", DP_KEY_PATH, SIM(noise_file), 0, 0, false, false,
     "a file of such factors, one a line, in whose order actions take them"},
};

#define SECTION(name, keys)                                                                        \
    {                                                                                              \
        name, keys, sizeof(keys) / sizeof((keys)[0])                                               \
    }

const struct dp_section dp_job_sections[] = {
    SECTION("", top_keys),
    SECTION("model", model_keys),
    SECTION("data", data_keys),
    SECTION("train", train_keys),
    SECTION("optimizer", optimizer_keys),
    SECTION("parallel", parallel_keys),
    SECTION("checkpoint", checkpoint_keys),
    SECTION("queue", queue_keys),
    SECTION("retry", retry_keys),
    SECTION("recovery", recovery_keys),
    SECTION("straggler", straggler_keys),
    SECTION("resources", resources_keys),
    SECTION("sim", sim_keys),
    {NULL, NULL, 0},
};
