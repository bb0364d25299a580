#include "metrics_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "dp/cleanup.h"

void metric_begin(struct dp_buf *out, const char *name, const char *type, const char *help)
{
    dp_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_escaped(struct dp_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '\\':
            dp_buf_puts(out, "\\\\");
            break;
        case '"':
            dp_buf_puts(out, "\\\"");
            break;
        case '\n':
            dp_buf_puts(out, "\\n");
            break;
        default:
            dp_buf_append(out, text, 1);
        }
    }
}

static void put_number(struct dp_buf *out, double value)
{
    if (isnan(value)) {
        dp_buf_puts(out, "NaN");
    } else if (isinf(value)) {
        dp_buf_puts(out, value > 0 ? "+Inf" : "-Inf");
    } else {
        dp_buf_printf(out, "%.15g", value);
    }
}

static void put_labels(struct dp_buf *out, va_list labels)
{
    const char *name = NULL;
    const char *separator = "";
    while ((name = va_arg(labels, const char *)) != NULL) {
        dp_buf_printf(out, "%s%s=\"", separator, name);
        put_escaped(out, va_arg(labels, const char *));
        dp_buf_puts(out, "\"");
        separator = ",";
    }
}

static void put_value(struct dp_buf *out, const char *name, const char *labels, double value)
{
    dp_buf_puts(out, name);
    if (labels != NULL && labels[0] != '\0') {
        dp_buf_printf(out, "{%s}", labels);
    }
    dp_buf_puts(out, " ");
    put_number(out, value);
    dp_buf_puts(out, "\n");
}

void metric_value(struct dp_buf *out, const char *name, double value, ...)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf labels = {0};
    va_list args;
    va_start(args, value);
    put_labels(&labels, args);
    va_end(args);
    put_value(out, name, labels.bytes, value);
}

void metric_histogram(struct dp_buf *out, const char *name, const double *limits,
                      const uint64_t *counts, size_t buckets, double sum, ...)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf labels = {0}, series = {0};
    va_list args;
    va_start(args, sum);
    put_labels(&labels, args);
    va_end(args);
    const char *own = labels.bytes == NULL ? "" : labels.bytes;
    double below = 0; // counts are of this limit and all smaller ones
    for (size_t i = 0; i < buckets; i++) {
        below += (double)counts[i];
        dp_buf_clear(&series);
        dp_buf_printf(&series, "%s%sle=\"", own, own[0] == '\0' ? "" : ",");
        put_number(&series, i + 1 < buckets ? limits[i] : INFINITY);
        dp_buf_puts(&series, "\"");
        char bucket[128];
        snprintf(bucket, sizeof bucket, "%s_bucket", name);
        put_value(out, bucket, series.bytes, below);
    }
    char part[128];
    snprintf(part, sizeof part, "%s_sum", name);
    put_value(out, part, own, sum);
    snprintf(part, sizeof part, "%s_count", name);
    put_value(out, part, own, below);
}
