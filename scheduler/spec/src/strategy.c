// Names of the choices of a strategy.

#include "dp/strategy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/diag.h"
#include "dp/spec.h"

static const char *const format_names[] = {"auto",      "fp32",  "bf16",  "fp8",
                                           "fp8-block", "mxfp8", "nvfp4", NULL};
static const char *const shard_names[] = {"auto", "none", "zero1", "fsdp", NULL};
static const char *const transport_names[] = {"auto", "shm", "tcp", "verbs", NULL};
static const char *const lr_schedule_names[] = {"cosine", "wsd", "constant", NULL};
static const char *const expert_placement_names[] = {"off", "advise", "auto", NULL};
static const char *const recovery_names[] = {"auto", "checkpoint", "off", NULL};
static const char *const straggler_policy_names[] = {"advise", "off", "auto", NULL};
static const char *const moments_names[] = {"fp32", "bf16", NULL};
static const char *const data_format_names[] = {"auto", "bytes", "gpt2", "megatron", NULL};

const char *dp_format_text(dp_format format)
{
    return format_names[format];
}

const char *dp_shard_text(dp_shard shard)
{
    return shard_names[shard];
}

static dp_status parse_name(const char *what, const char *text, const char *const *names,
                            int *ret_index, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf list = {0};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0) {
            *ret_index = i;
            return DP_OK;
        }
        dp_buf_printf(&list, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    const char *near = dp_suggest(text, names);
    return dp_fail(err, DP_INVALID, "no %s is called \"%s\"; %s%s%sthey are %s", what, text,
                   near == NULL ? "" : "did you mean \"", near == NULL ? "" : near,
                   near == NULL ? "" : "\"? ", list.bytes);
}

dp_status dp_format_parse(const char *text, dp_format *ret_format, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_name("precision", text, format_names, &index, err);
    if (status == DP_OK) {
        *ret_format = (dp_format)index;
    }
    return status;
}

dp_status dp_shard_parse(const char *text, dp_shard *ret_shard, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_name("way to shard", text, shard_names, &index, err);
    if (status == DP_OK) {
        *ret_shard = (dp_shard)index;
    }
    return status;
}

dp_status dp_transport_name_check(const char *text, struct dp_error *err)
{
    int index;
    return parse_name("transport", text, transport_names, &index, err);
}

const char *dp_lr_schedule_text(dp_lr_schedule schedule)
{
    return lr_schedule_names[schedule];
}

const char *dp_data_format_text(dp_data_format format)
{
    return data_format_names[format];
}

// "" is the first name.
static dp_status parse_default(const char *what, const char *text, const char *const *names,
                               int *ret_index, struct dp_error *err)
{
    return parse_name(what, text[0] == '\0' ? names[0] : text, names, ret_index, err);
}

dp_status dp_lr_schedule_parse(const char *text, dp_lr_schedule *ret_schedule, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_default("schedule of the rate", text, lr_schedule_names, &index, err);
    if (status == DP_OK) {
        *ret_schedule = (dp_lr_schedule)index;
    }
    return status;
}

dp_status dp_moments_parse(const char *text, dp_moments *ret_moments, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_default("format of moments", text, moments_names, &index, err);
    if (status == DP_OK) {
        *ret_moments = (dp_moments)index;
    }
    return status;
}

dp_status dp_expert_placement_parse(const char *text, dp_expert_placement *ret_placement,
                                    struct dp_error *err)
{
    int index = 0;
    dp_status status =
        parse_default("placement of experts", text, expert_placement_names, &index, err);
    if (status == DP_OK) {
        *ret_placement = (dp_expert_placement)index;
    }
    return status;
}

dp_status dp_recovery_parse(const char *text, dp_recovery *ret_recovery, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_default("policy of recovery", text, recovery_names, &index, err);
    if (status == DP_OK) {
        *ret_recovery = (dp_recovery)index;
    }
    return status;
}

dp_status dp_straggler_policy_parse(const char *text, dp_straggler_policy *ret_policy,
                                    struct dp_error *err)
{
    int index = 0;
    dp_status status =
        parse_default("policy for stragglers", text, straggler_policy_names, &index, err);
    if (status == DP_OK) {
        *ret_policy = (dp_straggler_policy)index;
    }
    return status;
}

dp_status dp_data_format_parse(const char *text, dp_data_format *ret_format, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_default("format of data", text, data_format_names, &index, err);
    if (status == DP_OK) {
        *ret_format = (dp_data_format)index;
    }
    return status;
}

// Sets of named bits: "norm+up". Names beyond the first `bits_count` are other ways to say one.
struct bit_names {
    const char *what;
    const char *const *names; // ends with NULL
    const uint32_t *bits;
    size_t bits_count;
    uint32_t alone; // stands with no other name, as does one without a bit
};

static void bits_text(const struct bit_names *set, uint32_t bits, char ret_text[DP_NAME_MAX])
{
    size_t used = 0;
    snprintf(ret_text, DP_NAME_MAX, "%s", bits == 0 ? "none" : "");
    for (size_t i = 0; i < set->bits_count; i++) {
        if ((bits & set->bits[i]) != 0) {
            used += (size_t)snprintf(ret_text + used, DP_NAME_MAX - used, "%s%s",
                                     used == 0 ? "" : "+", set->names[i]);
        }
    }
}

