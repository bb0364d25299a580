// From kernels to phases, from phases to layers.
#include "dp/trace_fit.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "fit.h"

static const char *const phase_texts[DP_PHASE_COUNT] = {
    [DP_PHASE_ATTN_F] = "attn(F)",         [DP_PHASE_DISPATCH_F] = "dispatch(F)",
    [DP_PHASE_MLP_F] = "mlp(F)",           [DP_PHASE_COMBINE_F] = "combine(F)",
    [DP_PHASE_COMBINE_B] = "combine(B)",   [DP_PHASE_MLP_B] = "mlp(B)",
    [DP_PHASE_DISPATCH_B] = "dispatch(B)", [DP_PHASE_MLP_W] = "mlp(W)",
    [DP_PHASE_ATTN_B] = "attn(B)",         [DP_PHASE_ATTN_W] = "attn(W)",
};

const char *dp_phase_text(dp_phase phase)
{
    return phase_texts[phase];
}

dp_phase dp_phase_of(const char *range_name)
{
    size_t length = strlen(range_name);
    for (int phase = 0; phase < DP_PHASE_COUNT; phase++) {
        size_t own = strlen(phase_texts[phase]);
        if (length >= own && strcmp(range_name + length - own, phase_texts[phase]) == 0 &&
            (length == own || strchr(" /.:|", range_name[length - own - 1]) != NULL)) {
            return (dp_phase)phase;
        }
    }
    return DP_PHASE_COUNT;
}

static bool is_forward(dp_phase phase)
{
    return phase <= DP_PHASE_COMBINE_F;
}

static dp_pass pass_of(dp_phase phase)
{
    if (is_forward(phase)) {
        return DP_PASS_FORWARD;
    }
    return phase == DP_PHASE_MLP_W || phase == DP_PHASE_ATTN_W ? DP_PASS_WEIGHT : DP_PASS_INPUT;
}

void dp_cover_add(struct cover *cover, int64_t start_ns, int64_t end_ns)
{
    int64_t from_ns = start_ns > cover->until_ns ? start_ns : cover->until_ns;
    if (end_ns > from_ns) {
        cover->length_ns += end_ns - from_ns;
        cover->until_ns = end_ns;
    }
}

struct group {
    const struct dp_trace_kernel *kernel;
    dp_phase phase;
};

// By instance of a phase, then stream; within, by start as they were.
static int by_group(const void *a, const void *b)
{
    const struct dp_trace_kernel *l = ((const struct group *)a)->kernel;
    const struct dp_trace_kernel *r = ((const struct group *)b)->kernel;
    if (l->range != r->range) {
        return l->range < r->range ? -1 : 1;
    }
    if (l->stream != r->stream) {
        return l->stream < r->stream ? -1 : 1;
    }
    return l < r ? -1 : l > r;
}

static int by_start(const void *a, const void *b)
{
    const struct dp_trace_kernel *l = ((const struct group *)a)->kernel;
    const struct dp_trace_kernel *r = ((const struct group *)b)->kernel;
    return l < r ? -1 : l > r;
}

// One occurrence of a phase, in ns.
struct instance {
    int64_t start_ns, end_ns;
    int64_t busy_ns, other_ns; // compute on the busiest stream, and on the others
    int64_t exchange_ns, data_ns;
    int64_t kinds_ns[DP_KERNEL_KIND_COUNT];
};

static void take_stream(struct instance *instance, const struct group *groups, size_t count)
{
    struct cover compute = {.until_ns = INT64_MIN}, exchange = compute, data = compute;
    for (size_t i = 0; i < count; i++) {
        const struct dp_trace_kernel *kernel = groups[i].kernel;
        bool communicates = dp_kernel_is_communication(kernel->kind);
        dp_cover_add(communicates ? &exchange : &compute, kernel->start_ns, kernel->end_ns);
        if (communicates && kernel->kind != DP_KERNEL_NOTIFY) {
            dp_cover_add(&data, kernel->start_ns, kernel->end_ns);
        }
        instance->kinds_ns[kernel->kind] += kernel->end_ns - kernel->start_ns;
        instance->start_ns =
            kernel->start_ns < instance->start_ns ? kernel->start_ns : instance->start_ns;
        instance->end_ns = kernel->end_ns > instance->end_ns ? kernel->end_ns : instance->end_ns;
    }
    instance->exchange_ns += exchange.length_ns;
    instance->data_ns += data.length_ns;
    if (compute.length_ns > instance->busy_ns) {
        instance->other_ns += instance->busy_ns;
        instance->busy_ns = compute.length_ns;
    } else {
        instance->other_ns += compute.length_ns;
    }
}

// At least one stream computes; `groups` are by start.
static int64_t computing_ns(const struct group *groups, size_t count)
{
    struct cover cover = {.until_ns = INT64_MIN};
    for (size_t i = 0; i < count; i++) {
        if (!dp_kernel_is_communication(groups[i].kernel->kind)) {
            dp_cover_add(&cover, groups[i].kernel->start_ns, groups[i].kernel->end_ns);
        }
    }
    return cover.length_ns;
}

