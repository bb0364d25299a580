// The text format of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"

// HELP and TYPE ("counter", "gauge", "histogram"); its values follow.
void metric_begin(struct dp_buf *out, const char *name, const char *type, const char *help);
// One value. Labels are pairs of name and value, NULL at their end; values are escaped.
void metric_value(struct dp_buf *out, const char *name, double value, ...)
    __attribute__((sentinel));
// A histogram of `buckets` counts, of which all but the last have a limit. Labels as above.
void metric_histogram(struct dp_buf *out, const char *name, const double *limits,
                      const uint64_t *counts, size_t buckets, double sum, ...)
    __attribute__((sentinel));