static dp_status bits_parse(const struct bit_names *set, const char *text, uint32_t *ret_bits,
                            struct dp_error *err)
{
    uint32_t bits = 0;
    int words = 0;
    bool alone = false;
    for (const char *at = text;; words++) {
        size_t length = strcspn(at, "+,");
        DP_AUTO_FREE char *word = dp_strndup(at, length);
        int index = 0;
        dp_status status = parse_name(set->what, word, set->names, &index, err);
        if (status != DP_OK) {
            return status;
        }
        bits |= set->bits[index];
        alone = alone || set->bits[index] == 0 || set->bits[index] == set->alone;
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    if (alone && words > 0) {
        return dp_fail(err, DP_INVALID, "\"%s\": none%s alone", text,
                       set->alone != 0 ? " and full stand" : " stands");
    }
    *ret_bits = bits;
    return DP_OK;
}

static const struct bit_names recompute_names = {
    .what = "part to recompute",
    .names = (const char *const[]){"norm", "up", "activation", "attention", "experts", "full",
                                   "selective", "none", NULL},
    .bits = (const uint32_t[]){DP_RECOMPUTE_NORM, DP_RECOMPUTE_UP, DP_RECOMPUTE_ACTIVATION,
                               DP_RECOMPUTE_ATTENTION, DP_RECOMPUTE_EXPERTS, DP_RECOMPUTE_FULL,
                               DP_RECOMPUTE_ATTENTION, 0},
    .bits_count = 6,
    .alone = DP_RECOMPUTE_FULL,
};

static const struct bit_names offload_names = {
    .what = "kind of buffer to offload",
    .names = (const char *const[]){"inputs", "attention", "ffn", "experts", "none", NULL},
    .bits = (const uint32_t[]){DP_OFFLOAD_INPUTS, DP_OFFLOAD_ATTENTION, DP_OFFLOAD_FFN,
                               DP_OFFLOAD_EXPERTS, 0},
    .bits_count = 4,
};

dp_status dp_offload_parse(const char *text, uint32_t *ret_offload, struct dp_error *err)
{
    return bits_parse(&offload_names, text, ret_offload, err);
}

void dp_recompute_text(uint32_t recompute, char ret_text[DP_NAME_MAX])
{
    bits_text(&recompute_names, recompute, ret_text);
}

dp_status dp_recompute_parse(const char *text, uint32_t *ret_recompute, struct dp_error *err)
{
    return bits_parse(&recompute_names, text, ret_recompute, err);
}

static const struct bit_names bias_names = {
    .what = "bias",
    .names =
        (const char *const[]){"qkv", "output", "ffn", "router", "expert", "norm", "none", NULL},
    .bits = (const uint32_t[]){DP_BIAS_QKV, DP_BIAS_OUTPUT, DP_BIAS_FFN, DP_BIAS_ROUTER,
                               DP_BIAS_EXPERT, DP_BIAS_NORM, 0},
    .bits_count = 6,
};

void dp_biases_text(int32_t biases, char ret_text[DP_NAME_MAX])
{
    bits_text(&bias_names, (uint32_t)biases, ret_text);
}

dp_status dp_biases_parse(const char *text, int32_t *ret_biases, struct dp_error *err)
{
    uint32_t bits = 0;
    dp_status status = bits_parse(&bias_names, text, &bits, err);
    if (status == DP_OK) {
        *ret_biases = (int32_t)bits;
    }
    return status;
}

static const char *const router_names[] = {"softmax", "sigmoid", NULL};
static const char *const rope_names[] = {"none", "linear", "llama3", "yarn", NULL};

static dp_status find_name(const char *const names[], const char *what, const char *text,
                           int *ret_place, struct dp_error *err)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0) {
            *ret_place = i;
            return DP_OK;
        }
    }
    const char *near = dp_suggest(text, names);
    return dp_fail(err, DP_INVALID, "\"%s\" is no %s; did you mean \"%s\"?", text, what,
                   near != NULL ? near : names[0]);
}

const char *dp_router_kind_text(dp_router_kind kind)
{
    return router_names[kind];
}

dp_status dp_router_kind_parse(const char *text, dp_router_kind *ret_kind, struct dp_error *err)
{
    int place = 0;
    dp_status status = find_name(router_names, "router", text, &place, err);
    if (status == DP_OK) {
        *ret_kind = (dp_router_kind)place;
    }
    return status;
}

const char *dp_rope_kind_text(dp_rope_kind kind)
{
    return rope_names[kind];
}

dp_status dp_rope_kind_parse(const char *text, dp_rope_kind *ret_kind, struct dp_error *err)
{
    int place = 0;
    dp_status status = find_name(rope_names, "scaling of rotary angles", text, &place, err);
    if (status == DP_OK) {
        *ret_kind = (dp_rope_kind)place;
    }
    return status;
}

dp_status dp_layers_per_stage_parse(const char *text, int32_t layers,
                                    int32_t ret_layers[DP_STAGES_MAX], int32_t *ret_stages,
                                    struct dp_error *err)
{
    int64_t total = 0;
    int32_t stages = 0;
    for (const char *at = text; *at != '\0';) {
        char *end;
        errno = 0;
        long count = strtol(at, &end, 10);
        bool is_end = stages == 0 || *end == '\0';
        if (end == at || errno != 0 || count < (is_end ? 0 : 1) || count > layers ||
            stages == DP_STAGES_MAX || (*end != ',' && *end != '\0')) {
            return dp_fail(err, DP_INVALID,
                           "layers_per_stage is \"%.60s\"; it takes the layers of each stage, at "
                           "least 1 (0 at the ends), with commas between them",
                           text);
        }
        ret_layers[stages++] = (int32_t)count;
        total += count;
        at = end + (*end == ',');
        at += strspn(at, " ");
    }
    if (stages > 0 && total != layers) {
        return dp_fail(err, DP_INVALID,
                       "layers_per_stage has %lld layers in %d stages, but the model has %d",
                       (long long)total, stages, layers);
    }
    *ret_stages = stages;
    return DP_OK;
}
