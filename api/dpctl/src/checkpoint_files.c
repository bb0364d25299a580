// dpctl checkpoint show, check and export: checkpoints as files, without a controller.
#include <stdlib.h>
#include <string.h>

#include "dp/archive.h"
#include "dp/cleanup.h"
#include "dp/json.h"
#include "dpctl.h"

enum { KEY_DTYPE = 1 };

static const struct argp_option options[] = {
    {"dtype", KEY_DTYPE, "TYPE", 0, "export: f32, or bf16 (default)", 0},
    {0},
};

struct request {
    const char *verb, *path, *target;
    dp_dtype dtype;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_DTYPE:
        if (strcmp(arg, "f32") != 0 && strcmp(arg, "bf16") != 0) {
            argp_error(state, "--dtype is f32 or bf16, not \"%s\"", arg);
        }
        request->dtype = strcmp(arg, "f32") == 0 ? DP_DTYPE_F32 : DP_DTYPE_BF16;
        return 0;
    case ARGP_KEY_ARG:
        if (request->verb == NULL) {
            request->verb = arg;
        } else if (request->path == NULL) {
            request->path = arg;
        } else {
            dpctl_take_argument(state, "directory", arg, &request->target);
        }
        return 0;
    case ARGP_KEY_END:
        if (request->path == NULL ||
            (strcmp(request->verb, "export") == 0) != (request->target != NULL)) {
            argp_error(state, "say show PATH, check PATH, or export PATH DIRECTORY");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static uint64_t bytes_of(const struct dp_archive *archive, bool moments)
{
    uint64_t bytes = 0;
    for (int64_t i = 0; i < archive->count; i++) {
        if ((archive->tensors[i].kind >= DP_ARCHIVE_M) == moments) {
            bytes += archive->tensors[i].saved->bytes;
        }
    }
    return bytes;
}

// Without the balance of routers, which is there or not.
static int64_t parameters_of(const struct dp_archive *archive)
{
    struct dp_model_spec model = archive->meta.model;
    model.biases &= ~DP_BIAS_ROUTER;
    return dp_model_parameters(&model);
}

static void print_json(const char *schema, json_t *json)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    json_object_set_new(json, "schema", json_string(schema));
    dp_json_write(json, 2, &text);
    fputs(text.bytes, stdout);
    json_decref(json);
}

static void show(const struct dpctl *ctl, const struct dp_archive *archive)
{
    const struct dp_archive_meta *meta = &archive->meta;
    double weights = (double)bytes_of(archive, false), moments = (double)bytes_of(archive, true);
    if (ctl->json) {
        print_json("dp.checkpoint_files/1",
                   json_pack("{s:s, s:b, s:I, s:I, s:I, s:s, s:I, s:i, s:f, s:f}", "path",
                             archive->path, "trained", meta->is_trained, "step",
                             (json_int_t)meta->step, "next_sample", (json_int_t)meta->next_sample,
                             "seed", (json_int_t)meta->seed, "family", dp_hf_family(&meta->model),
                             "parameters", (json_int_t)parameters_of(archive), "files",
                             archive->file_count, "weight_bytes", weights, "moment_bytes",
                             moments));
        return;
    }
    char text[32], more[32];
    printf("path        %s\n", archive->path);
    if (meta->is_trained) {
        printf("step        %lld, next sample %lld, seed %llu\n", (long long)meta->step,
               (long long)meta->next_sample, (unsigned long long)meta->seed);
    } else {
        printf("step        none: weights alone\n");
    }
    printf("model       %s, %d layers, %lld parameters\n", dp_hf_family(&meta->model),
           meta->model.layers, (long long)parameters_of(archive));
    printf("files       %d: weights %s, moments %s\n", archive->file_count,
           dpctl_bytes(text, weights), dpctl_bytes(more, moments));
}

static dp_status check(const struct dpctl *ctl, const struct dp_archive *archive,
                       struct dp_error *err)
{
    uint64_t bytes;
    dp_status status = dp_archive_verify(archive, &bytes, err);
    if (status != DP_OK) {
        return status;
    }
    char text[32];
    if (ctl->json) {
        print_json("dp.checkpoint_check/1",
                   json_pack("{s:s, s:I, s:i}", "path", archive->path, "bytes", (json_int_t)bytes,
                             "files", archive->file_count));
    } else {
        printf("%s is whole: %s in %d files\n", archive->path, dpctl_bytes(text, (double)bytes),
               archive->file_count);
    }
    return DP_OK;
}

static dp_status export(const struct dpctl *ctl, const struct dp_archive *archive,
                        const struct request *request, struct dp_error *err)
{
    uint64_t bytes;
    dp_status status = dp_archive_export(archive, request->target, request->dtype, &bytes, err);
    if (status != DP_OK) {
        return status;
    }
    char text[32];
    if (ctl->json) {
        print_json("dp.checkpoint_export/1",
                   json_pack("{s:s, s:I}", "path", request->target, "bytes", (json_int_t)bytes));
    } else {
        printf("%s written to %s\n", dpctl_bytes(text, (double)bytes), request->target);
    }
    return DP_OK;
}

bool dpctl_is_checkpoint_verb(const char *word)
{
    return strcmp(word, "show") == 0 || strcmp(word, "check") == 0 || strcmp(word, "export") == 0;
}

dp_status dpctl_checkpoint_files(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "show PATH\ncheck PATH\nexport PATH DIRECTORY",
        .doc =
            "What a checkpoint holds, whether all of it matches its hashes, or its weights alone "
            "for others. PATH is step-N, a directory of such, or one with config.json and "
            "safetensors.",
        .exits = "0 done, 1 the disk is full or does not let one write, 3 damaged or not "
                 "supported, 4 no such checkpoint, 6 the directory is there already",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    struct request request = {.dtype = DP_DTYPE_BF16};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    dp_status status = dp_archive_open(request.path, &archive, err);
    if (status != DP_OK) {
        return status;
    }
    if (strcmp(request.verb, "check") == 0) {
        return check(ctl, &archive, err);
    }
    if (strcmp(request.verb, "export") == 0) {
        return export(ctl, &archive, &request, err);
    }
    show(ctl, &archive);
    return DP_OK;
}
