// dpctl schedule export: files for other tools.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "schedule_verbs.h"

struct export
{
    const struct schedule_request *request;
    const struct schedule_subject *subject;
    const struct dp_sim_result *result; // with spans
};

static dp_status write_json(const struct export *export, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    dp_schedule_write_json(&export->subject->schedule, out);
    dp_buf_puts(out, "\n");
    return DP_OK;
}

static dp_status write_torch(const struct export *export, struct dp_buf *out, struct dp_error *err)
{
    return dp_render_torch_csv(&export->subject->schedule, out, err);
}

static dp_status write_torch_comms(const struct export *export, struct dp_buf *out,
                                   struct dp_error *err)
{
    return dp_render_torch_csv_comms(&export->subject->schedule, export->result, true, out, err);
}

// For PyTorch that knows no WAIT_SEND actions.
static dp_status write_torch_comms_2_14(const struct export *export, struct dp_buf *out,
                                        struct dp_error *err)
{
    return dp_render_torch_csv_comms(&export->subject->schedule, export->result, false, out, err);
}

static dp_status write_perfetto(const struct export *export, struct dp_buf *out,
                                struct dp_error *err)
{
    (void)err;
    dp_render_prediction(&export->subject->schedule, export->result, &export->subject->costs, out);
    return DP_OK;
}

static dp_status write_svg(const struct export *export, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    int32_t width = export->request->width;
    const struct dp_render_svg_options options = {.width = width > 0 ? width : 0};
    dp_render_svg(&export->subject->schedule, export->result, &export->subject->costs, &options,
                  out);
    return DP_OK;
}

static dp_status write_megatron(const struct export *export, struct dp_buf *out,
                                struct dp_error *err)
{
    const struct dp_schedule *schedule = &export->subject->schedule;
    // A layer per stage shows the form when the model is not said.
    int32_t layers = export->request->layers > 0 ? export->request->layers : schedule->stages;
    const struct dp_render_megatron_options options = {.layers = layers};
    return dp_render_megatron(schedule, &options, out, err);
}

// What an action takes at least, on average.
enum {
    JSON_BYTES = sizeof("{\"kind\":\"F\",\"stage\":0,\"microbatch\":0},") - 1,
    TORCH_BYTES = sizeof("0F0,") - 1,
    COMMS_BYTES = sizeof("0F0,0RECV_F0,") - 1, // of three, W sends nothing, and of two ranks one
    PERFETTO_BYTES =
        sizeof("{\"ph\":\"X\",\"name\":\"F0@0\",\"cat\":\"F\",\"pid\":1,\"tid\":0,\"ts\":0,"
               "\"dur\":0,\"args\":{\"kind\":\"F\",\"step\":0,\"stage\":0}},\n") -
        1,
};

static const struct format {
    const char *name;
    dp_status (*write)(const struct export *export, struct dp_buf *out, struct dp_error *err);
    size_t action_bytes; // 0 = does not grow with the schedule
} formats[] = {
    {"json", write_json, JSON_BYTES},
    {"torch-csv", write_torch, TORCH_BYTES},
    {"torch-csv-comms", write_torch_comms, COMMS_BYTES},
    {"torch-csv-comms-2.14", write_torch_comms_2_14, COMMS_BYTES},
    {"megatron", write_megatron, 0},
    {"perfetto", write_perfetto, PERFETTO_BYTES},
    {"svg", write_svg, 0},
};

static dp_status find_format(const char *name, const struct format **ret_format,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(formats); i++) {
        if (strcmp(formats[i].name, name) == 0) {
            *ret_format = &formats[i];
            return DP_OK;
        }
        dp_buf_printf(&names, "%s%s", i > 0 ? ", " : "", formats[i].name);
    }
    return dp_fail(err, DP_USAGE, "unknown export format \"%s\"; there are %s", name, names.bytes);
}

// Files are no longer than what is read again, and what would be is not made at all.
static dp_status check_bytes(const struct format *format, const struct schedule_subject *subject,
                             size_t bytes, struct dp_error *err)
{
    if (bytes <= DP_SCHEDULE_BYTES_MAX) {
        return DP_OK;
    }
    return dp_fail(err, DP_TOO_LARGE,
                   "%zu actions as %s take %zu bytes or more; a file has at most %u: take fewer "
                   "micro-batches (the steady part repeats), or svg, which stays small",
                   dp_schedule_action_count(&subject->schedule), format->name, bytes,
                   DP_SCHEDULE_BYTES_MAX);
}

static dp_status write_out(struct dpctl *ctl, const struct format *format,
                           const struct export *export, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = format->write(export, &text, err);
    if (status == DP_OK && format->action_bytes > 0) {
        status = check_bytes(format, export->subject, text.length, err);
    }
    return status == DP_OK ? dpctl_write(ctl, export->request->out, &text, err) : status;
}

// PyTorch keeps each stage on one rank: of what is searched for on its behalf, nothing else is
// wanted.
static struct schedule_request fit_to(const struct format *format,
                                      const struct schedule_request *request)
{
    struct schedule_request fitted = *request;
    bool is_torch = strncmp(format->name, "torch-", 6) == 0;
    if (is_torch && request->placement == NULL && strcmp(request->subject, "auto") == 0) {
        fitted.placement = "single";
        fputs("note: PyTorch keeps each stage on one rank; searched with --placement single\n",
              stderr);
    }
    return fitted;
}

dp_status schedule_export(struct dpctl *ctl, const struct schedule_request *request,
                          struct dp_error *err)
{
    const struct format *format = NULL;
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status =
        find_format(request->format == NULL ? "json" : request->format, &format, err);
    struct schedule_request fitted = *request;
    if (status == DP_OK) {
        fitted = fit_to(format, request);
        status = schedule_obtain_subject(&fitted, NULL, &subject, err);
    }
    if (status == DP_OK) {
        size_t actions = dp_schedule_action_count(&subject.schedule);
        status = check_bytes(format, &subject, format->action_bytes * actions, err);
    }
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, true, &result, err);
    }
    const struct export export = {request, &subject, &result};
    return status == DP_OK ? write_out(ctl, format, &export, err) : status;
}
