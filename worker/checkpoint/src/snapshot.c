#include "snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

static dp_dtype reals_of(const struct dp_device *device)
{
    return dp_element_real(device->element) == DP_F64 ? DP_DTYPE_F64 : DP_DTYPE_F32;
}

static void append(struct part_list *list, const struct part *part)
{
    if (list->count == list->room) {
        list->room = list->room == 0 ? 64 : 2 * list->room;
        list->items = dp_realloc(list->items, (size_t)list->room, sizeof list->items[0]);
    }
    list->items[list->count++] = *part;
}

static void name_of(const struct dp_stage *stage, const char *own,
                    char ret_name[DP_TENSOR_NAME_MAX])
{
    dp_hf_name(own, &dp_stage_config(stage)->model, ret_name);
}

// Norms have one dimension, as everywhere else.
static void append_weight(struct snapshot *snapshot, const struct dp_stage *stage,
                          const struct dp_tensor *tensor, const void *weights)
{
    struct dp_device *device = dp_stage_device(stage);
    size_t width = dp_device_real_bytes(device);
    char name[DP_TENSOR_NAME_MAX];
    name_of(stage, tensor->name, name);
    bool is_vector = tensor->rows == 1 && !tensor->decays;
    struct part part = {.from = (const char *)weights + (size_t)tensor->offset * width,
                        .bytes = (size_t)tensor->count * width};
    part.saved = (struct dp_saved_part){
        .name = dp_strdup(name),
        .dtype = reals_of(device),
        .dims = is_vector ? 1 : 2,
        .shape = {is_vector ? tensor->cols : tensor->rows, is_vector ? 0 : tensor->cols}};
    append(&snapshot->weights, &part);
}

static void append_biases(struct snapshot *snapshot, struct dp_stage *stage)
{
    struct dp_device *device = dp_stage_device(stage);
    const struct dp_stage_config *config = dp_stage_config(stage);
    // Multi-token prediction has a layer behind the last.
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        const void *bias = dp_stage_router_bias(stage, layer);
        if (bias == NULL) {
            continue;
        }
        char own[DP_NAME_MAX], name[DP_TENSOR_NAME_MAX];
        snprintf(own, sizeof own, "layers.%d.router.bias", layer);
        name_of(stage, own, name);
        struct part part = {.from = bias,
                            .bytes = (size_t)config->model.experts * dp_device_real_bytes(device)};
        part.saved = (struct dp_saved_part){.name = dp_strdup(name),
                                            .dtype = reals_of(device),
                                            .dims = 1,
                                            .shape = {config->model.experts}};
        append(&snapshot->weights, &part);
    }
}

// Whether another slot or stage writes the tensor: of one that both ends of the model have, the
// stage with the embedding does.
static bool is_others(const struct dp_stage *stage, const struct dp_tensor *tensor)
{
    return tensor->is_copy || (tensor->is_tied && !dp_stage_config(stage)->has_embedding);
}

static void append_stage(struct snapshot *snapshot, const struct dp_checkpoint_stage *entry)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(entry->stage, &count);
    for (int32_t i = 0; i < count; i++) {
        if (is_others(entry->stage, &tensors[i])) {
            continue;
        }
        if (tensors[i].is_expert ? entry->writes_experts : entry->writes_shared) {
            append_weight(snapshot, entry->stage, &tensors[i], dp_stage_weights(entry->stage));
        }
    }
    if (entry->writes_shared) {
        append_biases(snapshot, entry->stage);
    }
}

static void append_moment(struct snapshot *snapshot, const struct dp_checkpoint_run *run,
                          const struct dp_device *device, const char *weight, char letter,
                          int64_t skip, int64_t begin, int64_t end)
{
    const void *values = letter == 'm' ? run->m : run->v;
    size_t width = run->is_bf16 ? dp_dtype_bytes(DP_DTYPE_BF16) : dp_device_real_bytes(device);
    struct part part = {.from = (const char *)values + (size_t)skip * width,
                        .bytes = (size_t)(end - begin) * width};
    part.saved = (struct dp_saved_part){
        .name = dp_asprintf("%s.%c[%" PRId64 ":%" PRId64 "]", weight, letter, begin, end),
        .dtype = run->is_bf16 ? DP_DTYPE_BF16 : reals_of(device),
        .dims = 1,
        .shape = {end - begin}};
    append(&snapshot->moments, &part);
}

// The run cut at the borders of tensors.
static void append_run(struct snapshot *snapshot, const struct dp_stage *stage,
                       const struct dp_checkpoint_run *run)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_tensor *tensor = &tensors[i];
        int64_t from = run->begin > tensor->offset ? run->begin : tensor->offset;
        int64_t to = tensor->offset + tensor->count;
        to = run->end < to ? run->end : to;
        // Ends that share a tensor have its moments in parts, or each has all of them.
        const bool is_part = tensor->is_tied && to - from < tensor->count;
        if (from < to && (is_part || !is_others(stage, tensor))) {
            char name[DP_TENSOR_NAME_MAX];
            name_of(stage, tensor->name, name);
            for (const char *letter = "mv"; *letter != '\0'; letter++) {
                append_moment(snapshot, run, dp_stage_device(stage), name, *letter,
                              from - run->begin, from - tensor->offset, to - tensor->offset);
            }
        }
    }
}

static size_t place(struct part_list *list, char *copies, size_t at)
{
    for (int64_t i = 0; i < list->count; i++) {
        list->items[i].saved.values = copies + at;
        at += list->items[i].bytes;
    }
    return at;
}

static size_t bytes_of(const struct part_list *list)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < list->count; i++) {
        bytes += list->items[i].bytes;
    }
    return bytes;
}

dp_status dp_snapshot_init(struct snapshot *snapshot, struct dp_device *device,
                           const struct dp_checkpoint_state *state, struct dp_error *err)
{
    struct snapshot made = {0};
    for (int32_t i = 0; i < state->stage_count; i++) {
        append_stage(&made, &state->stages[i]);
    }
    for (int32_t i = 0; i < state->run_count; i++) {
        append_run(&made, state->stages[state->runs[i].stage].stage, &state->runs[i]);
    }
    made.bytes = bytes_of(&made.weights) + bytes_of(&made.moments);
    void *copies = NULL;
    dp_status status = device->ops->alloc(device, DP_MEMORY_STAGING, made.bytes, &copies, err);
    if (status != DP_OK) {
        dp_snapshot_deinit(&made, device);
        return status;
    }
    made.copies = copies;
    place(&made.moments, made.copies, place(&made.weights, made.copies, 0));
    *snapshot = made;
    return DP_OK;
}

static void copy_list(const struct part_list *list, struct dp_device *device,
                      struct dp_stream *stream)
{
    for (int64_t i = 0; i < list->count; i++) {
        device->ops->copy(stream, (void *)(uintptr_t)list->items[i].saved.values,
                          list->items[i].from, list->items[i].bytes);
    }
}

void dp_snapshot_copy(struct snapshot *snapshot, struct dp_device *device, struct dp_stream *stream)
{
    copy_list(&snapshot->weights, device, stream);
    copy_list(&snapshot->moments, device, stream);
}

static void free_list(struct part_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        free((char *)(uintptr_t)list->items[i].saved.name);
    }
    free(list->items);
}

void dp_snapshot_deinit(struct snapshot *snapshot, struct dp_device *device)
{
    free_list(&snapshot->weights);
    free_list(&snapshot->moments);
    device->ops->free(device, snapshot->copies);
    *snapshot = (struct snapshot){0};
}
