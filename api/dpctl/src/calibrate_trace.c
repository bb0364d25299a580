// dpctl calibrate --from-trace: a profiler's trace, plain or gzip.

#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "calibrate.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/profile.h"
#include "dp/spec.h"
#include "dp/trace_fit.h"
#include "dp/trace_read.h"

#define PIECE_BYTES (256 << 10)

static void close_file(gzFile *file)
{
    if (*file != NULL) {
        (void)gzclose(*file);
    }
}

DP_DEFINE_CLEANUP(free_reader, struct dp_trace_reader, dp_trace_reader_free)

// zlib hands plain files through.
static dp_status feed_file(const char *path, gzFile file, struct dp_trace_reader *reader,
                           struct dp_error *err)
{
    DP_AUTO_FREE char *piece = dp_alloc(1, PIECE_BYTES);
    for (;;) {
        int length = gzread(file, piece, PIECE_BYTES);
        if (length == 0) {
            break;
        }
        if (length < 0) {
            int code;
            const char *why = gzerror(file, &code);
            return code == Z_ERRNO
                       ? dp_fail_errno(err, errno, "cannot read %s", path)
                       : dp_fail(err, DP_INVALID, "%s: damaged gzip data: %s", path, why);
        }
        dp_status status = dp_trace_reader_feed(reader, piece, (size_t)length, err);
        if (status != DP_OK) {
            return status;
        }
    }
    int code;
    (void)gzerror(file, &code);
    return code == Z_BUF_ERROR ? dp_fail(err, DP_INVALID, "%s: the gzip data is cut off", path)
                               : DP_OK;
}

static dp_status read_trace(const char *path, struct dp_trace *ret_trace, struct dp_error *err)
{
    errno = 0;
    DP_CLEANUP(close_file)
    gzFile file = strcmp(path, "-") == 0 ? gzdopen(dup(STDIN_FILENO), "rb") : gzopen(path, "rb");
    if (file == NULL) {
        return dp_fail_errno(err, errno != 0 ? errno : ENOMEM, "cannot open %s", path);
    }
    (void)gzbuffer(file, PIECE_BYTES);
    DP_CLEANUP(free_reader)
    struct dp_trace_reader *reader = dp_trace_reader_new(path);
    dp_status status = feed_file(path, file, reader, err);
    return status == DP_OK ? dp_trace_reader_finish(reader, ret_trace, err) : status;
}

// A name that is built in, else a file.
static dp_status load_base(const struct calibrate_request *request, const struct dp_trace *trace,
                           struct dp_profile *ret_profile, struct dp_error *err)
{
    if (request->base != NULL) {
        if (strchr(request->base, '/') != NULL || strchr(request->base, '.') != NULL) {
            dp_status status = dp_profile_load(request->base, ret_profile, err);
            if (status != DP_NOT_FOUND) {
                return status;
            }
        }
        return dp_profile_builtin(request->base, ret_profile, err);
    }
    if (trace->is_cpu) {
        dp_profile_default_cpu(ret_profile);
        return DP_OK;
    }
    return dp_fail(
        err, DP_USAGE,
        "a trace does not say what its device could do: --base NAME (h800, h100, ...) or "
        "a profile's file gives the figures that the trace's are put into");
}

static dp_status describe_run(const struct calibrate_request *request, struct dp_model_spec *model,
                              struct dp_trace_run *ret_run, struct dp_error *err)
{
    dp_format format = DP_FORMAT_AUTO;
    uint32_t recompute = 0;
    dp_status status = dpctl_load_model(request->model, model, err);
    if (status == DP_OK && request->precision != NULL) {
        status = dp_format_parse(request->precision, &format, err);
    }
    if (status == DP_OK && request->recompute != NULL) {
        status = dp_recompute_parse(request->recompute, &recompute, err);
    }
    if (status != DP_OK) {
        return status;
    }
    format = format == DP_FORMAT_AUTO ? model->format : format;
    *ret_run = (struct dp_trace_run){.model = model,
                                     .sequence = request->sequence,
                                     .samples = request->samples,
                                     .tensor = request->tensor,
                                     .expert = request->expert,
                                     .domain = request->domain,
                                     .format = format == DP_FORMAT_AUTO ? DP_FORMAT_BF16 : format,
                                     .recompute = recompute};
    return DP_OK;
}

static json_t *changes_json(const struct dp_trace_change *changes, int32_t count)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(list,
                              json_pack("{s:s, s:f, s:f}", "figure", changes[i].figure, "before",
                                        changes[i].before, "after", changes[i].after));
    }
    return list;
}

static void print_changes(const struct dp_trace_change *changes, int32_t count, struct dp_buf *out)
{
    dp_buf_printf(out, "\n%-44s%14s%14s\n", "FIGURE", "BEFORE", "AFTER");
    for (int32_t i = 0; i < count; i++) {
        dp_buf_printf(out, "%-44s%14.5g%14.5g\n", changes[i].figure, changes[i].before,
                      changes[i].after);
    }
}

struct answer {
    struct dp_trace_fit fit;
    bool has_profile;
    struct dp_profile profile;
    struct dp_trace_change changes[DP_TRACE_CHANGES_MAX];
    int32_t changes_count;
};

static dp_status write_profile(const struct answer *answer, const char *path, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&answer->profile);
    dp_json_write(json, 2, &text);
    return dp_write_file(path, text.bytes, text.length, err);
}

static dp_status print_answer(struct dpctl *ctl, const struct calibrate_request *request,
                              const struct answer *answer, struct dp_error *err)
{
    dp_status status = DP_OK;
    if (answer->has_profile && request->out != NULL) {
        status = write_profile(answer, request->out, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        json_t *json = dp_trace_fit_to_json(&answer->fit);
        if (answer->has_profile) {
            json_object_set_new(json, "changes",
                                changes_json(answer->changes, answer->changes_count));
            json_object_set_new(json, "profile", dp_profile_to_json(&answer->profile));
        }
        dpctl_print_json(ctl, json, "dp.trace_fit/1");
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_trace_fit_render(&answer->fit, &text);
    if (answer->has_profile) {
        print_changes(answer->changes, answer->changes_count, &text);
    }
    dpctl_print(&text);
    fflush(stdout);
    if (!answer->has_profile) {
        fputs("next: --model NAME --seq-len N --base PROFILE --out FILE turns this into a profile "
              "for dpctl plan\n",
              stderr);
    } else if (request->out != NULL) {
        fprintf(stderr, "%s written: `dpctl plan --profile %s ...` uses it\n", request->out,
                request->out);
    }
    return DP_OK;
}

dp_status calibrate_trace(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err)
{
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    DP_AUTO_FREE struct answer *answer = dp_new(struct answer);
    struct dp_model_spec model;
    struct dp_trace_run run;
    struct dp_profile base;
    dp_status status = read_trace(request->trace, &trace, err);
    if (status == DP_OK) {
        status = dp_trace_fit(&trace, &answer->fit, err);
        if (status != DP_OK) {
            return dp_fail_in(err, "%s", request->trace);
        }
    }
    if (status == DP_OK && request->model != NULL) {
        status = load_base(request, &trace, &base, err);
        if (status == DP_OK) {
            status = describe_run(request, &model, &run, err);
        }
        if (status == DP_OK) {
            status = dp_trace_profile(&answer->fit, &run, &base, &answer->profile, answer->changes,
                                      &answer->changes_count, err);
        }
        answer->has_profile = status == DP_OK;
    }
    return status == DP_OK ? print_answer(ctl, request, answer, err) : status;
}
