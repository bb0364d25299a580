#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/checkpoint.h"
#include "dp/cleanup.h"

#define NAMES_LISTED_MAX 20

static dp_dtype reals_of(const struct dp_device *device)
{
    return dp_element_real(device->element) == DP_F64 ? DP_DTYPE_F64 : DP_DTYPE_F32;
}

static bool archive_has(void *context, const char *own, dp_archive_kind kind, int64_t count)
{
    (void)count; // shapes, and where moments end, are told when they are read
    return (kind != DP_ARCHIVE_WEIGHT && kind != DP_ARCHIVE_SCALE) ||
           dp_archive_find(context, own, NULL) != NULL;
}

static dp_status archive_weight(void *context, const char *own, int64_t rows, int64_t cols,
                                dp_dtype to, void *ret_values, struct dp_error *err)
{
    return dp_archive_read_weight(context, own, rows, cols, to, ret_values, err);
}

static dp_status archive_moments(void *context, const char *own, dp_archive_kind kind,
                                 int64_t count, dp_dtype to, void *ret_values, struct dp_error *err)
{
    return dp_archive_read_moments(context, own, kind, count, to, ret_values, err);
}

struct dp_tensor_source dp_checkpoint_source(const struct dp_archive *archive)
{
    struct dp_tensor_source source = {.context = (void *)(uintptr_t)archive,
                                      .lacking = DP_INVALID,
                                      .has_moments = archive->meta.is_trained,
                                      .has = archive_has,
                                      .read_weight = archive_weight,
                                      .read_moments = archive_moments};
    snprintf(source.name, sizeof source.name, "the checkpoint %s", archive->path);
    return source;
}

// What is missing, in words.
struct missing {
    struct dp_buf list;
    int32_t count;
};

static void add_missing(struct missing *missing, const struct dp_stage *stage, const char *own,
                        const char *of)
{
    char name[DP_TENSOR_NAME_MAX];
    dp_hf_name(own, &dp_stage_config(stage)->model, name);
    if (missing->count++ < NAMES_LISTED_MAX) {
        dp_buf_printf(&missing->list, "%s%s%s", missing->count == 1 ? "" : ", ", of, name);
    }
}

static void find_missing(const struct dp_tensor_source *source, const struct dp_stage *stage,
                         struct missing *missing)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_tensor *tensor = &tensors[i];
        if (!source->has(source->context, tensor->name, DP_ARCHIVE_WEIGHT, tensor->count)) {
            add_missing(missing, stage, tensor->name, "");
        } else if (source->has_moments &&
                   !(source->has(source->context, tensor->name, DP_ARCHIVE_M, tensor->count) &&
                     source->has(source->context, tensor->name, DP_ARCHIVE_V, tensor->count))) {
            add_missing(missing, stage, tensor->name, "moments of ");
        }
    }
}

dp_status dp_checkpoint_check(const struct dp_tensor_source *source, struct dp_stage *const *stages,
                              int32_t count, struct dp_error *err)
{
    struct missing missing = {0};
    for (int32_t i = 0; i < count; i++) {
        find_missing(source, stages[i], &missing);
    }
    dp_status status = DP_OK;
    if (missing.count > NAMES_LISTED_MAX) {
        dp_buf_printf(&missing.list, " and %d more", missing.count - NAMES_LISTED_MAX);
    }
    if (missing.count > 0) {
        status = dp_fail(err, source->lacking, "%s lacks %s", source->name, missing.list.bytes);
    }
    dp_buf_deinit(&missing.list);
    return status;
}

struct reader {
    const struct dp_tensor_source *source;
    struct dp_stage *stage;
    struct dp_device *device;
    void *values; // host memory, room for the largest tensor
};

static void put(const struct reader *reader, void *to, int64_t offset, int64_t count)
{
    size_t width = dp_device_real_bytes(reader->device);
    reader->device->ops->copy(reader->device->stream, (char *)to + (size_t)offset * width,
                              reader->values, (size_t)count * width);
}

static dp_status load_moments(const struct reader *reader, const struct dp_tensor *tensor,
                              dp_archive_kind kind, void *to, struct dp_error *err)
{
    if (to == NULL) {
        return DP_OK;
    }
    dp_status status =
        reader->source->read_moments(reader->source->context, tensor->name, kind, tensor->count,
                                     reals_of(reader->device), reader->values, err);
    if (status == DP_OK) {
        put(reader, to, tensor->offset, tensor->count);
    }
    return status;
}

