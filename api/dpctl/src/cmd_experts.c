// dpctl experts: how busy each expert of a job is, and where experts should lie instead.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/spec.h"
#include "experts_loads.h"

enum { KEY_RANKS = 1, KEY_NODES, KEY_GROUPS, KEY_COPIES, KEY_STEPS, KEY_PLACEMENT };

// Without --placement, text shows no more of it than fits a screen.
#define PLACEMENT_ROWS_MAX 32

static const struct argp_option options[] = {
    {"ranks", KEY_RANKS, "R", 0, "share the experts over R ranks (as the job does)", 0},
    {"nodes", KEY_NODES, "N", 0, "that sit on N nodes (1)", 0},
    {"groups", KEY_GROUPS, "G", 0, "experts are routed in G groups (as the job's model)", 0},
    {"copies", KEY_COPIES, "K", 0, "K slots more on each rank than experts need (as the job)", 0},
    {"steps", KEY_STEPS, "COUNT", 0, "loads of the newest COUNT reported steps (10)", 0},
    {"placement", KEY_PLACEMENT, NULL, 0, "print all of the placement", 0},
    {0},
};

struct request {
    const char *source;
    long ranks, nodes, groups, copies, steps;
    bool placement;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_RANKS:
        request->ranks = dpctl_number(state, "--ranks", arg, 1, DP_EXPERTS_MAX);
        return 0;
    case KEY_NODES:
        request->nodes = dpctl_number(state, "--nodes", arg, 1, DP_EXPERTS_MAX);
        return 0;
    case KEY_GROUPS:
        request->groups = dpctl_number(state, "--groups", arg, 1, DP_EXPERTS_MAX);
        return 0;
    case KEY_COPIES:
        request->copies = dpctl_number(state, "--copies", arg, 0, DP_EXPERTS_MAX);
        return 0;
    case KEY_STEPS:
        request->steps = dpctl_number(state, "--steps", arg, 1, DP_STEPS_MAX);
        return 0;
    case KEY_PLACEMENT:
        request->placement = true;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job or file", arg, &request->source);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// What is proposed for one layer.
struct proposal {
    const struct layer_loads *layer;
    struct dp_experts_shape shape, shape_now;
    int32_t *now, *expert; // [slots of each shape]; owned
    double skew;           // of experts
    int32_t fullest;
    double skew_now, skew_then; // of ranks
    double most_now, most_then; // loads of the fullest ranks
};

struct proposals {
    struct proposal *items;
    size_t count;
};

static void proposals_deinit(struct proposals *proposals)
{
    for (size_t i = 0; i < proposals->count; i++) {
        free(proposals->items[i].now);
        free(proposals->items[i].expert);
    }
    free(proposals->items);
}

static dp_status shape_layer(const struct request *request, const struct layer_loads *layer,
                             struct proposal *proposal, struct dp_error *err)
{
    const int32_t ranks = request->ranks > 0 ? (int32_t)request->ranks : layer->ranks;
    if (ranks == 0) {
        return dp_fail(err, DP_USAGE,
                       "the file does not say how many ranks share the experts: give --ranks");
    }
    const int32_t least = (layer->experts + ranks - 1) / ranks * ranks;
    const int32_t slots_now = ranks == layer->ranks && layer->slots > 0 ? layer->slots : least;
    const int32_t copies =
        request->copies >= 0 ? (int32_t)request->copies : (slots_now - least) / ranks;
    proposal->layer = layer;
    proposal->shape = (struct dp_experts_shape){
        .experts = layer->experts,
        .slots = least + copies * ranks,
        .groups = request->groups > 0 ? (int32_t)request->groups : layer->groups,
        .nodes = (int32_t)request->nodes,
        .ranks = ranks};
    dp_status status = dp_experts_shape_check(&proposal->shape, err);
    proposal->shape_now = proposal->shape;
    proposal->shape_now.slots = slots_now;
    return status == DP_OK ? dp_experts_shape_check(&proposal->shape_now, err) : status;
}

// As the job has placed them, unless another number of ranks is asked about.
static void take_present(struct proposal *proposal)
{
    const struct layer_loads *layer = proposal->layer;
    proposal->now = dp_new_array(int32_t, (size_t)proposal->shape_now.slots);
    if (layer->slots > 0 && proposal->shape.ranks == layer->ranks) {
        memcpy(proposal->now, layer->placed, (size_t)layer->slots * sizeof(*layer->placed));
    } else {
        dp_experts_place_plainly(&proposal->shape_now, proposal->now);
    }
}

static dp_status propose(const struct request *request, const struct layer_loads *layer,
                         struct proposal *proposal, struct dp_error *err)
{
    dp_status status = shape_layer(request, layer, proposal, err);
    if (status != DP_OK) {
        dp_fail_in(err, "layer %d", layer->layer);
        return status;
    }
    double sum = 0;
    for (int32_t e = 0; e < layer->experts; e++) {
        sum += layer->load[e];
        proposal->fullest = layer->load[e] > layer->load[proposal->fullest] ? e : proposal->fullest;
    }
    proposal->skew = sum > 0 ? layer->load[proposal->fullest] * layer->experts / sum : 1;
    take_present(proposal);
    proposal->expert = dp_new_array(int32_t, (size_t)proposal->shape.slots);
    if (proposal->shape.slots == proposal->shape_now.slots) {
        dp_experts_propose(&proposal->shape, layer->load, proposal->now, 1, proposal->expert);
    } else {
        dp_experts_place(&proposal->shape, layer->load, proposal->expert);
    }
    proposal->skew_now = dp_experts_skew(&proposal->shape_now, layer->load, proposal->now);
    proposal->skew_then = dp_experts_skew(&proposal->shape, layer->load, proposal->expert);
    proposal->most_now = dp_experts_fullest(&proposal->shape_now, layer->load, proposal->now);
    proposal->most_then = dp_experts_fullest(&proposal->shape, layer->load, proposal->expert);
    return DP_OK;
}

static json_t *numbers(const int32_t *values, int32_t count)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static json_t *layer_json(const struct proposal *proposal)
{
    const struct layer_loads *layer = proposal->layer;
    json_t *tokens = json_array();
    for (int32_t e = 0; e < layer->experts; e++) {
        json_array_append_new(tokens, json_real(layer->load[e]));
    }
    return json_pack("{s:i, s:o, s:i, s:f, s:f, s:f, s:o, s:o}", "layer", layer->layer, "tokens",
                     tokens, "fullest_expert", proposal->fullest, "expert_skew", proposal->skew,
                     "rank_skew", proposal->skew_now, "proposed_rank_skew", proposal->skew_then,
                     "placement", numbers(proposal->now, proposal->shape_now.slots), "proposed",
                     numbers(proposal->expert, proposal->shape.slots));
}

// Ranks wait for the fullest one in each layer, so its load is what the layer takes.
static double time_ratio(const struct proposals *proposals)
{
    double now = 0, then = 0;
    for (size_t i = 0; i < proposals->count; i++) {
        now += proposals->items[i].most_now;
        then += proposals->items[i].most_then;
    }
    return now > 0 ? then / now : 1;
}

static void print_as_json(struct dpctl *ctl, const struct loads *loads,
                          const struct proposals *proposals)
{
    json_t *layers = json_array();
    for (size_t i = 0; i < proposals->count; i++) {
        json_array_append_new(layers, layer_json(&proposals->items[i]));
    }
    const struct dp_experts_shape *shape = &proposals->items[0].shape;
    dpctl_print_json(ctl,
                     json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:f, s:o}", "source",
                               loads->source, "first_step", (json_int_t)loads->first_step,
                               "last_step", (json_int_t)loads->last_step, "ranks", shape->ranks,
                               "nodes", shape->nodes, "groups", shape->groups, "copies",
                               (shape->slots - shape->experts) / shape->ranks, "time_ratio",
                               time_ratio(proposals), "layers", layers),
                     "dp.experts/1");
}

