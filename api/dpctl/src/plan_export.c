// dpctl plan --export: the choice as others want it.

#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "plan_request.h"

struct subject {
    const struct plan_request *request;
    const struct dp_job_spec *spec;
    const struct dp_plan *plan;
    struct dp_schedule schedule;
};

static int32_t at_least_one(int32_t value)
{
    return value > 1 ? value : 1;
}

static void flag(const char *text, struct dp_buf *out)
{
    dp_buf_printf(out, " \\\n%s", text);
}

static void sized_flag(const char *name, int32_t value, struct dp_buf *out)
{
    if (value > 1) {
        dp_buf_printf(out, " \\\n%s %d", name, value);
    }
}

// Names of --recompute-modules.
static void megatron_recompute(const struct dp_plan *plan, bool is_moe, struct dp_buf *out)
{
    if ((plan->recompute & DP_RECOMPUTE_FULL) != 0) {
        flag("--recompute-granularity full", out);
        flag("--recompute-method uniform", out);
        flag("--recompute-num-layers 1", out);
        return;
    }
    const struct {
        uint32_t bit;
        const char *name;
    } modules[] = {{DP_RECOMPUTE_NORM, "layernorm"},
                   {DP_RECOMPUTE_UP, "mla_up_proj"},
                   {DP_RECOMPUTE_ACTIVATION, is_moe ? "moe_act" : "mlp"},
                   {DP_RECOMPUTE_ATTENTION, "core_attn"},
                   {DP_RECOMPUTE_EXPERTS, "moe"}};
    if (plan->recompute != 0) {
        flag("--recompute-granularity selective", out);
        flag("--recompute-modules", out);
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(modules); i++) {
        if ((plan->recompute & modules[i].bit) != 0) {
            dp_buf_printf(out, " %s", modules[i].name);
        }
    }
}

static void megatron_format(dp_format format, struct dp_buf *out)
{
    if (format != DP_FORMAT_FP32) {
        flag("--bf16", out);
    }
    switch (format) {
    case DP_FORMAT_FP8:
        flag("--fp8-format hybrid", out);
        flag("--fp8-recipe tensorwise", out);
        break;
    case DP_FORMAT_FP8_BLOCK:
        flag("--fp8-format e4m3", out);
        flag("--fp8-recipe blockwise", out);
        break;
    case DP_FORMAT_MXFP8:
        flag("--fp8-format e4m3", out);
        flag("--fp8-recipe mxfp8", out);
        break;
    case DP_FORMAT_NVFP4:
        flag("--fp4-format e2m1", out);
        flag("--fp4-recipe nvfp4", out);
        break;
    default:
        break;
    }
}

static void megatron_shard(dp_shard shard, struct dp_buf *out)
{
    if (shard == DP_SHARD_ZERO1) {
        flag("--use-distributed-optimizer", out);
    } else if (shard == DP_SHARD_FSDP) {
        flag("--use-megatron-fsdp", out);
        flag("--data-parallel-sharding-strategy optim_grads_params", out);
    }
}

// The pipeline's flags, which say the layout, then those of the other dimensions.
static dp_status write_megatron(const struct subject *subject, struct dp_buf *out,
                                struct dp_error *err)
{
    const struct dp_plan *plan = subject->plan;
    DP_AUTO_FREE int32_t *layers = dp_new_array(int32_t, (size_t)plan->stages);
    for (int32_t s = 0; s < plan->stages; s++) {
        layers[s] = plan->layer_begin[s + 1] - plan->layer_begin[s];
    }
    const struct dp_render_megatron_options options = {
        .layers = subject->spec->model.layers,
        .stage_layers = layers,
        .mtp_layers = subject->spec->model.mtp_layers,
        .micro_batch_size = plan->micro_batch_size,
        .data = plan->data,
    };
    dp_status status = dp_render_megatron(&subject->schedule, &options, out, err);
    if (status != DP_OK) {
        return status;
    }
    out->length -= out->length > 0 && out->bytes[out->length - 1] == '\n'; // there is more to come
    out->bytes[out->length] = '\0';
    dp_buf_printf(out, " \\\n--seq-length %d", subject->spec->train.sequence);
    sized_flag("--tensor-model-parallel-size", plan->tensor, out);
    sized_flag("--context-parallel-size", plan->context, out);
    sized_flag("--expert-model-parallel-size", plan->expert, out);
    if (subject->spec->model.experts > 0 && at_least_one(plan->tensor) > 1) {
        dp_buf_printf(out, " \\\n--expert-tensor-parallel-size %d",
                      at_least_one(plan->expert_tensor));
    }
    if (plan->sequence_parallel) {
        flag("--sequence-parallel", out);
    }
    megatron_shard(plan->shard, out);
    megatron_recompute(plan, subject->spec->model.experts > 0, out);
    megatron_format(plan->format, out);
    dp_buf_puts(out, "\n");
    return DP_OK;
}

struct setting {
    const char *name;
    int32_t value;
};
enum { SETTINGS = 12 };

static void fill_settings(const struct subject *subject, struct setting ret_settings[SETTINGS])
{
    const struct dp_plan *plan = subject->plan;
    const struct setting settings[SETTINGS] = {
        {"world", dp_plan_world(plan)},
        {"pipeline", plan->pipeline},
        {"data", plan->data},
        {"expert", plan->expert},
        {"tensor", at_least_one(plan->tensor)},
        {"context", at_least_one(plan->context)},
        {"expert_tensor", at_least_one(plan->expert_tensor)},
        {"stages", plan->stages},
        {"microbatches", plan->microbatches},
        {"micro_batch_size", plan->micro_batch_size},
        {"global_batch", subject->spec->train.global_batch},
        {"sequence", subject->spec->train.sequence},
    };
    memcpy(ret_settings, settings, sizeof(settings));
}

