// Rules between keys. Each names the key to blame, so that the message points at its line.

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/sim_items.h"
#include "spec_internal.h"

struct check {
    const struct dp_job_spec *spec;
    const struct dp_toml_node *root; // NULL: no positions
    struct dp_diags *diags;
};

// Where "section.key" stands: its value, else its section, else nowhere (line 0).
static void locate(const struct dp_toml_node *root, const char *path, int *ret_line,
                   int *ret_column)
{
    *ret_line = *ret_column = 0;
    const char *dot = strchr(path, '.');
    if (root == NULL) {
        return;
    }
    DP_AUTO_FREE char *section = dot == NULL ? NULL : dp_strndup(path, (size_t)(dot - path));
    const struct dp_toml_node *table = section == NULL ? root : dp_toml_get(root, section);
    if (table == NULL) {
        return;
    }
    *ret_line = table->key_line;
    *ret_column = table->key_column;
    const struct dp_toml_node *node = dp_toml_get(table, dot == NULL ? path : dot + 1);
    if (node != NULL) {
        *ret_line = node->line;
        *ret_column = node->column;
    }
}

static void blame(const struct check *check, const char *path, const char *help, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));

static void blame(const struct check *check, const char *path, const char *help, const char *format,
                  ...)
{
    struct dp_buf message = {0};
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&message, format, args);
    va_end(args);
    int line, column;
    locate(check->root, path, &line, &column);
    dp_diags_add(check->diags, line, column, help, "%s", message.bytes);
    dp_buf_deinit(&message);
}

static void check_name(const struct check *check)
{
    const char *name = check->spec->name;
    bool good = name[0] != '\0' && name[0] != '-' && name[0] != '.';
    for (const char *c = name; *c != '\0'; c++) {
        good = good && (isalnum((unsigned char)*c) || strchr("-_.", *c) != NULL);
    }
    if (!good) {
        blame(check, "name", "use letters, digits, '-', '_' and '.'",
              "\"%s\" cannot be the name of a job", name);
    }
}

// What only the cost model knows, not the cpu device.
static void check_cpu(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    if (check->spec->resources.device != DP_DEVICE_CPU) {
        return;
    }
    const int32_t not_run =
        DP_BIAS_FFN | DP_BIAS_EXPERT | (m->router == DP_MODEL_SOFTMAX ? DP_BIAS_ROUTER : 0);
    const struct {
        const char *path, *what;
        bool wanted;
    } others[] = {
        {"model.mtp_layers", "more than one layer of multi-token prediction", m->mtp_layers > 1},
        {"model.ffn_matrices", "plain FFNs of two matrices", m->ffn_matrices == 2},
        {"model.positions", "learned positions", m->positions > 0},
        {"model.biases", "LayerNorm", (m->biases & DP_BIAS_NORM) != 0},
        {"model.biases", "biases but those of attention's projections", (m->biases & not_run) != 0},
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (others[i].wanted) {
            blame(check, others[i].path, "leave it out, or set device = \"sim\" or \"cuda\"",
                  "the cpu device does not run %s", others[i].what);
        }
    }
}

static void check_windows(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    const int32_t layers = m->layers - m->window_from;
    if (m->window == 0 && m->window_layers > 0) {
        blame(check, "model.window_layers", "set window, or leave window_layers out",
              "%d layers have a window, but it has no width", m->window_layers);
    } else if (m->window == 0 && m->window_from > 0) {
        blame(check, "model.window_from", "set window, or leave window_from out",
              "layers have a window from %d on, but it has no width", m->window_from);
    } else if (layers < 1) {
        blame(check, "model.window_from", "set window_from below layers",
              "windows begin with layer %d, but there are %d layers", m->window_from, m->layers);
    } else if (m->window_layers > layers) {
        blame(check, "model.window_layers", "set window_layers to at most layers - window_from",
              "window_layers is %d, but there are %d layers%s", m->window_layers, layers,
              m->window_from > 0 ? " from window_from on" : "");
    }
}

// What only some models have, and cannot be told from one key alone.
static void check_variants(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    if (m->ffn_matrices != 0 && m->ffn_matrices != 2 && m->ffn_matrices != 3) {
        blame(check, "model.ffn_matrices", "set 3 (gated) or 2 (plain)",
              "an FFN of %d matrix is not known", m->ffn_matrices);
    }
    check_windows(check);
    if (m->shared_gate > 0 && m->shared_experts == 0) {
        blame(check, "model.shared_gate", "set shared_experts, or leave shared_gate out",
              "there are no shared experts that a gate could scale");
    }
    if (m->positions > 0 && check->spec->train.sequence > m->positions) {
        blame(check, "model.positions", "make the sequence shorter, or positions as many",
              "the sequence has %d tokens, but the model only %d learned positions",
              check->spec->train.sequence, m->positions);
    }
}

