// dpctl schedule export: files for other tools.

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
    DP_AUTO_JSON json_t *json = dp_schedule_to_json(&export->subject->schedule);
    dp_json_write(json, 0, out);
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

static const struct format {
    const char *name;
    dp_status (*write)(const struct export *export, struct dp_buf *out, struct dp_error *err);
} formats[] = {
    {"json", write_json},
    {"torch-csv", write_torch},
    {"torch-csv-comms", write_torch_comms},
    {"torch-csv-comms-2.14", write_torch_comms_2_14},
    {"megatron", write_megatron},
    {"perfetto", write_perfetto},
    {"svg", write_svg},
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

dp_status schedule_export(struct dpctl *ctl, const struct schedule_request *request,
                          struct dp_error *err)
{
    const struct format *format = NULL;
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status =
        find_format(request->format == NULL ? "json" : request->format, &format, err);
    if (status == DP_OK) {
        status = schedule_obtain_subject(request, NULL, &subject, err);
    }
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, true, &result, err);
    }
    if (status == DP_OK) {
        const struct export export = {request, &subject, &result};
        status = format->write(&export, &text, err);
    }
    return status == DP_OK ? dpctl_write(ctl, request->out, &text, err) : status;
}
