#include "experts_loads.h"

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/spec.h"

void loads_deinit(struct loads *loads)
{
    for (size_t i = 0; i < loads->count; i++) {
        free(loads->layers[i].load);
        free(loads->layers[i].placed);
    }
    free(loads->layers);
}

bool loads_is_file(const char *source)
{
    const size_t length = source == NULL ? 0 : strlen(source);
    return length > 0 && (strchr(source, '/') != NULL ||
                          (length > 5 && strcmp(source + length - 5, ".json") == 0));
}

static struct layer_loads *add_layer(struct loads *loads, int32_t layer, size_t experts)
{
    loads->layers = dp_realloc(loads->layers, loads->count + 1, sizeof(*loads->layers));
    struct layer_loads *added = &loads->layers[loads->count++];
    *added = (struct layer_loads){.layer = layer,
                                  .experts = (int32_t)experts,
                                  .groups = 1,
                                  .load = dp_new_array(double, experts)};
    return added;
}

static dp_status read_load(const char *path, json_t *list, int32_t layer, struct loads *loads,
                           struct dp_error *err)
{
    const size_t experts = json_array_size(list);
    if (experts < 1 || experts > DP_EXPERTS_MAX) {
        return dp_fail(err, DP_INVALID,
                       "%s: layer %d has no list of 1 to %d loads, one for each expert", path,
                       layer, DP_EXPERTS_MAX);
    }
    struct layer_loads *added = add_layer(loads, layer, experts);
    for (size_t e = 0; e < experts; e++) {
        const json_t *value = json_array_get(list, e);
        added->load[e] = json_is_number(value) ? json_number_value(value) : -1;
        if (!(added->load[e] >= 0 && added->load[e] <= DP_EXPERT_LOAD_MAX)) {
            return dp_fail(err, DP_INVALID,
                           "%s: the load of expert %zu of layer %d is no number from 0 to %.0f",
                           path, e, layer, DP_EXPERT_LOAD_MAX);
        }
    }
    return DP_OK;
}

// Where the experts lie now: absent, or a slot list that has every expert.
static dp_status read_placement(const char *path, const json_t *list, json_int_t ranks,
                                struct layer_loads *layer, struct dp_error *err)
{
    const size_t slots = json_array_size(list);
    if (list == NULL || ranks < 1 || ranks > DP_EXPERTS_MAX) {
        return DP_OK;
    }
    DP_AUTO_FREE bool *found = dp_new_array(bool, (size_t)layer->experts);
    int32_t missing = layer->experts;
    layer->ranks = (int32_t)ranks;
    layer->slots = slots <= DP_EXPERT_SLOTS_MAX ? (int32_t)slots : 0;
    layer->placed = dp_new_array(int32_t, (size_t)layer->slots);
    for (int32_t s = 0; s < layer->slots; s++) {
        const json_t *item = json_array_get(list, (size_t)s);
        const json_int_t expert = json_is_integer(item) ? json_integer_value(item) : -1;
        if (expert < 0 || expert >= layer->experts) {
            return dp_fail(err, DP_INVALID, "%s: slot %d of layer %d holds expert %lld of %d", path,
                           s, layer->layer, (long long)expert, layer->experts);
        }
        layer->placed[s] = (int32_t)expert;
        missing -= !found[expert];
        found[expert] = true;
    }
    if (missing > 0) {
        return dp_fail(err, DP_INVALID, "%s: %d experts of layer %d have no slot in its placement",
                       path, missing, layer->layer);
    }
    return DP_OK;
}

static dp_status read_document(const char *path, json_t *document, struct loads *loads,
                               struct dp_error *err)
{
    json_t *layers = json_object_get(document, "layers");
    const json_int_t ranks = json_integer_value(json_object_get(document, "ranks"));
    json_t *list = json_is_array(document) ? document : layers;
    if (json_array_size(list) < 1 || json_array_size(list) > DP_LAYERS_MAX) {
        return dp_fail(err, DP_INVALID,
                       "%s has no list of 1 to %d layers: write one list of loads for each, as in "
                       "[[90, 132, 40], [20, 107, 104]]",
                       path, DP_LAYERS_MAX);
    }
    dp_status status = DP_OK;
    for (size_t i = 0; i < json_array_size(list) && status == DP_OK; i++) {
        json_t *item = json_array_get(list, i);
        const json_t *number = json_object_get(item, "layer");
        const json_int_t layer = json_is_integer(number) ? json_integer_value(number) : (int)i;
        json_t *load = json_is_object(item) ? json_object_get(item, "tokens") : item;
        status = read_load(path, load, (int32_t)layer, loads, err);
        if (status == DP_OK) {
            status = read_placement(path, json_object_get(item, "placement"), ranks,
                                    &loads->layers[loads->count - 1], err);
        }
    }
    return status;
}