// Kernels on streams side by side slow each other down: together they are as long as their union.
static void add_instance(struct dp_phase_fit *phase, const struct instance *instance,
                         int64_t compute_ns)
{
    int64_t computed_ns = 0;
    for (int kind = 0; kind < DP_KERNEL_KIND_COUNT; kind++) {
        computed_ns +=
            dp_kernel_is_communication((dp_kernel_kind)kind) ? 0 : instance->kinds_ns[kind];
    }
    double shrink = computed_ns > 0 ? (double)compute_ns / (double)computed_ns : 1;
    for (int kind = 0; kind < DP_KERNEL_KIND_COUNT; kind++) {
        double s = (double)instance->kinds_ns[kind] * 1e-9;
        phase->by_kind_s[kind] += dp_kernel_is_communication((dp_kernel_kind)kind) ? s : s * shrink;
    }
    phase->count++;
    phase->span_s += (double)(instance->end_ns - instance->start_ns) * 1e-9;
    phase->busy_s += (double)instance->busy_ns * 1e-9;
    phase->auxiliary_s += (double)instance->other_ns * 1e-9;
    phase->compute_s += (double)compute_ns * 1e-9;
    phase->exchange_s += (double)instance->exchange_ns * 1e-9;
    phase->data_s += (double)instance->data_ns * 1e-9;
}

static void take_instance(struct dp_trace_fit *fit, struct group *groups, size_t count)
{
    struct instance instance = {.start_ns = INT64_MAX, .end_ns = INT64_MIN};
    for (size_t i = 0; i < count;) {
        size_t next = i + 1;
        while (next < count && groups[next].kernel->stream == groups[i].kernel->stream) {
            next++;
        }
        take_stream(&instance, groups + i, next - i);
        i = next;
    }
    qsort(groups, count, sizeof(*groups), by_start);
    add_instance(&fit->phases[groups[0].phase], &instance, computing_ns(groups, count));
}

static void means(struct dp_phase_fit *phase)
{
    double *sums[] = {&phase->span_s,    &phase->busy_s,     &phase->auxiliary_s,
                      &phase->compute_s, &phase->exchange_s, &phase->data_s};
    for (size_t i = 0; phase->count > 0 && i < sizeof sums / sizeof sums[0]; i++) {
        *sums[i] /= phase->count;
    }
    for (int kind = 0; phase->count > 0 && kind < DP_KERNEL_KIND_COUNT; kind++) {
        phase->by_kind_s[kind] /= phase->count;
    }
}

static void take_phases(struct dp_trace_fit *fit, struct group *groups, size_t count)
{
    qsort(groups, count, sizeof(*groups), by_group);
    for (size_t i = 0; i < count;) {
        size_t next = i + 1;
        while (next < count && groups[next].kernel->range == groups[i].kernel->range) {
            next++;
        }
        take_instance(fit, groups + i, next - i);
        i = next;
    }
    for (int phase = 0; phase < DP_PHASE_COUNT; phase++) {
        means(&fit->phases[phase]);
    }
}

static int32_t greater(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void sum_layers(struct dp_trace_fit *fit)
{
    const struct dp_phase_fit *phases = fit->phases;
    int32_t forward = greater(phases[DP_PHASE_ATTN_F].count, phases[DP_PHASE_MLP_F].count);
    int32_t backward = greater(phases[DP_PHASE_ATTN_B].count, phases[DP_PHASE_MLP_B].count);
    fit->layers = greater(forward, backward);
    double *by_pass[DP_PASS_COUNT] = {&fit->forward_s, &fit->input_s, &fit->weight_s};
    for (int p = 0; p < DP_PHASE_COUNT; p++) {
        dp_pass pass = pass_of((dp_phase)p);
        *by_pass[pass] += phases[p].busy_s;
        fit->weight_wall_s += pass == DP_PASS_WEIGHT ? phases[p].compute_s : 0;
        bool forward_pass = pass == DP_PASS_FORWARD;
        *(forward_pass ? &fit->forward_data_s : &fit->input_data_s) += phases[p].data_s;
        *(forward_pass ? &fit->forward_wait_s : &fit->input_wait_s) +=
            phases[p].exchange_s - phases[p].data_s;
        for (int kind = 0; kind < DP_KERNEL_KIND_COUNT; kind++) {
            fit->by_kind_s[pass][kind] += phases[p].by_kind_s[kind];
        }
    }
}

// Kernels in the order of their start.
void dp_fit_totals(struct dp_trace_fit *fit, const struct dp_trace_kernel *const *kernels,
                   size_t count)
{
    struct cover compute = {.until_ns = INT64_MIN}, exchange = compute, both = compute;
    int64_t end_ns = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        bool communicates = dp_kernel_is_communication(kernels[i]->kind);
        dp_cover_add(communicates ? &exchange : &compute, kernels[i]->start_ns, kernels[i]->end_ns);
        dp_cover_add(&both, kernels[i]->start_ns, kernels[i]->end_ns);
        end_ns = kernels[i]->end_ns > end_ns ? kernels[i]->end_ns : end_ns;
    }
    fit->wall_s = (double)(end_ns - kernels[0]->start_ns) * 1e-9;
    fit->compute_busy_s = (double)compute.length_ns * 1e-9;
    fit->exchange_busy_s = (double)exchange.length_ns * 1e-9;
    fit->exposed_s = fit->wall_s - fit->compute_busy_s;
    int64_t shared_ns = compute.length_ns + exchange.length_ns - both.length_ns;
    fit->hidden_share = exchange.length_ns > 0 ? (double)shared_ns / (double)exchange.length_ns : 0;
}