static bool are_finite(const struct reader *reader, int64_t count)
{
    bool is_wide = dp_device_real_bytes(reader->device) == sizeof(double);
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        finite &= is_wide ? isfinite(((const double *)reader->values)[i])
                          : isfinite(((const float *)reader->values)[i]);
    }
    return finite;
}

static dp_status load_tensor(const struct reader *reader, const struct dp_tensor *tensor, void *m,
                             void *v, struct dp_error *err)
{
    dp_status status =
        reader->source->read_weight(reader->source->context, tensor->name, tensor->rows,
                                    tensor->cols, reals_of(reader->device), reader->values, err);
    if (status == DP_OK && !are_finite(reader, tensor->count)) {
        char name[DP_TENSOR_NAME_MAX];
        dp_hf_name(tensor->name, &dp_stage_config(reader->stage)->model, name);
        return dp_fail(err, DP_INVALID, "%s has values in %s that are not finite",
                       reader->source->name, name);
    }
    if (status == DP_OK) {
        put(reader, dp_stage_weights(reader->stage), tensor->offset, tensor->count);
        status = load_moments(reader, tensor, DP_ARCHIVE_M, m, err);
    }
    return status == DP_OK ? load_moments(reader, tensor, DP_ARCHIVE_V, v, err) : status;
}

static bool are_zeros(const void *values, size_t bytes)
{
    const char *at = values;
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

// Of one layer. Without it tokens would go to other experts than those that were trained for them.
static dp_status load_bias(const struct reader *reader, int32_t layer, struct dp_error *err)
{
    int64_t experts = dp_stage_config(reader->stage)->model.experts;
    void *bias = dp_stage_router_bias(reader->stage, layer);
    char own[DP_NAME_MAX];
    snprintf(own, sizeof own, "layers.%d.router.bias", layer);
    if (!reader->source->has(reader->source->context, own, DP_ARCHIVE_WEIGHT, experts)) {
        return DP_OK; // of a run that had none: zeros, as they are
    }
    dp_status status = reader->source->read_weight(reader->source->context, own, 1, experts,
                                                   reals_of(reader->device), reader->values, err);
    if (status != DP_OK) {
        return status;
    }
    if (bias != NULL) {
        put(reader, bias, 0, experts);
    } else if (!are_zeros(reader->values, (size_t)experts * dp_device_real_bytes(reader->device))) {
        return dp_fail(err, DP_INVALID,
                       "%s has biases of the router in layer %d, this job has none; set [model] "
                       "bias_update, or biases = \"router\" to keep them as they are",
                       reader->source->name, layer);
    }
    return DP_OK;
}

static dp_status load_biases(const struct reader *reader, struct dp_error *err)
{
    const struct dp_stage_config *config = dp_stage_config(reader->stage);
    dp_status status = DP_OK;
    // That of multi-token prediction follows the others.
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        if (status == DP_OK && dp_stage_expert_counts(reader->stage, layer) != NULL) {
            status = load_bias(reader, layer, err);
        }
    }
    return status;
}

dp_status dp_checkpoint_fill_stage(const struct dp_tensor_source *source, struct dp_stage *stage,
                                   void *m, void *v, struct dp_error *err)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    int64_t most = dp_stage_config(stage)->model.experts;
    for (int32_t i = 0; i < count; i++) {
        most = tensors[i].count > most ? tensors[i].count : most;
    }
    struct reader reader = {source, stage, dp_stage_device(stage), NULL};
    DP_AUTO_FREE void *values = reader.values =
        dp_alloc_aligned((size_t)most, dp_device_real_bytes(reader.device));
    dp_status status = DP_OK;
    for (int32_t i = 0; i < count && status == DP_OK; i++) {
        status = load_tensor(&reader, &tensors[i], m, v, err);
    }
    if (status == DP_OK) {
        status = load_biases(&reader, err);
    }
    return status == DP_OK ? reader.device->ops->stream_sync(reader.device->stream, err) : status;
}

dp_status dp_checkpoint_load_stage(const struct dp_archive *archive, struct dp_stage *stage,
                                   void *m, void *v, struct dp_error *err)
{
    const struct dp_tensor_source source = dp_checkpoint_source(archive);
    dp_status status = dp_checkpoint_check(&source, &stage, 1, err);
    return status == DP_OK ? dp_checkpoint_fill_stage(&source, stage, m, v, err) : status;
}
