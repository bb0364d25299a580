// Directories of weights as Hugging Face's programs write and read them.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive_internal.h"
#include "dp/alloc.h"
#include "hf_kind.h"

#define CONFIG DP_ARCHIVE_CONFIG
#define INDEX DP_ARCHIVE_INDEX
#define SINGLE "model.safetensors"
#define NAMES_LISTED_MAX 20

static dp_status read_json(const char *path, json_t **ret_json, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_archive_read_text(path, DP_SAFETENSORS_HEADER_BYTES_MAX, &text, err);
    return status == DP_OK ? dp_json_parse(text.bytes, text.length, DP_SAFETENSORS_HEADER_BYTES_MAX,
                                           path, ret_json, err)
                           : status;
}

// What is told from the shapes that config.json says, before any weight is looked at.
static dp_status check_trained(const struct dp_archive *archive, struct dp_error *err)
{
    const struct dp_model_spec *model = &archive->meta.model;
    const int32_t trained =
        DP_BIAS_QKV | DP_BIAS_OUTPUT | (model->router == DP_MODEL_SIGMOID ? DP_BIAS_ROUTER : 0);
    if ((model->biases & ~trained) == 0 && model->ffn_matrices != 2 && model->positions == 0) {
        return DP_OK;
    }
    return dp_fail(err, DP_UNSUPPORTED,
                   "%s is of the family %s, with biases, plain FFNs or learned positions that "
                   "nothing here trains; its weights are not read",
                   archive->path, model->name);
}

static dp_status read_config(struct dp_archive *archive, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/" CONFIG, archive->path);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_archive_read_text(path, DP_SPEC_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status = dp_json_parse(text.bytes, text.length, DP_SPEC_BYTES_MAX, path, &json, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct dp_model_spec *model = &archive->meta.model;
    const char *type = json_string_value(json_object_get(json, "model_type"));
    status = type != NULL && strcmp(type, DP_HF_OWN) == 0
                 ? dp_model_from_json(json_object_get(json, DP_HF_OWN_MODEL), path, model, err)
                 : dp_model_from_hf_config(text.bytes, text.length, path, model, err);
    if (status == DP_OK && model->name[0] == '\0') {
        (void)DP_COPY_TEXT(model->name, type != NULL ? type : "unknown");
    }
    return status == DP_OK ? check_trained(archive, err) : status;
}

