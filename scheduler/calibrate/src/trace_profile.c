// From measured layers to figures of a profile: each figure is turned until what rests on it takes
// as long as its kernels did.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/price.h"
#include "dp/trace_fit.h"
#include "knob.h"

struct inversion {
    const struct dp_trace_fit *fit;
    struct dp_price_input input;
    struct dp_strategy strategy;
    struct dp_profile *profile;
    double own_share; // of the device's multiprocessors that computed while the trace was made
    char source[DP_DEVICE_SOURCE_MAX];
    struct dp_trace_change *changes;
    int32_t count;
};

// Of one MoE layer, or a dense one of a model without. What the host needs to start a layer may
// hide what its kernels take: it is left out.
static struct dp_unit_price price_of(const struct inversion *inversion,
                                     const struct dp_profile *profile)
{
    struct dp_price_input input = inversion->input;
    struct dp_price price;
    struct dp_profile device = *profile;
    device.device.host_dense_s = device.device.host_moe_s = 0;
    input.profile = &device;
    dp_price_units(&input, &price);
    return price.units[input.model->experts > 0 ? DP_UNIT_MOE : DP_UNIT_DENSE];
}

// Seconds of a layer that rest on a knob's figures: halved rates add as much again.
static void resting_s(const struct inversion *inversion, dp_knob knob, double ret_s[DP_PASS_COUNT])
{
    struct dp_profile slower = *inversion->profile;
    dp_format format = inversion->strategy.format;
    double before = dp_knob_value(&slower, knob, format);
    dp_knob_turn(&slower, knob, format, 0.5);
    double after = dp_knob_value(&slower, knob, format);
    // A share at its limit does not halve.
    double added = before > 0 && after > 0 ? before / after - 1 : 1;
    struct dp_unit_price now = price_of(inversion, inversion->profile);
    struct dp_unit_price then = price_of(inversion, &slower);
    ret_s[DP_PASS_FORWARD] = (then.forward_s - now.forward_s) / added;
    ret_s[DP_PASS_INPUT] = (then.input_s - now.input_s) / added;
    ret_s[DP_PASS_WEIGHT] = (then.weight_s - now.weight_s) / added;
}

static void note(struct inversion *inversion, const char *figure, double before, double after)
{
    if (inversion->count < DP_TRACE_CHANGES_MAX) {
        struct dp_trace_change *change = &inversion->changes[inversion->count++];
        (void)DP_COPY_TEXT(change->figure, figure);
        change->before = before;
        change->after = after;
    }
}

// Bits of passes.
enum { FORWARD = 1, INPUT = 2, WEIGHT = 4, ALL = 7 };

static double sum_of(const double s[DP_PASS_COUNT], unsigned passes)
{
    double sum = 0;
    for (int pass = 0; pass < DP_PASS_COUNT; pass++) {
        sum += (passes >> pass & 1) != 0 ? s[pass] : 0;
    }
    return sum;
}

// Kernels of these kinds, as they would take on the whole device.
static double measured_s(const struct inversion *inversion, const dp_kernel_kind *kinds,
                         size_t count, unsigned passes)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        for (int pass = 0; pass < DP_PASS_COUNT; pass++) {
            sum += (passes >> pass & 1) != 0 ? inversion->fit->by_kind_s[pass][kinds[i]] : 0;
        }
    }
    return sum * inversion->own_share;
}

static void turn(struct inversion *inversion, dp_knob knob, double measured, double resting)
{
    // A part that is missing on either side says nothing.
    if (measured <= 0 || resting <= 0) {
        return;
    }
    dp_format format = inversion->strategy.format;
    double before = dp_knob_value(inversion->profile, knob, format);
    dp_knob_turn(inversion->profile, knob, format, resting / measured);
    dp_knob_source(inversion->profile, knob, format, inversion->source);
    note(inversion, dp_knob_text(knob), before, dp_knob_value(inversion->profile, knob, format));
}

static void turn_by(struct inversion *inversion, dp_knob knob, dp_kernel_kind kind, unsigned passes)
{
    double s[DP_PASS_COUNT];
    resting_s(inversion, knob, s);
    turn(inversion, knob, measured_s(inversion, &kind, 1, passes), sum_of(s, passes));
}

