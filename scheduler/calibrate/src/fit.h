// What the parts of the fit share.
#pragma once

#include "dp/trace_fit.h"

// The length of a union of stretches that come in the order of their starts.
struct cover {
    int64_t until_ns, length_ns; // until_ns starts at INT64_MIN
};
void dp_cover_add(struct cover *cover, int64_t start_ns, int64_t end_ns);

// Wall, busy, exposed and hidden time of kernels that come in the order of their starts; count > 0.
void dp_fit_totals(struct dp_trace_fit *fit, const struct dp_trace_kernel *const *kernels,
                   size_t count);
// The middle one of the grids of what moves data; 0 = unknown.
int32_t dp_fit_exchange_units(const struct dp_trace_kernel *const *kernels, size_t count);
// Without ranges: by the names of kernels, layer by layer.
dp_status dp_fit_names(const struct dp_trace *trace, struct dp_trace_fit *ret_fit,
                       struct dp_error *err);