struct word {
    const char *name, *text;
};
enum { WORDS = 5 };

static void fill_words(const struct subject *subject, char recompute[DP_NAME_MAX],
                       struct word ret_words[WORDS])
{
    const struct dp_plan *plan = subject->plan;
    dp_recompute_text(plan->recompute, recompute);
    const struct word words[WORDS] = {
        {"model", subject->spec->model.name},
        {"schedule", plan->schedule},
        {"precision", dp_format_text(plan->format)},
        {"shard", dp_shard_text(plan->shard)},
        {"recompute", recompute},
    };
    memcpy(ret_words, words, sizeof(words));
}

// A string of Python, which writes them as JSON does.
static void put_python_text(const char *text, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *json = dpctl_text_json(text, strlen(text));
    dp_json_write(json, 0, out);
}

// A module: the sizes, and the order as PyTorch loads it.
static dp_status write_torch(const struct subject *subject, struct dp_buf *out,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf csv = {0};
    dp_status status = dp_render_torch_csv(&subject->schedule, &csv, err);
    if (status != DP_OK) {
        return status;
    }
    struct setting settings[SETTINGS];
    struct word words[WORDS];
    char recompute[DP_NAME_MAX];
    fill_settings(subject, settings);
    fill_words(subject, recompute, words);
    dp_buf_puts(out,
                "# Sizes of a plan, and its order for torch.distributed.pipelining: write\n"
                "# SCHEDULE_CSV to a file for _PipelineScheduleRuntime._load_csv.\nPLAN = {\n");
    for (int i = 0; i < WORDS; i++) {
        dp_buf_printf(out, "    \"%s\": ", words[i].name);
        put_python_text(words[i].text, out);
        dp_buf_puts(out, ",\n");
    }
    for (int i = 0; i < SETTINGS; i++) {
        dp_buf_printf(out, "    \"%s\": %d,\n", settings[i].name, settings[i].value);
    }
    dp_buf_puts(out, "    \"layers_per_stage\": [");
    const int32_t *begin = subject->plan->layer_begin;
    for (int32_t s = 0; s < subject->plan->stages; s++) {
        dp_buf_printf(out, "%s%d", s > 0 ? ", " : "", begin[s + 1] - begin[s]);
    }
    dp_buf_puts(out, "],\n    \"stages_per_rank\": [");
    for (int32_t rank = 0; rank < subject->plan->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(&subject->schedule, rank, stages);
        for (int32_t i = 0; i < count; i++) {
            dp_buf_printf(out, "%s%d", i > 0 ? ", " : rank > 0 ? ", [" : "[", stages[i]);
        }
        dp_buf_puts(out, "]");
    }
    dp_buf_printf(out, "],\n}\nSCHEDULE_CSV = \"\"\"\\\n%s\"\"\"\n", csv.bytes);
    return DP_OK;
}

static void put_variable(const char *name, struct dp_buf *out)
{
    dp_buf_puts(out, "DP_");
    for (; *name != '\0'; name++) {
        dp_buf_printf(out, "%c", *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name);
    }
    dp_buf_puts(out, "=");
}

// Lines that a shell can source.
static dp_status write_env(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    struct setting settings[SETTINGS];
    struct word words[WORDS];
    char recompute[DP_NAME_MAX];
    fill_settings(subject, settings);
    fill_words(subject, recompute, words);
    for (int i = 0; i < WORDS; i++) {
        put_variable(words[i].name, out);
        plan_quote(words[i].text, out);
        dp_buf_puts(out, "\n");
    }
    for (int i = 0; i < SETTINGS; i++) {
        put_variable(settings[i].name, out);
        dp_buf_printf(out, "%d\n", settings[i].value);
    }
    put_variable("layers_per_stage", out);
    const int32_t *begin = subject->plan->layer_begin;
    for (int32_t s = 0; s < subject->plan->stages; s++) {
        dp_buf_printf(out, "%s%d", s > 0 ? "," : "", begin[s + 1] - begin[s]);
    }
    dp_buf_puts(out, "\n");
    return DP_OK;
}

// A rank file for mpirun --rankfile: a slot is the number of the accelerator on its host.
static dp_status write_openmpi(const struct subject *subject, struct dp_buf *out,
                               struct dp_error *err)
{
    (void)err;
    const struct dp_plan *plan = subject->plan;
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        dp_buf_printf(out, "rank %d=%s slot=%d\n", i, plan->ranks[i].node, plan->ranks[i].slot);
    }
    return DP_OK;
}

static const struct form {
    const char *name;
    dp_status (*write)(const struct subject *subject, struct dp_buf *out, struct dp_error *err);
} forms[] = {
    {"megatron", write_megatron},
    {"torch", write_torch},
    {"env", write_env},
    {"openmpi", write_openmpi},
};

static const struct form *find_form(const char *name)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(forms); i++) {
        if (strcmp(forms[i].name, name) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

bool plan_export_knows(const char *format)
{
    return find_form(format) != NULL;
}

dp_status plan_export(struct dpctl *ctl, const struct plan_request *request,
                      const struct plan_question *question, const struct dp_plan *plan,
                      struct dp_error *err)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_plan_schedule(plan, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    const struct subject subject = {request, &question->spec, plan, schedule};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, document = {0};
    status = find_form(request->format)->write(&subject, &text, err);
    if (status != DP_OK) {
        return status;
    }
    if (!ctl->json) {
        return plan_write_text(ctl, request, &text, err);
    }
    dpctl_write_json(json_pack("{s:s, s:o}", "format", request->format, "text",
                               dpctl_text_json(text.bytes, text.length)),
                     "dp.plan.export/1", &document);
    return dpctl_write(ctl, request->out, &document, err);
}