// Products: plain ones first, since those of experts rest on them as well.
static void turn_products(struct inversion *inversion)
{
    static const dp_kernel_kind both[] = {DP_KERNEL_GEMM, DP_KERNEL_GROUPED_GEMM};
    double all[DP_PASS_COUNT], grouped[DP_PASS_COUNT];
    bool has_weight = measured_s(inversion, both, 2, WEIGHT) > 0;
    bool told_apart =
        measured_s(inversion, &both[1], 1, ALL) > 0 && inversion->profile->is_accelerator;
    unsigned passes = has_weight ? FORWARD | INPUT : ALL;
    resting_s(inversion, KNOB_GEMM, all);
    resting_s(inversion, KNOB_GROUPED_GEMM, grouped);
    double resting = sum_of(all, passes) - (told_apart ? sum_of(grouped, passes) : 0);
    turn(inversion, KNOB_GEMM, measured_s(inversion, both, told_apart ? 1 : 2, passes), resting);
    if (told_apart) {
        turn_by(inversion, KNOB_GROUPED_GEMM, DP_KERNEL_GROUPED_GEMM, passes);
    }
    if (has_weight && inversion->profile->is_accelerator) {
        turn_by(inversion, KNOB_WEIGHT_GEMM, DP_KERNEL_GEMM, WEIGHT);
        turn_by(inversion, KNOB_GROUPED_WEIGHT_GEMM, DP_KERNEL_GROUPED_GEMM, WEIGHT);
    }
}

static void turn_compute(struct inversion *inversion)
{
    turn_products(inversion);
    turn_by(inversion, KNOB_ATTENTION, DP_KERNEL_ATTENTION, ALL);
    turn_by(inversion, KNOB_ATTENTION_GRADIENT, DP_KERNEL_ATTENTION_GRADIENT, ALL);
    turn_by(inversion, KNOB_MEMORY, DP_KERNEL_OTHER, ALL);
}

static void set_figure(struct inversion *inversion, const char *name, double *figure, double value)
{
    note(inversion, name, *figure, value);
    *figure = value;
}

// Beside compute all that can be seen is how much longer it takes than alone.
static void turn_exchange(struct inversion *inversion)
{
    const struct dp_trace_fit *fit = inversion->fit;
    struct dp_profile *profile = inversion->profile;
    struct dp_price_input input = inversion->input;
    struct dp_price price;
    input.profile = profile;
    dp_price_units(&input, &price);
    const struct dp_unit_price *layer = &price.units[DP_UNIT_MOE];
    double alone = layer->forward_exchange_s + layer->backward_exchange_s;
    double data = fit->forward_data_s + fit->input_data_s;
    double all = data + fit->forward_wait_s + fit->input_wait_s;
    if (input.model->experts == 0 || alone <= 0 || data <= 0) {
        return;
    }
    if (!fit->paired || !profile->is_accelerator) {
        turn(inversion, KNOB_EXCHANGE, data, alone);
        return;
    }
    // Few multiprocessors slow it down by themselves; contention is what is left to explain.
    double *contention = &profile->device.exchange_contention;
    double by_units = price.pair_modes[0].exchange_factor / *contention;
    set_figure(inversion, "exchange_contention", contention,
               fmin(16, fmax(1, all / (alone * fmax(1, by_units)))));
    dp_knob_source(profile, KNOB_EXCHANGE, inversion->strategy.format, inversion->source);
}

static double pair_s(const struct inversion *inversion)
{
    struct dp_price_input input = inversion->input;
    struct dp_price price;
    struct dp_chunk_price chunk;
    input.profile = inversion->profile;
    dp_price_units(&input, &price);
    price.action_overhead_s = 0; // what a chunk has once, however many layers
    struct dp_stage_units units = {{0}};
    units.count[input.model->experts > 0 ? DP_UNIT_MOE : DP_UNIT_DENSE] = 1;
    dp_price_chunk(&price, &units, &chunk);
    return dp_price_pair_s(&price, &chunk, &chunk, true, NULL);
}

