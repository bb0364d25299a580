#include <math.h>

#include "dp/trace_fit.h"

static json_t *kinds_json(const double *by_kind_s)
{
    json_t *kinds = json_object();
    for (int kind = 0; kind < DP_KERNEL_KIND_COUNT; kind++) {
        if (by_kind_s[kind] > 0) {
            json_object_set_new(kinds, dp_kernel_kind_text((dp_kernel_kind)kind),
                                json_real(by_kind_s[kind]));
        }
    }
    return kinds;
}

static json_t *phases_json(const struct dp_trace_fit *fit)
{
    json_t *phases = json_array();
    for (int i = 0; i < DP_PHASE_COUNT; i++) {
        const struct dp_phase_fit *phase = &fit->phases[i];
        if (phase->count > 0) {
            json_array_append_new(
                phases,
                json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "phase",
                          dp_phase_text((dp_phase)i), "count", phase->count, "span_s",
                          phase->span_s, "busy_s", phase->busy_s, "auxiliary_s", phase->auxiliary_s,
                          "compute_s", phase->compute_s, "exchange_s", phase->exchange_s, "data_s",
                          phase->data_s, "by_kind_s", kinds_json(phase->by_kind_s)));
        }
    }
    return phases;
}

json_t *dp_trace_fit_to_json(const struct dp_trace_fit *fit)
{
    json_t *json = json_pack("{s:s, s:i, s:b, s:b, s:f, s:f, s:f, s:f, s:f}", "schema",
                             "dp.trace_fit/1", "layers", fit->layers, "annotated", fit->annotated,
                             "paired", fit->paired, "wall_s", fit->wall_s, "compute_busy_s",
                             fit->compute_busy_s, "exchange_busy_s", fit->exchange_busy_s,
                             "exposed_s", fit->exposed_s, "hidden_share", fit->hidden_share);
    json_t *layer = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "forward_s", fit->forward_s, "input_s",
        fit->input_s, "weight_s", fit->weight_s, "weight_wall_s", fit->weight_wall_s, "pair_s",
        fit->pair_s, "forward_data_s", fit->forward_data_s, "input_data_s", fit->input_data_s,
        "forward_wait_s", fit->forward_wait_s, "input_wait_s", fit->input_wait_s);
    static const char *const passes[DP_PASS_COUNT] = {"forward", "input", "weight"};
    json_t *by_kind = json_object();
    for (int pass = 0; pass < DP_PASS_COUNT; pass++) {
        json_object_set_new(by_kind, passes[pass], kinds_json(fit->by_kind_s[pass]));
    }
    json_object_set_new(layer, "by_kind_s", by_kind);
    json_object_set_new(json, "layer", layer);
    json_object_set_new(json, "exchange_units", json_integer(fit->exchange_units));
    json_object_set_new(json, "phases", phases_json(fit));
    return json;
}

static void milliseconds(struct dp_buf *out, double seconds)
{
    if (seconds > 0) {
        dp_buf_printf(out, "%10.3f", 1e3 * seconds);
    } else {
        dp_buf_printf(out, "%10s", "-");
    }
}

static void render_phases(const struct dp_trace_fit *fit, struct dp_buf *out)
{
    dp_buf_printf(out, "%-12s%6s%10s%10s%10s%10s%10s\n", "PHASE", "COUNT", "SPAN", "COMPUTE",
                  "BESIDE", "EXCHANGE", "DATA");
    for (int i = 0; i < DP_PHASE_COUNT; i++) {
        const struct dp_phase_fit *phase = &fit->phases[i];
        if (phase->count == 0) {
            continue;
        }
        dp_buf_printf(out, "%-12s%6d", dp_phase_text((dp_phase)i), phase->count);
        const double columns[] = {phase->span_s, phase->busy_s, phase->auxiliary_s,
                                  phase->exchange_s, phase->data_s};
        for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
            milliseconds(out, columns[c]);
        }
        dp_buf_puts(out, "\n");
    }
    dp_buf_puts(out, "ms, means; COMPUTE on the main stream, BESIDE on others meanwhile; DATA of "
                     "EXCHANGE moves bytes, the rest waits for peers\n");
}

static void render_layer(const struct dp_trace_fit *fit, struct dp_buf *out)
{
    if (!fit->annotated && fit->paired) {
        dp_buf_printf(out, "layer       %.2f ms of compute in a pair; no ranges tell F from B\n",
                      1e3 * fit->forward_s);
    } else if (fit->annotated) {
        dp_buf_printf(out, "layer       F %.2f ms, I %.2f ms, W %.2f ms of compute\n",
                      1e3 * fit->forward_s, 1e3 * fit->input_s, 1e3 * fit->weight_s);
    } else {
        dp_buf_printf(out, "layer       F %.2f ms, B %.2f ms of compute; no ranges tell I from W\n",
                      1e3 * fit->forward_s, 1e3 * fit->input_s);
    }
    if (fit->exchange_busy_s > 0) {
        dp_buf_printf(out,
                      "all-to-all  F %.2f ms and B %.2f ms of data a layer, %.2f ms and %.2f ms of "
                      "waiting",
                      1e3 * fit->forward_data_s, 1e3 * fit->input_data_s, 1e3 * fit->forward_wait_s,
                      1e3 * fit->input_wait_s);
        if (fit->exchange_units > 0) {
            dp_buf_printf(out, ", on %d multiprocessors", fit->exchange_units);
        }
        dp_buf_puts(out, "\n");
    }
}

void dp_trace_fit_render(const struct dp_trace_fit *fit, struct dp_buf *out)
{
    dp_buf_printf(out, "%d layers in %.1f ms: compute busy %.1f ms", fit->layers, 1e3 * fit->wall_s,
                  1e3 * fit->compute_busy_s);
    if (fit->exchange_busy_s > 0) {
        dp_buf_printf(out, ", communication %.1f ms, %.1f %% of it hidden",
                      1e3 * fit->exchange_busy_s, 100 * fit->hidden_share);
    }
    dp_buf_printf(out, ", %.1f ms exposed\n", 1e3 * fit->exposed_s);
    if (fit->paired) {
        dp_buf_printf(out, "pair        F and B overlap: %.2f ms for a layer of each\n",
                      1e3 * fit->pair_s);
    }
    render_layer(fit, out);
    if (fit->annotated) {
        dp_buf_puts(out, "\n");
        render_phases(fit, out);
    }
}
