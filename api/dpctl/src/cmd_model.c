// dpctl model: shapes, built in or read from a file, with what they count and cost.

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/cost.h"
#include "dp/diag.h"
#include "dp/spec.h"
#include "dpctl.h"

enum { KEY_SEQUENCE = 0x200, SEQUENCE_DEFAULT = 4096 };

struct request {
    const char *verb, *model;
    int32_t sequence; // 0 = not given
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_SEQUENCE:
        request->sequence = (int32_t)dpctl_number(state, "--seq-len", arg, 1, DP_SEQUENCE_MAX);
        return 0;
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

static dp_status load_config(const char *path, struct dp_model_spec *ret_model,
                             struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err);
    return status == DP_OK ? dp_model_from_hf_config(text.bytes, text.length, path, ret_model, err)
                           : status;
}

// The [model] of a job file.
static dp_status load_job(const char *path, struct dp_model_spec *ret_model, struct dp_error *err)
{
    struct dp_job_spec spec;
    dp_status status = dp_job_spec_load(path, &spec, err);
    if (status == DP_OK) {
        *ret_model = spec.model;
    }
    return status;
}

dp_status dpctl_load_model(const char *name, struct dp_model_spec *ret_model, struct dp_error *err)
{
    size_t length = strlen(name);
    if (length > 5 && strcmp(name + length - 5, ".json") == 0) {
        return load_config(name, ret_model, err);
    }
    if (length > 5 && strcmp(name + length - 5, ".toml") == 0) {
        return load_job(name, ret_model, err);
    }
    dp_status status = dp_model_preset(name, ret_model, err);
    if (status != DP_NOT_FOUND) {
        return status;
    }
    struct stat info;
    if (stat(name, &info) == 0) { // a file by another name, or a directory as it is downloaded
        DP_AUTO_FREE char *inside = dp_asprintf("%s/config.json", name);
        return load_config(S_ISDIR(info.st_mode) ? inside : name, ret_model, err);
    }
    const char *near = dp_suggest(name, dp_model_preset_names());
    if (near != NULL) {
        return dp_fail(err, DP_NOT_FOUND,
                       "no model is called \"%s\"; did you mean \"%s\"? dpctl model list has them "
                       "all, and a config.json is taken as well",
                       name, near);
    }
    return status;
}

// Forward and backward of one token under each convention.
struct operations {
    double causal, noncausal, causal_with_mtp;
};

static struct operations count_operations(const struct dp_model_spec *m, int32_t sequence)
{
    static const struct dp_cost_flops_options causal = {false, false}, full = {true, false},
                                              mtp = {false, true};
    return (struct operations){
        .causal = dp_cost_flops_per_token(m, sequence, &causal),
        .noncausal = dp_cost_flops_per_token(m, sequence, &full),
        .causal_with_mtp = dp_cost_flops_per_token(m, sequence, &mtp),
    };
}

static const char *kind_of(const struct dp_model_spec *m, int32_t layer)
{
    return dp_model_layer_is_moe(m, layer) ? "moe" : "dense";
}

static json_t *layer_json(const struct dp_model_spec *m, int32_t layer, int32_t sequence)
{
    struct dp_layer_parts p;
    dp_model_layer_parts(m, layer, &p);
    int64_t experts = dp_layer_parts_total(&p) - dp_layer_parts_common(&p);
    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f}", "index", (int)layer,
                     "kind", kind_of(m, layer), "params", (json_int_t)dp_layer_parts_total(&p),
                     "active_params", (json_int_t)dp_layer_parts_active(&p), "attention",
                     (json_int_t)(p.attention + p.attention_biases), "router",
                     (json_int_t)(p.router + p.router_biases), "shared",
                     (json_int_t)(p.shared + p.shared_biases), "experts", (json_int_t)experts,
                     "norms", (json_int_t)p.norms, "window", (int)dp_model_layer_window(m, layer),
                     "forward_flops_per_token", dp_cost_layer_flops(m, layer, sequence, false));
}