static void print_layers(const struct proposals *proposals)
{
    static const char *const heads[] = {"LAYER",     "TOKENS",   "FULLEST", "SKEW",
                                        "RANK-SKEW", "PROPOSED", "MOVES"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 7, .right = 0x7f};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < proposals->count; i++) {
        const struct proposal *p = &proposals->items[i];
        double sum = 0;
        for (int32_t e = 0; e < p->layer->experts; e++) {
            sum += p->layer->load[e];
        }
        dpctl_cell(&table, "%d", p->layer->layer);
        dpctl_cell(&table, "%.0f", sum);
        dpctl_cell(&table, "%d", p->fullest);
        dpctl_cell(&table, "x%.2f", p->skew);
        dpctl_cell(&table, "x%.2f", p->skew_now);
        dpctl_cell(&table, "x%.2f", p->skew_then);
        if (p->shape.slots == p->shape_now.slots) {
            dpctl_cell(&table, "%d", dp_experts_moved(&p->shape, p->now, p->expert));
        } else {
            dpctl_cell(&table, "%s", "");
        }
    }
    dpctl_table_print(&table);
}

static void add_placement(const struct proposal *p, int32_t rank, struct dpctl_table *table)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf list = {0};
    const int32_t size = p->shape.slots / p->shape.ranks;
    for (int32_t i = 0; i < size; i++) {
        dp_buf_printf(&list, "%s%d", i == 0 ? "" : " ", p->expert[rank * size + i]);
    }
    dpctl_cell(table, "%d", p->layer->layer);
    dpctl_cell(table, "%d", rank);
    dpctl_cell(table, "%.*s", (int)list.length, list.bytes);
}

