// Prints dp.trace_fit/1 of a trace that is read in pieces of BYTES: for the scripts beside it. With
// --profile BASE SEQUENCE EXPERT DOMAIN it adds what becomes of a built-in profile (DeepSeek-V3).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/trace_fit.h"
#include "dp/trace_read.h"

DP_DEFINE_CLEANUP(free_reader, struct dp_trace_reader, dp_trace_reader_free)

static dp_status read_trace(const char *path, size_t piece, struct dp_trace *ret_trace,
                            struct dp_error *err)
{
    DP_CLEANUP(free_reader) struct dp_trace_reader *reader = dp_trace_reader_new(path);
    DP_AUTO_FCLOSE FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return dp_fail(err, DP_NOT_FOUND, "no file %s", path);
    }
    DP_AUTO_FREE char *bytes = malloc(piece);
    size_t length;
    while ((length = fread(bytes, 1, piece, file)) > 0) {
        dp_status status = dp_trace_reader_feed(reader, bytes, length, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return dp_trace_reader_finish(reader, ret_trace, err);
}

static dp_status add_profile(char **argv, const struct dp_trace_fit *fit, json_t *json,
                             struct dp_error *err)
{
    static struct dp_model_spec model;
    static struct dp_profile base, profile;
    struct dp_trace_change changes[DP_TRACE_CHANGES_MAX];
    int32_t count = 0;
    dp_status status = dp_profile_builtin(argv[0], &base, err);
    if (status == DP_OK) {
        status = dp_model_preset("deepseek-v3", &model, err);
    }
    struct dp_trace_run run = {.model = &model,
                               .sequence = atoi(argv[1]),
                               .samples = 1,
                               .tensor = 1,
                               .expert = atoi(argv[2]),
                               .domain = atoi(argv[3]),
                               .format = DP_FORMAT_FP8_BLOCK,
                               .recompute = DP_RECOMPUTE_NORM | DP_RECOMPUTE_UP};
    if (status == DP_OK) {
        status = dp_trace_profile(fit, &run, &base, &profile, changes, &count, err);
    }
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        json_object_set_new(json, changes[i].figure,
                            json_pack("[f, f]", changes[i].before, changes[i].after));
    }
    return status;
}

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    struct dp_trace_fit fit;
    if (argc != 3 && argc != 8) {
        fprintf(stderr, "usage: trace_emit FILE BYTES [--profile BASE SEQUENCE EXPERT DOMAIN]\n");
        return 2;
    }
    dp_status status = read_trace(argv[1], (size_t)atoi(argv[2]), &trace, &err);
    if (status == DP_OK) {
        status = dp_trace_fit(&trace, &fit, &err);
    }
    DP_AUTO_JSON json_t *json = status == DP_OK ? dp_trace_fit_to_json(&fit) : NULL;
    if (status == DP_OK && argc == 8) {
        json_t *changes = json_object();
        json_object_set_new(json, "changes", changes);
        status = add_profile(argv + 4, &fit, changes, &err);
    }
    if (status != DP_OK) {
        fprintf(stderr, "error: %s\n", err.message);
        return 1;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    dp_json_write(json, 0, &out);
    puts(out.bytes);
    return 0;
}