// Every number of the shape under the name that it has in [model].
static json_t *shape_json(const struct dp_model_spec *m)
{
    const struct {
        const char *key;
        int32_t value;
    } members[] = {
        {"layers", m->layers},
        {"dense_layers", m->dense_layers},
        {"hidden", m->hidden},
        {"heads", m->heads},
        {"kv_heads", m->kv_heads},
        {"head_dim", m->head_dim},
        {"ffn", m->ffn},
        {"experts", m->experts},
        {"top_k", m->top_k},
        {"shared_experts", m->shared_experts},
        {"expert_ffn", m->expert_ffn},
        {"expert_groups", m->expert_groups},
        {"top_groups", m->top_groups},
        {"vocabulary", m->vocabulary},
        {"mtp_layers", m->mtp_layers},
        {"mla_q_rank", m->mla_q_rank},
        {"mla_kv_rank", m->mla_kv_rank},
        {"mla_nope_dim", m->mla_nope_dim},
        {"mla_rope_dim", m->mla_rope_dim},
        {"mla_v_dim", m->mla_v_dim},
        {"ffn_matrices", m->ffn_matrices > 0 ? m->ffn_matrices : 3},
        {"window", m->window},
        {"window_layers", m->window_layers},
        {"window_from", m->window_from},
        {"rotary_dim", m->rotary_dim},
        {"tied_embedding", m->tied_embedding},
        {"positions", m->positions},
        {"qk_norm", m->qk_norm},
        {"sinks", m->sinks},
        {"shared_gate", m->shared_gate},
    };
    json_t *shape = json_object();
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        json_object_set_new(shape, members[i].key, json_integer(members[i].value));
    }
    char biases[DP_NAME_MAX];
    dp_biases_text(m->biases, biases);
    json_object_set_new(shape, "biases", json_string(biases));
    dp_format format = m->format == DP_FORMAT_AUTO ? DP_FORMAT_BF16 : m->format;
    json_object_set_new(shape, "format", json_string(dp_format_text(format)));
    return shape;
}

static void print_json(struct dpctl *ctl, const struct dp_model_spec *m, int32_t sequence)
{
    struct operations flops = count_operations(m, sequence);
    json_int_t total = dp_model_parameters(m), active = dp_model_active_parameters(m);
    json_t *json = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:{s:f, s:f, s:f}, s:I, s:I}", "name", m->name,
        "total_params", total, "active_params", active, "mtp_params",
        (json_int_t)dp_model_mtp_parameters(m), "mtp_active_params",
        (json_int_t)dp_model_mtp_active_parameters(m), "embedding_params",
        (json_int_t)dp_model_embedding_parameters(m), "head_params",
        (json_int_t)dp_model_head_parameters(m), "sequence", (int)sequence, "flops_per_token",
        "causal", flops.causal, "noncausal", flops.noncausal, "causal_with_mtp",
        flops.causal_with_mtp, "parameters", total, "active_parameters", active);
    json_t *shape = shape_json(m), *layers = json_array();
    json_object_set_new(json, "shape", shape);
    for (int32_t layer = 0; layer < m->layers; layer++) {
        json_array_append_new(layers, layer_json(m, layer, sequence));
    }
    json_object_set_new(json, "layers", layers);
    dpctl_print_json(ctl, json, "dp.model/1");
}