static void print_placement(const struct proposals *proposals, bool all)
{
    static const char *const heads[] = {"LAYER", "RANK", "EXPERTS"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3, .right = 3};
    dpctl_heads(&table, heads);
    size_t rows = 0, left_out = 0;
    for (size_t i = 0; i < proposals->count; i++) {
        const struct proposal *p = &proposals->items[i];
        for (int32_t r = 0; r < p->shape.ranks; r++) {
            if (all || rows < PLACEMENT_ROWS_MAX) {
                add_placement(p, r, &table);
                rows++;
            } else {
                left_out++;
            }
        }
    }
    puts("\nproposed placement");
    dpctl_table_print(&table);
    if (left_out > 0) {
        printf("%zu more rows with --placement or -o json\n", left_out);
    }
}

static void print_text(const struct loads *loads, const struct proposals *proposals, bool all)
{
    const struct dp_experts_shape *shape = &proposals->items[0].shape;
    printf("%s: %d experts on %d ranks, %d copies", loads->source, shape->experts, shape->ranks,
           shape->slots - shape->experts);
    if (loads->last_step > 0) {
        printf("; loads of steps %lld to %lld", (long long)loads->first_step,
               (long long)loads->last_step);
    }
    puts("\nSKEW: fullest expert over the mean; RANK-SKEW: fullest rank over the mean, now\n");
    print_layers(proposals);
    const double ratio = time_ratio(proposals);
    printf("\npredicted: experts take %.0f%% of their present time (x%.2f)\n", 100 * ratio,
           ratio > 0 ? 1 / ratio : 1);
    print_placement(proposals, all);
}

dp_status dpctl_cmd_experts(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB|FILE]",
        .doc = "How many tokens chose each expert of a job, how uneven that makes its ranks, and "
               "where experts (and copies of busy ones) would lie to even it out, with the time "
               "that this saves. FILE.json holds loads of experts, one list a layer, or what "
               "`dpctl experts JOB -o json` printed.\v"
               "Examples: dpctl experts job-3\n"
               "          dpctl experts loads.json --ranks 8 --nodes 2 --groups 4 --copies 1\n",
        .exits = "0 ok, 3 not loads, 4 no such job or no load reported yet, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {.nodes = 1, .copies = -1, .steps = 10};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    DP_CLEANUP(loads_deinit) struct loads loads = {0};
    dp_status status = loads_is_file(request.source)
                           ? loads_read(request.source, &loads, err)
                           : loads_ask(ctl, request.source, request.steps, &loads, err);
    DP_CLEANUP(proposals_deinit) struct proposals proposals = {0};
    proposals.items = dp_new_array(struct proposal, loads.count);
    for (size_t i = 0; i < loads.count && status == DP_OK; i++) {
        proposals.count++;
        status = propose(&request, &loads.layers[i], &proposals.items[i], err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        print_as_json(ctl, &loads, &proposals);
    } else {
        print_text(&loads, &proposals, request.placement);
    }
    return DP_OK;
}