dp_status loads_read(const char *path, struct loads *ret_loads, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *document = NULL;
    dp_status status = dp_read_file(path, DP_EXPERTS_FILE_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status =
            dp_json_parse(text.bytes, text.length, DP_EXPERTS_FILE_BYTES_MAX, path, &document, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_COPY_TEXT(ret_loads->source, path);
    return read_document(path, document, ret_loads, err);
}

static int by_layer(const void *a, const void *b)
{
    const struct layer_loads *x = a, *y = b;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static struct layer_loads *find_layer(struct loads *loads, const Dp__V1__LayerLoad *load)
{
    for (size_t i = 0; i < loads->count; i++) {
        if (loads->layers[i].layer == (int32_t)load->layer) {
            return &loads->layers[i];
        }
    }
    return add_layer(loads, (int32_t)load->layer, load->n_chosen);
}

// The newest step comes last: what it says of places stands.
static void add_load(struct loads *loads, const Dp__V1__LayerLoad *load)
{
    struct layer_loads *layer = find_layer(loads, load);
    const size_t experts = (size_t)layer->experts;
    for (size_t e = 0; e < load->n_chosen && e < experts; e++) {
        layer->load[e] += (double)load->chosen[e];
    }
    free(layer->placed);
    layer->ranks = (int32_t)load->ep_ranks;
    layer->slots = (int32_t)load->n_slot_experts;
    layer->placed = dp_new_array(int32_t, load->n_slot_experts);
    for (size_t s = 0; s < load->n_slot_experts; s++) {
        layer->placed[s] = load->slot_experts[s] < experts ? (int32_t)load->slot_experts[s] : 0;
    }
}

static void add_steps(const Dp__V1__Timeline *timeline, long steps, struct loads *loads)
{
    size_t first = timeline->n_measured;
    for (long taken = 0; first > 0 && taken < steps; first--) {
        taken += timeline->measured[first - 1]->n_loads > 0;
    }
    for (size_t i = first; i < timeline->n_measured; i++) {
        const Dp__V1__TimelineStep *step = timeline->measured[i];
        if (step->n_loads == 0) {
            continue;
        }
        loads->first_step = loads->first_step == 0 ? (int64_t)step->step : loads->first_step;
        loads->last_step = (int64_t)step->step;
        for (size_t k = 0; k < step->n_loads; k++) {
            add_load(loads, step->loads[k]);
        }
    }
    if (loads->count > 0) {
        qsort(loads->layers, loads->count, sizeof(*loads->layers), by_layer);
    }
}

// The groups that the model routes in.
static dp_status take_groups(struct dp_client *client, const char *id, struct dp_arena *arena,
                             struct loads *loads, struct dp_error *err)
{
    Dp__V1__Job *job = NULL;
    dp_status status = dp_client_get_job(client, id, arena, &job, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_diags diags;
    struct dp_job_spec spec;
    const char *text = (const char *)job->job_toml.data;
    dp_diags_init(&diags, id, text, job->job_toml.len);
    status = dp_job_spec_parse(text, job->job_toml.len, NULL, &diags, &spec, err);
    dp_diags_deinit(&diags);
    for (size_t i = 0; i < loads->count && status == DP_OK; i++) {
        loads->layers[i].groups = spec.model.expert_groups > 0 ? spec.model.expert_groups : 1;
    }
    return status;
}

dp_status loads_ask(struct dpctl *ctl, const char *id, long steps, struct loads *ret_loads,
                    struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Timeline *timeline = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = newest_job(client, id, true, &arena, &id, err);
    }
    if (status == DP_OK) {
        status = dp_client_get_timeline(client, id, &arena, &timeline, err);
    }
    if (status != DP_OK) {
        return status;
    }
    add_steps(timeline, steps, ret_loads);
    DP_COPY_TEXT(ret_loads->source, timeline->job->id);
    if (ret_loads->count == 0) {
        return dp_fail(err, DP_NOT_FOUND,
                       "%s has reported no load of experts: its model has none, its device only "
                       "simulates, or its first step is not over",
                       timeline->job->id);
    }
    return take_groups(client, timeline->job->id, &arena, ret_loads, err);
}