static void print_shape(const struct dp_model_spec *m)
{
    printf("%d layers (%d dense), hidden %d, %d heads (%d kv) of %d, ffn %d, vocabulary %d\n",
           m->layers, m->dense_layers, m->hidden, m->heads, m->kv_heads, m->head_dim, m->ffn,
           m->vocabulary);
    if (m->mla_kv_rank > 0) {
        printf("latent attention: queries of rank %d, keys and values of %d, heads %d + %d, "
               "values %d\n",
               m->mla_q_rank, m->mla_kv_rank, m->mla_nope_dim, m->mla_rope_dim, m->mla_v_dim);
    }
    if (m->experts > 0) {
        printf("%d experts of %d, top %d, %d shared", m->experts, m->expert_ffn, m->top_k,
               m->shared_experts);
        if (m->expert_groups > 1) {
            printf(", in %d groups, %d of them visited", m->expert_groups, m->top_groups);
        }
        puts("");
    }
    char biases[DP_NAME_MAX];
    dp_biases_text(m->biases, biases);
    dp_format format = m->format == DP_FORMAT_AUTO ? DP_FORMAT_BF16 : m->format;
    printf("trained in %s; biases: %s%s%s%s%s%s%s\n", dp_format_text(format), biases,
           m->ffn_matrices == 2 ? "; plain FFN" : "", m->tied_embedding > 0 ? "; tied head" : "",
           m->positions > 0 ? "; learned positions" : "",
           m->qk_norm > 0 ? "; norms of q and k" : "", m->sinks > 0 ? "; sinks" : "",
           m->shared_gate > 0 ? "; gated shared experts" : "");
}

// Layers that are alike: of one kind and one window.
struct alike {
    int32_t first, last, count;
};

static int find_alike(const struct dp_model_spec *m, struct alike rows[4])
{
    int count = 0;
    for (int32_t layer = 0; layer < m->layers; layer++) {
        int i = 0;
        while (i < count &&
               (dp_model_layer_is_moe(m, layer) != dp_model_layer_is_moe(m, rows[i].first) ||
                dp_model_layer_window(m, layer) != dp_model_layer_window(m, rows[i].first))) {
            i++;
        }
        if (i == count) {
            rows[count++] = (struct alike){.first = layer};
        }
        rows[i].last = layer;
        rows[i].count++;
    }
    return count;
}

static void add_count(struct dpctl_table *table, int64_t count)
{
    char text[32];
    dpctl_cell(table, "%s", count == 0 ? "" : dpctl_parameters(text, (double)count));
}

static void add_row(struct dpctl_table *table, const struct dp_model_spec *m,
                    const struct alike *row, int32_t sequence)
{
    struct dp_layer_parts p;
    dp_model_layer_parts(m, row->first, &p);
    bool is_run = row->last - row->first + 1 == row->count;
    if (row->count == 1) {
        dpctl_cell(table, "%d", row->first);
    } else {
        dpctl_cell(table, is_run ? "%d-%d" : "%d..%d", row->first, row->last);
    }
    dpctl_cell(table, "%d", row->count);
    int32_t window = dp_model_layer_window(m, row->first);
    if (window > 0) {
        dpctl_cell(table, "%s, window %d", kind_of(m, row->first), window);
    } else {
        dpctl_cell(table, "%s", kind_of(m, row->first));
    }
    add_count(table, dp_layer_parts_total(&p));
    add_count(table, dp_layer_parts_active(&p));
    add_count(table, p.attention + p.attention_biases);
    add_count(table, p.router + p.router_biases);
    add_count(table, p.shared + p.shared_biases);
    add_count(table, dp_layer_parts_total(&p) - dp_layer_parts_common(&p));
    dpctl_cell(table, "%.3f GF", dp_cost_layer_flops(m, row->first, sequence, false) / 1e9);
}

// What is not a layer of the model.
static void add_rest(struct dpctl_table *table, const char *what, int32_t count, int64_t all,
                     int64_t active)
{
    if (count == 0) {
        return;
    }
    dpctl_cell(table, "%s", what);
    dpctl_cell(table, "%d", count);
    dpctl_cell(table, "%s", "");
    add_count(table, all);
    add_count(table, active);
    for (int i = 5; i < table->columns; i++) {
        dpctl_cell(table, "%s", "");
    }
}