static int by_number(const void *a, const void *b)
{
    return (*(const int32_t *)a > *(const int32_t *)b) -
           (*(const int32_t *)a < *(const int32_t *)b);
}

int32_t dp_fit_exchange_units(const struct dp_trace_kernel *const *kernels, size_t count)
{
    DP_AUTO_FREE int32_t *blocks = dp_new_array(int32_t, count);
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        dp_kernel_kind kind = kernels[i]->kind;
        bool moves =
            kind == DP_KERNEL_DISPATCH || kind == DP_KERNEL_COMBINE || kind == DP_KERNEL_EXCHANGE;
        if (moves && kernels[i]->blocks > 0) {
            blocks[known++] = kernels[i]->blocks;
        }
    }
    if (known == 0) {
        return 0;
    }
    qsort(blocks, known, sizeof(*blocks), by_number);
    return blocks[known / 2];
}

// Time that communication of one direction and compute of the other have in common.
static int64_t crossing_ns(const struct group *groups, size_t count, bool forward_communicates)
{
    struct cover one = {.until_ns = INT64_MIN}, other = one, both = one;
    for (size_t i = 0; i < count; i++) {
        const struct dp_trace_kernel *kernel = groups[i].kernel;
        bool communicates = dp_kernel_is_communication(kernel->kind);
        bool forward = is_forward(groups[i].phase);
        if (communicates == (forward == forward_communicates)) {
            dp_cover_add(communicates ? &one : &other, kernel->start_ns, kernel->end_ns);
            dp_cover_add(&both, kernel->start_ns, kernel->end_ns);
        }
    }
    return one.length_ns + other.length_ns - both.length_ns;
}

static void fit_ranges(struct group *groups, size_t count, struct dp_trace_fit *fit)
{
    DP_AUTO_FREE const struct dp_trace_kernel **kernels =
        dp_new_array(const struct dp_trace_kernel *, count);
    for (size_t i = 0; i < count; i++) {
        kernels[i] = groups[i].kernel;
    }
    fit->annotated = true;
    dp_fit_totals(fit, kernels, count);
    // An exchange beside compute of its own direction is overlapped some other way.
    int64_t crossing = crossing_ns(groups, count, true) + crossing_ns(groups, count, false);
    fit->paired = (double)crossing * 1e-9 > fit->exchange_busy_s / 4 && crossing > 0;
    fit->exchange_units = dp_fit_exchange_units(kernels, count);
    take_phases(fit, groups, count);
    sum_layers(fit);
    fit->pair_s = fit->paired && fit->layers > 0 ? fit->wall_s / fit->layers : 0;
}

dp_status dp_trace_fit(const struct dp_trace *trace, struct dp_trace_fit *ret_fit,
                       struct dp_error *err)
{
    struct dp_trace_fit fit = {0};
    DP_AUTO_FREE dp_phase *phases = dp_new_array(dp_phase, trace->names_count);
    DP_AUTO_FREE struct group *groups = dp_new_array(struct group, trace->kernels_count);
    size_t count = 0;
    for (size_t i = 0; i < trace->names_count; i++) {
        phases[i] = dp_phase_of(trace->names[i]);
    }
    for (size_t i = 0; i < trace->kernels_count; i++) {
        const struct dp_trace_kernel *kernel = &trace->kernels[i];
        dp_phase phase =
            kernel->range < 0 ? DP_PHASE_COUNT : phases[trace->ranges[kernel->range].name];
        if (phase != DP_PHASE_COUNT) {
            groups[count++] = (struct group){kernel, phase};
        }
    }
    dp_status status = DP_OK;
    if (count > 0) {
        fit_ranges(groups, count, &fit);
    } else {
        status = dp_fit_names(trace, &fit, err);
    }
    if (status == DP_OK && fit.layers == 0) {
        status = dp_fail(err, DP_INVALID,
                         "its ranges name communication alone: attn(F), mlp(F), attn(B) and mlp(B) "
                         "around the compute of a layer would tell how long that takes");
    }
    if (status == DP_OK) {
        *ret_fit = fit;
    }
    return status;
}
