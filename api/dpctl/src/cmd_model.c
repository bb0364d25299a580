// dpctl model: shapes, built in or from a Hugging Face config.json.

#include <stdlib.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/spec.h"
#include "dpctl.h"

struct request {
    const char *verb, *model;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) {
            request->verb = arg;
        } else {
            dpctl_take_argument(state, "model", arg, &request->model);
        }
        return 0;
    case ARGP_KEY_END:
        if (request->verb == NULL) {
            argp_error(state, "say list, or show MODEL");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

dp_status dpctl_load_model(const char *name, struct dp_model_spec *ret_model, struct dp_error *err)
{
    size_t length = strlen(name);
    if (length <= 5 || strcmp(name + length - 5, ".json") != 0) {
        return dp_model_preset(name, ret_model, err);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(name, DP_SPEC_BYTES_MAX, &text, err);
    return status == DP_OK ? dp_model_from_hf_config(text.bytes, text.length, name, ret_model, err)
                           : status;
}

static void print_model(struct dpctl *ctl, const struct dp_model_spec *m)
{
    if (ctl->json) {
        dpctl_print_json(
            ctl,
            json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I}",
                      "name", m->name, "layers", (int)m->layers, "dense_layers",
                      (int)m->dense_layers, "hidden", (int)m->hidden, "heads", (int)m->heads,
                      "kv_heads", (int)m->kv_heads, "head_dim", (int)m->head_dim, "ffn",
                      (int)m->ffn, "experts", (int)m->experts, "top_k", (int)m->top_k,
                      "shared_experts", (int)m->shared_experts, "expert_ffn", (int)m->expert_ffn,
                      "vocabulary", (int)m->vocabulary, "parameters",
                      (json_int_t)dp_model_parameters(m), "active_parameters",
                      (json_int_t)dp_model_active_parameters(m)),
            "dp.model/1");
        return;
    }
    printf("%s: %d layers (%d dense), hidden %d, %d heads (%d kv) of %d, ffn %d\n", m->name,
           (int)m->layers, (int)m->dense_layers, (int)m->hidden, (int)m->heads, (int)m->kv_heads,
           (int)m->head_dim, (int)m->ffn);
    if (m->experts > 0) {
        printf("%d experts of %d, top %d, %d shared\n", (int)m->experts, (int)m->expert_ffn,
               (int)m->top_k, (int)m->shared_experts);
    }
    char all[32], active[32];
    printf("%s parameters, %s active per token\n",
           dpctl_parameters(all, (double)dp_model_parameters(m)),
           dpctl_parameters(active, (double)dp_model_active_parameters(m)));
}

static dp_status list(struct dpctl *ctl)
{
    json_t *rows = json_array();
    for (const char *const *name = dp_model_preset_names(); *name != NULL; name++) {
        json_array_append_new(rows, json_string(*name));
        if (!ctl->json) {
            puts(*name);
        }
    }
    if (ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:O}", "models", rows), "dp.models/1");
    }
    json_decref(rows);
    return DP_OK;
}

dp_status dpctl_cmd_model(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "list\nshow NAME|config.json",
        .doc = "Models: the built-in ones, or one from a Hugging Face config.json.",
        .exits = "0 ok, 3 the file is wrong, 4 no such model or file",
        .offline = true,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    if (strcmp(request.verb, "list") == 0 && request.model == NULL) {
        return list(ctl);
    }
    if (strcmp(request.verb, "show") != 0 || request.model == NULL) {
        return dp_fail(err, DP_USAGE, "say list, or show MODEL");
    }
    struct dp_model_spec model;
    dp_status status = dpctl_load_model(request.model, &model, err);
    if (status == DP_OK) {
        print_model(ctl, &model);
    }
    return status;
}