static void print_layers(const struct dp_model_spec *m, int32_t sequence)
{
    static const char *const heads[] = {"LAYERS",    "COUNT",  "KIND",   "PARAMETERS", "ACTIVE",
                                        "ATTENTION", "ROUTER", "SHARED", "EXPERTS",    "FORWARD"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 10, .right = 0x3fa};
    dpctl_heads(&table, heads);
    struct alike rows[4];
    int count = find_alike(m, rows);
    for (int i = 0; i < count; i++) {
        add_row(&table, m, &rows[i], sequence);
    }
    int64_t head = dp_model_head_parameters(m);
    add_rest(&table, "mtp", m->mtp_layers, dp_model_mtp_parameters(m),
             dp_model_mtp_active_parameters(m));
    add_rest(&table, "embedding", 1, dp_model_embedding_parameters(m), 0);
    add_rest(&table, m->tied_embedding > 0 ? "tied head" : "head", 1, head, head);
    dpctl_table_print(&table);
}

static void print_text(const struct dp_model_spec *m, int32_t sequence)
{
    char all[32], active[32];
    printf("%s: %s parameters, %s active per token\n", m->name,
           dpctl_parameters(all, (double)dp_model_parameters(m)),
           dpctl_parameters(active, (double)dp_model_active_parameters(m)));
    print_shape(m);
    struct operations flops = count_operations(m, sequence);
    printf("a token of a sequence of %d trains with %.1f GF (causal; %.1f non-causal", sequence,
           flops.causal / 1e9, flops.noncausal / 1e9);
    if (m->mtp_layers > 0) {
        printf("; %.1f with multi-token prediction", flops.causal_with_mtp / 1e9);
    }
    puts(")");
    puts("");
    print_layers(m, sequence);
}

static dp_status show(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    struct dp_model_spec model;
    dp_status status = dpctl_load_model(request->model, &model, err);
    if (status != DP_OK) {
        return status;
    }
    int32_t sequence = request->sequence;
    if (model.positions > 0 && sequence > model.positions) {
        return dp_fail(err, DP_INVALID,
                       "--seq-len %d: %s has only %d learned positions; ask for at most %d",
                       sequence, model.name, model.positions, model.positions);
    }
    if (sequence == 0) {
        bool is_short = model.positions > 0 && model.positions < SEQUENCE_DEFAULT;
        sequence = is_short ? model.positions : SEQUENCE_DEFAULT;
    }
    if (ctl->json) {
        print_json(ctl, &model, sequence);
    } else {
        print_text(&model, sequence);
    }
    return DP_OK;
}

static dp_status list(struct dpctl *ctl)
{
    static const char *const heads[] = {"MODEL", "PARAMETERS", "ACTIVE", "LAYERS", "EXPERTS"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 5, .right = 0x1e};
    dpctl_heads(&table, heads);
    json_t *names = json_array();
    for (const char *const *name = dp_model_preset_names(); *name != NULL; name++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        json_array_append_new(names, json_string(*name));
        if (dp_model_preset(*name, &model, &err) == DP_OK) {
            dpctl_cell(&table, "%s", *name);
            add_count(&table, dp_model_parameters(&model));
            add_count(&table, dp_model_active_parameters(&model));
            dpctl_cell(&table, "%d", model.layers);
            dpctl_cell(&table, model.experts > 0 ? "%d of %d" : "", model.top_k, model.experts);
        }
    }
    if (ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:O}", "models", names), "dp.models/1");
    } else {
        dpctl_table_print(&table);
    }
    json_decref(names);
    return DP_OK;
}

dp_status dpctl_cmd_model(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct argp_option options[] = {
        {"seq-len", KEY_SEQUENCE, "N", 0, "tokens of a sample, for operations: 4096", 0},
        {0},
    };
    static const struct dpctl_syntax syntax = {
        .arguments = "list\nshow NAME|config.json|job.toml",
        .doc = "Models: the built-in ones, or one from a Hugging Face config.json or a job file.",
        .exits = "0 ok, 3 the file is wrong, 4 no such model or file",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    bool is_list = strcmp(request.verb, "list") == 0;
    if (is_list && request.model == NULL && request.sequence == 0) {
        return list(ctl);
    }
    if (strcmp(request.verb, "show") != 0 || request.model == NULL) {
        return dp_fail(err, DP_USAGE, "say list, or show MODEL");
    }
    return show(ctl, &request, err);
}