static dp_status add_file(struct dp_archive *archive, const char *name, struct dp_error *err)
{
    for (int32_t i = 0; i < archive->file_count; i++) {
        if (strcmp(strrchr(archive->files[i].path, '/') + 1, name) == 0) {
            return DP_OK;
        }
    }
    if (name[0] == '\0' || strchr(name, '/') != NULL ||
        archive->file_count == DP_CHECKPOINT_FILES_MAX) {
        return dp_fail(err, DP_INVALID, "%s/" INDEX " lists the file \"%.100s\"", archive->path,
                       name);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", archive->path, name);
    archive->files =
        dp_realloc(archive->files, (size_t)archive->file_count + 1, sizeof archive->files[0]);
    dp_status status = dp_safetensors_open(path, &archive->files[archive->file_count], err);
    archive->file_count += status == DP_OK;
    return status != DP_NOT_FOUND
               ? status
               : dp_fail(err, DP_INVALID, "%s is damaged: its file %s is not there", archive->path,
                         name);
}

static dp_status add_files(struct dp_archive *archive, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/" INDEX, archive->path);
    if (access(path, F_OK) != 0) {
        return add_file(archive, SINGLE, err);
    }
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = read_json(path, &json, err);
    if (status != DP_OK) {
        return status;
    }
    const json_t *map = json_object_get(json, "weight_map");
    if (json_object_size(map) == 0) {
        return dp_fail(err, DP_INVALID, "%s is damaged: it has no \"weight_map\" of names to files",
                       path);
    }
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        status = add_file(archive, json_is_string(file) ? json_string_value(file) : "", err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

// Everything that does not fit, at once.
static dp_status check_names(const struct dp_archive *archive, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf list = {0};
    for (int64_t i = 0; i < archive->unknown_count && i < NAMES_LISTED_MAX; i++) {
        dp_buf_printf(&list, "%s%s", i == 0 ? "" : ", ", archive->unknown[i]);
    }
    if (archive->unknown_count > NAMES_LISTED_MAX) {
        dp_buf_printf(&list, " and %" PRId64 " more", archive->unknown_count - NAMES_LISTED_MAX);
    }
    if (archive->unknown_count > 0) {
        return dp_fail(err, DP_UNSUPPORTED, "%s has tensors that no model here has: %s",
                       archive->path, list.bytes);
    }
    return DP_OK;
}

static bool is_float(dp_dtype dtype)
{
    double wide;
    const uint64_t zero = 0;
    return dp_dtype_widen(dtype, &zero, 1, DP_DTYPE_F64, &wide);
}

dp_status dp_archive_check_count(const struct dp_archive *archive, bool may_lack,
                                 struct dp_error *err)
{
    const struct dp_model_spec *model = &archive->meta.model;
    int64_t wanted = dp_archive_parameters_wanted(model), got = dp_archive_parameters(archive);
    // Some save the matrix that both ends share twice.
    const struct dp_archive_tensor *head = dp_archive_find(archive, "head.output", NULL);
    if (model->tied_embedding > 0 && head != NULL) {
        got -= dp_saved_tensor_count(head->saved);
    }
    if (got > wanted || (got < wanted && !may_lack)) {
        return dp_fail(err, DP_INVALID,
                       "%s holds %" PRId64 " parameters, the model of its " CONFIG " has %" PRId64,
                       archive->path, got, wanted);
    }
    return DP_OK;
}

// Whether config.json tells of these weights: that there are no more, and that they are numbers.
// What is missing is told by name where it is loaded; shapes are compared where a weight is read.
static dp_status check_weights(const struct dp_archive *archive, struct dp_error *err)
{
    for (int64_t i = 0; i < archive->count; i++) {
        const struct dp_saved_tensor *saved = archive->tensors[i].saved;
        if (!is_float(saved->dtype)) {
            return dp_fail(err, DP_UNSUPPORTED, "%s: %s holds %s; weights are floats",
                           archive->path, saved->name, dp_dtype_name(saved->dtype));
        }
    }
    return dp_archive_check_count(archive, true, err);
}

dp_status dp_archive_open_hf(struct dp_archive *archive, struct dp_error *err)
{
    dp_status status = read_config(archive, err);
    if (status == DP_OK) {
        status = add_files(archive, err);
    }
    if (status == DP_OK) {
        status = dp_archive_index(archive, err);
    }
    if (status == DP_OK) {
        status = check_names(archive, err);
    }
    return status == DP_OK ? check_weights(archive, err) : status;
}

static dp_status write_index(const char *directory, const struct dp_archive *archive,
                             struct dp_error *err)
{
    json_t *map = json_object();
    uint64_t bytes = 0;
    for (int64_t i = 0; i < archive->count; i++) {
        const struct dp_archive_tensor *tensor = &archive->tensors[i];
        if (tensor->kind == DP_ARCHIVE_WEIGHT) {
            const char *file = strrchr(archive->files[tensor->file].path, '/') + 1;
            json_object_set_new(map, tensor->saved->name, json_string(file));
            bytes += tensor->saved->bytes;
        }
    }
    DP_AUTO_JSON json_t *json =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    return dp_archive_put_file(directory, INDEX, &text, err);
}

dp_status dp_archive_write_hf(const char *directory, const struct dp_archive *archive,
                              struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf config = {0};
    const struct dp_archive_tensor *first = dp_archive_find(archive, "embedding", NULL);
    dp_hf_config_write(&archive->meta.model, first != NULL ? first->saved->dtype : DP_DTYPE_F32,
                       &config);
    dp_status status = dp_archive_put_file(directory, CONFIG, &config, err);
    return status == DP_OK ? write_index(directory, archive, err) : status;
}