static void check_rope(const struct check *check)
{
    const struct dp_rope_scaling *rope = &check->spec->model.rope;
    if (rope->kind == DP_ROPE_PLAIN) {
        if (rope->factor > 0) {
            blame(check, "model.rope_factor", "set rope_scaling, or leave rope_factor out",
                  "angles are not scaled, but by a factor of %g", rope->factor);
        }
        return;
    }
    double low = rope->low_factor > 0 ? rope->low_factor : 1;
    double high = rope->high_factor > 0 ? rope->high_factor : 4;
    if (rope->kind == DP_ROPE_LLAMA3 && low >= high) {
        blame(check, "model.rope_low_factor", "make it less than rope_high_factor",
              "rope_low_factor is %g, and rope_high_factor %g", low, high);
    }
    if (rope->factor < 1) {
        blame(check, "model.rope_factor", "set rope_factor to 1 or more",
              "angles are stretched by a factor of %g", rope->factor);
    }
    if (rope->kind != DP_ROPE_LINEAR && rope->original < 1) {
        blame(check, "model.rope_original", "set rope_original, the longest sequence before",
              "%s needs to know the sequence that the model was trained on",
              dp_rope_kind_text(rope->kind));
    }
}

static void check_rotary(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    if (m->rotary_dim > 0 && m->mla_kv_rank > 0) {
        blame(check, "model.rotary_dim", "leave it out: mla_rope_dim says it",
              "multi-head latent attention turns mla_rope_dim of a head");
    } else if (m->rotary_dim % 2 != 0 || m->rotary_dim > m->head_dim) {
        blame(check, "model.rotary_dim", "set an even number up to head_dim",
              "rotary_dim is %d, of heads that are %d wide", m->rotary_dim, m->head_dim);
    }
}

static void check_attention(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    check_rotary(check);
    if (m->mla_kv_rank > 0) {
        if (m->mla_nope_dim <= 0 || m->mla_rope_dim <= 0 || m->mla_v_dim <= 0) {
            blame(check, "model.mla_kv_rank", "set mla_nope_dim, mla_rope_dim and mla_v_dim",
                  "multi-head latent attention needs the widths of its heads");
        }
        if (m->mla_rope_dim % 2 != 0) {
            blame(check, "model.mla_rope_dim", NULL,
                  "mla_rope_dim is %d; rotary positions need an even width", m->mla_rope_dim);
        }
        if (m->qk_norm > 0) {
            blame(check, "model.qk_norm", "leave it out: latents have norms of their own",
                  "multi-head latent attention has no norms of queries and keys");
        }
        return;
    }
    if (m->kv_heads > m->heads || m->heads % m->kv_heads != 0) {
        blame(check, "model.kv_heads", "kv_heads must divide heads",
              "%d heads cannot share %d key-value heads", m->heads, m->kv_heads);
    }
    if (m->head_dim % 2 != 0) {
        blame(check, "model.head_dim", NULL, "head_dim is %d; rotary positions need an even width",
              m->head_dim);
    }
}

static void check_experts(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    if (m->experts == 0) {
        if (m->top_k > 0 || m->shared_experts > 0 || m->expert_ffn > 0) {
            blame(check, "model.experts",
                  "set experts, or remove top_k, shared_experts, expert_ffn",
                  "the model has no experts, but other keys describe them");
        }
        return;
    }
    if (m->top_k < 1) {
        blame(check, "model.top_k", "set top_k", "top_k is 0, but there are %d experts",
              m->experts);
    }
    if (m->top_k > m->experts) {
        blame(check, "model.top_k", NULL, "top_k is %d, but there are only %d experts", m->top_k,
              m->experts);
    }
    if (m->expert_ffn < 1) {
        blame(check, "model.expert_ffn", "set expert_ffn", "experts have no width");
    }
    if (m->expert_groups > 0 && (m->experts % m->expert_groups != 0 || m->top_groups < 1 ||
                                 m->top_groups > m->expert_groups)) {
        blame(check, "model.expert_groups",
              "expert_groups must divide experts, and top_groups be from 1 to expert_groups",
              "%d experts in %d groups, %d of them visited, do not fit", m->experts,
              m->expert_groups, m->top_groups);
    } else if (m->expert_groups > 0 && m->top_k > m->experts / m->expert_groups * m->top_groups) {
        blame(check, "model.top_k", "make top_k smaller, or top_groups larger",
              "top_k is %d, but top_groups = %d of %d groups have only %d experts", m->top_k,
              m->top_groups, m->expert_groups, m->experts / m->expert_groups * m->top_groups);
    }
}