// The share that compute waits for is what makes a pair as long as it was.
static void turn_pair(struct inversion *inversion)
{
    double *share = inversion->profile->is_accelerator
                        ? &inversion->profile->device.exchange_exposed_share
                        : NULL;
    double before = pair_s(inversion);
    if (share != NULL && inversion->fit->exchange_busy_s > 0) {
        double low = 0, high = 1, kept = *share;
        for (int i = 0; i < 40; i++) {
            *share = (low + high) / 2;
            *(pair_s(inversion) < inversion->fit->pair_s ? &low : &high) = *share;
        }
        note(inversion, "exchange_exposed_share", kept, *share);
    }
    note(inversion, "pair of layers, s: priced before and after", before, pair_s(inversion));
}

static dp_status check_run(const struct dp_trace_fit *fit, const struct dp_trace_run *run,
                           struct dp_error *err)
{
    if (fit->paired && !fit->annotated) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "forward and backward layers overlap and no ranges tell them apart, so "
                       "rates cannot be had of this trace: put record_function(\"attn(F)\") and "
                       "the like around the parts, or trace a run without overlap");
    }
    if (run->sequence < 1 || run->samples < 1 || run->expert < 1 || run->tensor < 1) {
        return dp_fail(err, DP_INVALID, "sizes of a run are at least 1");
    }
    if (run->expert > 1 && (run->model->experts == 0 || run->model->experts % run->expert != 0)) {
        return dp_fail(err, DP_INVALID, "%d experts of %s cannot lie on groups of %d",
                       run->model->experts, run->model->name, run->expert);
    }
    return DP_OK;
}

static void begin(struct inversion *inversion, const struct dp_trace_run *run)
{
    inversion->strategy = (struct dp_strategy){.pipeline = 1,
                                               .data = run->expert,
                                               .tensor = run->tensor,
                                               .context = 1,
                                               .expert = run->expert,
                                               .expert_tensor = 1,
                                               .microbatches = 1,
                                               .micro_batch_size = run->samples,
                                               .sequence_parallel = run->tensor > 1,
                                               .format = run->format,
                                               .shard = DP_SHARD_ZERO1,
                                               .recompute = run->recompute,
                                               .comm_units = inversion->fit->exchange_units,
                                               .imbalance = 1};
    inversion->input = (struct dp_price_input){
        .model = run->model, .strategy = &inversion->strategy, .sequence = run->sequence};
    dp_spans_default(&inversion->strategy, run->domain > 0 ? run->domain : 1,
                     &inversion->input.spans);
    double units = inversion->profile->device.units;
    bool shares = inversion->profile->is_accelerator && inversion->fit->paired &&
                  inversion->fit->exchange_units > 0 && units > inversion->fit->exchange_units;
    inversion->own_share = shares ? 1 - inversion->fit->exchange_units / units : 1;
    snprintf(inversion->source, sizeof inversion->source,
             "fitted on a trace of %d layers of %s, %d x %d tokens, expert %d",
             inversion->fit->layers, run->model->name, run->samples, run->sequence, run->expert);
}

dp_status dp_trace_profile(const struct dp_trace_fit *fit, const struct dp_trace_run *run,
                           const struct dp_profile *base, struct dp_profile *ret_profile,
                           struct dp_trace_change *ret_changes, int32_t *ret_count,
                           struct dp_error *err)
{
    dp_status status = check_run(fit, run, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_profile profile = *base;
    struct inversion inversion = {.fit = fit, .profile = &profile, .changes = ret_changes};
    begin(&inversion, run);
    turn_compute(&inversion);
    turn_exchange(&inversion);
    if (fit->paired) {
        turn_pair(&inversion);
    }
    (void)DP_COPY_TEXT(profile.provenance, inversion.source);
    if (profile.is_accelerator) {
        (void)DP_COPY_TEXT(profile.fitted_on, inversion.source);
        profile.fitted_formats |= 1 << run->format;
        const struct dp_span *expert = &inversion.input.spans.expert;
        int32_t domains = expert->inside > 0 ? expert->ranks / expert->inside : 1;
        if (domains > profile.fitted_expert_domains) {
            profile.fitted_expert_domains = domains;
        }
    }
    *ret_profile = profile;
    *ret_count = inversion.count;
    return DP_OK;
}