static void check_model(const struct check *check)
{
    const struct dp_model_spec *m = &check->spec->model;
    if (m->layers < 1 || m->hidden < 1 || m->heads < 1 || m->kv_heads < 1 || m->head_dim < 1 ||
        m->vocabulary < 1) {
        blame(check, "model", "set a preset, or layers, hidden and heads",
              "the model has no shape");
        return;
    }
    if (m->dense_layers > m->layers) {
        blame(check, "model.dense_layers", NULL, "dense_layers is %d, but there are %d layers",
              m->dense_layers, m->layers);
    }
    if (m->dense_layers > 0 && m->ffn < 1) {
        blame(check, "model.ffn", "set ffn", "the dense layers' FFN has no width");
    }
    check_attention(check);
    check_rope(check);
    check_cpu(check);
    check_variants(check);
    check_experts(check);
    double total = dp_model_estimate(m);
    if (total > DP_PARAMETERS_MAX) {
        blame(check, "model.layers", NULL, "the model has about %.2g parameters; the limit is %.0e",
              total, DP_PARAMETERS_MAX);
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

bool dp_data_may_be_bytes(const struct dp_data_spec *data)
{
    dp_data_format format = DP_DATA_AUTO;
    if (dp_data_format_parse(data->format, &format, NULL) != DP_OK || format != DP_DATA_AUTO) {
        return format == DP_DATA_BYTES;
    }
    // Whether a file is one of tokens is known for sure only where it lies.
    return !ends_with(data->path, ".bin") && !ends_with(data->path, ".idx");
}

static void check_data(const struct check *check)
{
    const struct dp_data_spec *data = &check->spec->data;
    dp_data_format format = DP_DATA_AUTO;
    struct dp_error why = {0};
    if (dp_data_format_parse(data->format, &format, &why) != DP_OK) {
        blame(check, "data.format", NULL, "%s", why.message);
    }
    if (data->token_bytes != 0 && data->token_bytes != 2 && data->token_bytes != 4) {
        blame(check, "data.token_bytes", "set 2 or 4", "a token of %d bytes is not known",
              data->token_bytes);
    }
    int32_t vocabulary = check->spec->model.vocabulary;
    if (check->spec->resources.device != DP_DEVICE_SIM && vocabulary < 256 &&
        dp_data_may_be_bytes(data)) {
        blame(check, "model.vocabulary", "set vocabulary = 256, or [data] format",
              "text is read as bytes, which need a vocabulary of 256, not %d", vocabulary);
    }
}

// bf16 has 8 bits of mantissa: steps of less than 2^-9 of a value are lost, so a constant square is
// reached to (1 - beta2) / (1 - beta2 + 2^-9) of it, 0.91 here, and 0.34 with 0.999.
#define BF16_BETA2_MAX 0.98

static void check_optimizer(const struct check *check)
{
    const struct dp_optimizer_spec *o = &check->spec->optimizer;
    if (o->lr_min > o->lr) {
        blame(check, "optimizer.lr_min", NULL, "lr_min (%g) is above lr (%g)", o->lr_min, o->lr);
    }
    if (o->warmup_steps > check->spec->train.steps) {
        blame(check, "optimizer.warmup_steps", NULL,
              "warm-up takes %lld steps, but training only %lld", (long long)o->warmup_steps,
              (long long)check->spec->train.steps);
    }
    struct dp_error why = {0};
    dp_lr_schedule schedule = DP_LR_COSINE;
    if (dp_lr_schedule_parse(o->schedule, &schedule, &why) != DP_OK) {
        blame(check, "optimizer.schedule", NULL, "%s", why.message);
    }
    dp_moments moments;
    if (dp_moments_parse(o->moments, &moments, &why) != DP_OK) {
        blame(check, "optimizer.moments", NULL, "%s", why.message);
    } else if (moments == DP_MOMENTS_BF16 && o->beta2 > BF16_BETA2_MAX) {
        blame(check, "optimizer.beta2", "set beta2 to 0.98 or less, or moments = \"fp32\"",
              "a second moment in bf16 stands still with beta2 = %g: a step of it is less than the "
              "last digit",
              o->beta2);
    }
    if (o->decay_steps > 0 && schedule != DP_LR_WSD) {
        blame(check, "optimizer.decay_steps", "set schedule = \"wsd\", or leave decay_steps out",
              "the schedule \"%s\" has no decay_steps", dp_lr_schedule_text(schedule));
    }
    if (o->decay_steps > 0 && o->decay_steps > check->spec->train.steps - o->warmup_steps) {
        blame(check, "optimizer.decay_steps", "make warm-up or decay shorter",
              "%lld steps of decay do not fit into %lld steps with %lld of warm-up",
              (long long)o->decay_steps, (long long)check->spec->train.steps,
              (long long)o->warmup_steps);
    }
}

// What plans for accelerators know, and no device of ours runs yet.
static void check_unsupported(const struct check *check, const char *path, const char *what,
                              int32_t value)
{
    if (value > 1 && check->spec->resources.device != DP_DEVICE_CUDA) {
        blame(check, path, "set it to 1 or remove it",
              "%s parallelism of %d is not supported by the %s device; only 1 is", what, value,
              dp_device_kind_text(check->spec->resources.device));
    }
}

static int32_t at_least_one(int32_t size)
{
    return size > 0 ? size : 1;
}

// Of the formats that parse, those that ranks of the cpu device have products in.
static void check_cpu_format(const struct check *check, dp_format format)
{
    bool is_run = format == DP_FORMAT_AUTO || format == DP_FORMAT_FP32 ||
                  format == DP_FORMAT_BF16 || format == DP_FORMAT_FP8_BLOCK;
    if (check->spec->resources.device == DP_DEVICE_CPU && !is_run) {
        blame(check, "parallel.precision", "set fp32, bf16 or fp8-block",
              "the cpu device has no products in \"%s\"", check->spec->parallel.precision);
    }
}

static void check_choices(const struct check *check)
{
    const struct dp_parallel_spec *p = &check->spec->parallel;
    struct dp_error why = {0};
    dp_format format;
    dp_shard shard;
    uint32_t recompute; // or what to offload
    if (p->precision[0] != '\0' && dp_format_parse(p->precision, &format, &why) != DP_OK) {
        blame(check, "parallel.precision", NULL, "%s", why.message);
    } else if (p->precision[0] != '\0') {
        check_cpu_format(check, format);
    }
    if (p->shard[0] != '\0' && dp_shard_parse(p->shard, &shard, &why) != DP_OK) {
        blame(check, "parallel.shard", NULL, "%s", why.message);
    } else if (p->shard[0] != '\0' && shard == DP_SHARD_FSDP &&
               check->spec->resources.device == DP_DEVICE_CPU) {
        blame(check, "parallel.shard", "set zero1 or none",
              "the cpu device does not gather weights, as \"fsdp\" asks for");
    }
    if (p->transport[0] != '\0' && dp_transport_name_check(p->transport, &why) != DP_OK) {
        blame(check, "parallel.transport", NULL, "%s", why.message);
    }
    dp_expert_placement placement = DP_EXPERT_PLACEMENT_OFF;
    if (dp_expert_placement_parse(p->expert_placement, &placement, &why) != DP_OK) {
        blame(check, "parallel.expert_placement", NULL, "%s", why.message);
    } else if (p->rebalance_every > 0 && placement == DP_EXPERT_PLACEMENT_OFF) {
        blame(check, "parallel.rebalance_every",
              "set expert_placement = \"auto\" or \"advise\", or leave rebalance_every out",
              "loads of experts are looked at every %lld steps, but experts are to stay",
              (long long)p->rebalance_every);
    }
    if (p->offload[0] != '\0' && dp_offload_parse(p->offload, &recompute, &why) != DP_OK) {
        blame(check, "parallel.offload", NULL, "%s", why.message);
    }
    if (p->recompute[0] != '\0' && dp_recompute_parse(p->recompute, &recompute, &why) != DP_OK) {
        blame(check, "parallel.recompute", NULL, "%s", why.message);
    }
}

static void check_layers_per_stage(const struct check *check)
{
    DP_AUTO_FREE int32_t *layers = dp_new_array(int32_t, DP_STAGES_MAX);
    int32_t stages = 0;
    struct dp_error why = {0};
    if (dp_layers_per_stage_parse(check->spec->parallel.layers_per_stage, check->spec->model.layers,
                                  layers, &stages, &why) != DP_OK) {
        blame(check, "parallel.layers_per_stage", NULL, "%s", why.message);
        return;
    }
    for (int32_t s = 0; s < stages; s++) {
        if (layers[s] == 0 && check->spec->resources.device != DP_DEVICE_CUDA) {
            blame(check, "parallel.layers_per_stage", "give every stage a layer",
                  "stage %d has no layer, which the %s device does not run", s,
                  dp_device_kind_text(check->spec->resources.device));
        }
    }
}

// The numbers of ranks beside `asked` that share the experts evenly.
static void blame_expert(const struct check *check, int32_t asked, int32_t experts)
{
    int32_t below = asked < experts ? asked : experts, above = asked;
    while (experts % below != 0) {
        below--;
    }
    while (above <= experts && experts % above != 0) {
        above++;
    }
    if (above <= experts) {
        blame(check, "parallel.expert", NULL,
              "%d expert ranks cannot share %d experts evenly; %d or %d can", asked, experts, below,
              above);
    } else {
        blame(check, "parallel.expert", NULL,
              "%d expert ranks cannot share %d experts evenly; %d can", asked, experts, below);
    }
}

// Copies lie on other ranks than what they are copies of.
static void check_expert_copies(const struct check *check)
{
    const struct dp_parallel_spec *p = &check->spec->parallel;
    const int64_t slots = check->spec->model.experts + (int64_t)p->expert_copies * p->expert;
    if (p->expert_copies == 0) {
        return;
    }
    if (p->expert < 2) {
        blame(check, "parallel.expert_copies", "set expert to 2 or more, or leave it out",
              "expert_copies needs ranks that share the experts, and expert is %s",
              p->expert == 1 ? "1" : "not set");
    } else if (slots > DP_EXPERT_SLOTS_MAX) {
        blame(check, "parallel.expert_copies", NULL,
              "experts and their copies take %lld slots; the limit is %d", (long long)slots,
              DP_EXPERT_SLOTS_MAX);
    }
}

static void check_expert_parallel(const struct check *check)
{
    check_expert_copies(check);
    const struct dp_parallel_spec *p = &check->spec->parallel;
    const struct dp_model_spec *m = &check->spec->model;
    if (p->expert > 1 && m->experts == 0) {
        blame(check, "parallel.expert", "set expert = 1",
              "expert parallelism of %d, but the model has no experts", p->expert);
    } else if (p->expert > 1 && m->experts % p->expert != 0) {
        blame_expert(check, p->expert, m->experts);
    }
    int64_t holders = (int64_t)p->data * at_least_one(p->tensor) * at_least_one(p->context);
    int64_t group = (int64_t)at_least_one(p->expert) * at_least_one(p->expert_tensor);
    bool is_flat = at_least_one(p->tensor) * at_least_one(p->context) == 1;
    if (group > 1 && p->data > 0 && holders % group != 0) {
        if (is_flat && p->expert_tensor <= 1) {
            blame(check, "parallel.expert", "expert groups lie inside data parallelism",
                  "expert (%d) does not divide data (%d)", p->expert, p->data);
        } else {
            blame(check, "parallel.expert",
                  "expert groups lie among the ranks of one pipeline position",
                  "expert x expert_tensor (%lld) does not divide data x tensor x context (%lld)",
                  (long long)group, (long long)holders);
        }
    }
}

// The number nearest to `size` by which `batch` can be divided; the smaller of two as near.
static int64_t nearest_divisor(int64_t batch, int64_t size)
{
    size = size < batch ? size : batch;
    for (int64_t distance = 0; distance < size; distance++) {
        if (batch % (size - distance) == 0) {
            return size - distance;
        }
        if (size + distance <= batch && batch % (size + distance) == 0) {
            return size + distance;
        }
    }
    return 1;
}

// D x M x micro_batch_size must give the global batch; what is set already must divide it.
static void check_batch(const struct check *check)
{
    const struct dp_parallel_spec *p = &check->spec->parallel;
    int64_t batch = check->spec->train.global_batch;
    int64_t set = (int64_t)(p->data > 0 ? p->data : 1) *
                  (p->microbatches > 0 ? p->microbatches : 1) *
                  (p->micro_batch_size > 0 ? p->micro_batch_size : 1);
    if (p->data > 0 && p->microbatches > 0 && p->micro_batch_size > 0) {
        if (set != batch) {
            blame(check, "train.global_batch", NULL,
                  "global_batch is %lld, but data x microbatches x micro_batch_size is %d x %d x "
                  "%d = %lld",
                  (long long)batch, p->data, p->microbatches, p->micro_batch_size, (long long)set);
        }
    } else if (batch > 0 && batch % set != 0) {
        blame(check, "train.global_batch", NULL,
              "global_batch (%lld) is not divisible by what [parallel] sets (data, microbatches, "
              "micro_batch_size: %lld together); the nearest that divides it is %lld",
              (long long)batch, (long long)set, (long long)nearest_divisor(batch, set));
    }
}

static void check_parallel(const struct check *check)
{
    const struct dp_parallel_spec *p = &check->spec->parallel;
    check_unsupported(check, "parallel.tensor", "tensor", p->tensor);
    check_unsupported(check, "parallel.context", "context", p->context);
    check_unsupported(check, "parallel.expert_tensor", "expert tensor", p->expert_tensor);
    check_choices(check);
    check_layers_per_stage(check);
    if (p->pipeline > check->spec->model.layers) {
        blame(check, "parallel.pipeline", "every stage needs a layer",
              "pipeline is %d, but the model has only %d layers", p->pipeline,
              check->spec->model.layers);
    }
    check_expert_parallel(check);
    check_batch(check);
    int64_t shards = (int64_t)at_least_one(p->tensor) * at_least_one(p->context);
    int64_t world = (int64_t)at_least_one(p->pipeline) * at_least_one(p->data) * shards;
    int64_t ranks = check->spec->resources.ranks;
    if (world > DP_RANKS_MAX) {
        blame(check, "parallel.data", NULL, "pipeline x data%s is %lld ranks; the limit is %d",
              shards > 1 ? " x tensor x context" : "", (long long)world, DP_RANKS_MAX);
    }
    if (ranks > 0 && p->pipeline > 0 && p->data > 0 && ranks != world) {
        blame(check, "resources.ranks", "remove ranks, or make it pipeline x data",
              "ranks is %lld, but pipeline x data is %d x %d%s = %lld", (long long)ranks,
              p->pipeline, p->data, shards > 1 ? " x tensor x context" : "", (long long)world);
    } else if (ranks > 0 && ranks % world != 0) {
        blame(check, "resources.ranks", NULL,
              "%lld ranks cannot be divided by what [parallel] sets (pipeline x data%s: %lld)",
              (long long)ranks, shards > 1 ? " x tensor x context" : "", (long long)world);
    }
}

static void check_sim(const struct check *check)
{
    const struct dp_sim_spec *sim = &check->spec->sim;
    const struct {
        const char *path, *text;
        dp_sim_list list;
    } lists[] = {{"sim.slow", sim->slow, DP_SIM_SLOW},
                 {"sim.slow_link", sim->slow_link, DP_SIM_SLOW_LINK},
                 {"sim.gap", sim->gap, DP_SIM_GAP}};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct dp_sim_item items[DP_SIM_ITEMS_MAX];
        size_t count;
        struct dp_error why = {0};
        if (dp_sim_items_parse(lists[i].text, lists[i].list, items, &count, &why) != DP_OK) {
            blame(check, lists[i].path, NULL, "%s", why.message);
        }
    }
    if (sim->slow_link[0] != '\0' && sim->hop_s <= 0) {
        blame(check, "sim.slow_link", "set hop_s", "links that take no time cannot be slow");
    }
    if (check->spec->resources.device == DP_DEVICE_SIM && sim->forward_s <= 0) {
        blame(check, "sim", "set [sim] forward_s and the other times of a layer",
              "device \"sim\" needs to know how long a layer takes");
    }
}

static void check_policies(const struct check *check)
{
    dp_recovery recovery;
    dp_straggler_policy policy;
    struct dp_error why = {0};
    if (dp_recovery_parse(check->spec->recovery.policy, &recovery, &why) != DP_OK) {
        blame(check, "recovery.policy", NULL, "%s", why.message);
    }
    if (dp_straggler_policy_parse(check->spec->straggler.policy, &policy, &why) != DP_OK) {
        blame(check, "straggler.policy", NULL, "%s", why.message);
    }
}

void dp_job_check(const struct dp_job_spec *spec, const struct dp_toml_node *root,
                  struct dp_diags *diags)
{
    struct check check = {spec, root, diags};
    check_name(&check);
    check_model(&check);
    check_data(&check);
    check_optimizer(&check);
    check_parallel(&check);
    if (spec->train.steps < 1 || spec->train.global_batch < 1 || spec->train.sequence < 1) {
        blame(&check, "train", "set steps, global_batch and sequence",
              "[train] does not say how much to train");
    }
    check_policies(&check);
    check_sim(&check);
}
