// The space of plans for accelerators: what spec, model and the number of ranks leave open.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "explorer.h"

enum { MICRO_BATCH_MAX = 64 };
// A context rank that has fewer tokens of a sequence gains nothing.
enum { CONTEXT_TOKENS_MIN = 4096 };
// Chunks per rank where neither the job nor the family says how many.
static const int32_t virtual_choices[] = {2, 3, 4, 5, 6, 8};
// More waves to and fro add hops faster than they take from the bubble, and take long to look at.
enum { WAVES_CHUNKS_MAX = 4 };

// Fewer ranks than a larger power of two are not looked at.
enum { WORLD_SMALL = 64 };
// Of one mesh, in candidates.
enum { WORK_OF_SPANS = 50 };

// One way through the nested sizes.
struct sizes {
    int32_t pipeline, tensor, context, data, expert, expert_tensor;
};

static int32_t at_least_one(int32_t size)
{
    return size > 0 ? size : 1;
}

static bool tensor_is_open(const struct problem *problem, int32_t tensor, int32_t domain)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    const struct dp_model_spec *m = &problem->spec->model;
    bool divides = m->heads % tensor == 0 && m->hidden % tensor == 0 &&
                   (m->mla_kv_rank > 0 || m->kv_heads % tensor == 0 || tensor % m->kv_heads == 0);
    if (p->tensor > 0) {
        return tensor == p->tensor && divides;
    }
    return divides &&
           (tensor == 1 || (tensor <= domain && problem->spec->resources.device == DP_DEVICE_CUDA));
}

static bool context_is_open(const struct problem *problem, int32_t context)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t sequence = problem->spec->train.sequence;
    if (p->context > 0) {
        return context == p->context;
    }
    return context == 1 ||
           (problem->spec->resources.device == DP_DEVICE_CUDA && sequence % (2 * context) == 0 &&
            sequence / context >= CONTEXT_TOKENS_MIN);
}

static bool expert_is_open(const struct problem *problem, int32_t expert)
{
    int32_t wanted = problem->spec->parallel.expert, experts = problem->spec->model.experts;
    bool legal = expert == 1 || (experts > 0 && experts % expert == 0);
    return legal && (wanted == 0 || wanted == expert);
}

typedef bool visit_sizes(void *context, const struct sizes *sizes);

static bool each_expert(const struct problem *problem, struct sizes *sizes, visit_sizes *visit,
                        void *context)
{
    int64_t ranks = (int64_t)sizes->data * sizes->tensor * sizes->context;
    sizes->expert_tensor = at_least_one(problem->spec->parallel.expert_tensor);
    int32_t most = problem->spec->model.experts > 0 ? problem->spec->model.experts : 1;
    for (int32_t expert = 1; expert <= most && (int64_t)expert * sizes->expert_tensor <= ranks;
         expert++) {
        bool fits = ranks % ((int64_t)expert * sizes->expert_tensor) == 0;
        if (fits && expert_is_open(problem, expert)) {
            sizes->expert = expert;
            if (!visit(context, sizes)) {
                return false;
            }
        }
    }
    return true;
}

static bool each_inner(const struct problem *problem, int64_t per_position, int32_t domain,
                       struct sizes *sizes, visit_sizes *visit, void *context)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t batch = problem->spec->train.global_batch;
    int32_t tensor = at_least_one(p->tensor);
    for (; tensor <= DP_TENSOR_MAX && tensor <= per_position; tensor *= 2) {
        int32_t context_ranks = at_least_one(p->context);
        for (; context_ranks <= DP_CONTEXT_MAX && context_ranks <= per_position;
             context_ranks *= 2) {
            int64_t shards = (int64_t)tensor * context_ranks;
            int64_t data = per_position / shards;
            if (per_position % shards != 0 || data > batch || batch % data != 0 ||
                (p->data > 0 && p->data != data) || !tensor_is_open(problem, tensor, domain) ||
                !context_is_open(problem, context_ranks)) {
                continue;
            }
            sizes->tensor = tensor;
            sizes->context = context_ranks;
            sizes->data = (int32_t)data;
            if (!each_expert(problem, sizes, visit, context)) {
                return false;
            }
        }
    }
    return true;
}

// Sizes whose product is `world`; false when the visitor has seen enough.
static bool each_sizes(const struct problem *problem, int64_t world, int32_t domain,
                       visit_sizes *visit, void *context)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t layers = problem->spec->model.layers;
    int32_t most = layers < DP_PIPELINE_MAX ? layers : DP_PIPELINE_MAX;
    struct sizes sizes = {0};
    for (int32_t pipeline = 1; pipeline <= most; pipeline++) {
        if (world % pipeline == 0 && (p->pipeline == 0 || p->pipeline == pipeline)) {
            sizes.pipeline = pipeline;
            if (!each_inner(problem, world / pipeline, domain, &sizes, visit, context)) {
                return false;
            }
        }
    }
    return true;
}

// Micro-batch sizes that divide a replica's share of the batch.
static int32_t micro_batch_sizes(const struct problem *problem, int32_t data, int32_t ret_sizes[8])
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t share = problem->spec->train.global_batch / data, count = 0;
    for (int32_t size = 1; size <= share && size <= MICRO_BATCH_MAX; size *= 2) {
        int32_t samples = p->micro_batch_size > 0 ? p->micro_batch_size : size;
        if (p->micro_batch_size == 0 && p->microbatches > 0) {
            samples = share % p->microbatches == 0 ? share / p->microbatches : 0;
        }
        if (samples > 0 && share % samples == 0 && share / samples <= DP_MICROBATCHES_MAX &&
            (p->microbatches == 0 || share / samples == p->microbatches)) {
            ret_sizes[count++] = samples;
        }
        if (p->micro_batch_size > 0 || p->microbatches > 0) {
            break;
        }
    }
    return count;
}

static void visit_virtual(const struct explorer *explorer, struct choice *choice,
                          visit_family *visit, void *context)
{
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    choice->stages = dp_schedule_family_stages(choice->family, &params);
    if (dp_planner_cuts_allow(explorer->cuts, choice->stages) &&
        dp_schedule_check(choice->family->name, &params, NULL) == DP_OK) {
        visit(context, choice);
    }
}

// What nobody would run is left out where the job leaves the choice: on one rank all orders take as
// long, but those that overlap two micro-batches; and with two directions on two ranks each of them
// holds the whole model, as without a pipeline.
static bool is_sensible(const struct dp_schedule_family *family, int32_t pipeline, bool has_pairs)
{
    if (pipeline == 1) {
        return strcmp(family->name, has_pairs ? "dualpipev" : "1f1b") == 0;
    }
    return family->directions == 1 || pipeline > 2;
}

void dp_planner_space_families(const struct explorer *explorer, const struct choice *division,
                               visit_family *visit, void *context)
{
    const struct dp_parallel_spec *p = &explorer->problem->spec->parallel;
    bool any = p->schedule[0] == '\0' || strcmp(p->schedule, "auto") == 0;
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        struct choice choice = *division;
        choice.family = &families[i];
        choice.virtual_stages = p->virtual_stages;
        choice.split = 0;
        if ((!any && strcmp(p->schedule, families[i].name) != 0) ||
            explorer->has_pairs[i] != (division->split != 0)) {
            continue;
        }
        if (any && p->virtual_stages == 0 &&
            !is_sensible(&families[i], choice.pipeline, explorer->has_pairs[i])) {
            continue;
        }
        // A single rank gains nothing by more chunks.
        if (p->virtual_stages > 0 || families[i].virtual_max == 0 || choice.pipeline == 1) {
            visit_virtual(explorer, &choice, visit, context);
            continue;
        }
        for (size_t v = 0; v < DP_ARRAY_LENGTH(virtual_choices); v++) {
            int32_t chunks = virtual_choices[v];
            bool waves = families[i].virtual_step > 1;
            if (chunks % families[i].virtual_step == 0 && (!waves || chunks <= WAVES_CHUNKS_MAX)) {
                choice.virtual_stages = chunks;
                visit_virtual(explorer, &choice, visit, context);
            }
        }
    }
}

struct probe {
    const struct explorer *explorer;
    bool found;
    struct dp_error *why; // of the last schedule that was refused; NULL = nobody asks
};

static void note_family(void *context, const struct choice *choice)
{
    (void)choice;
    *(bool *)context = true;
}

static void note_refusal(const struct probe *probe, const struct choice *division)
{
    const struct dp_parallel_spec *p = &probe->explorer->problem->spec->parallel;
    const struct dp_schedule_params params = {.pipeline = division->pipeline,
                                              .microbatches = division->microbatches,
                                              .virtual_stages = p->virtual_stages};
    const char *name = p->schedule[0] != '\0' ? p->schedule : "1f1b";
    const struct dp_schedule_family *family = dp_schedule_family_find(name);
    int32_t stages = family != NULL ? dp_schedule_family_stages(family, &params) : 0;
    int32_t layers = probe->explorer->problem->spec->model.layers;
    int32_t cuts = probe->explorer->cuts->as_set_count;
    if (cuts == 0 && !dp_planner_cuts_allow(probe->explorer->cuts, stages)) {
        dp_fail(probe->why, DP_INVALID,
                "%s on %d ranks has %d stages, but the model only %d layers", name, params.pipeline,
                stages, layers);
    } else if (dp_schedule_check(name, &params, probe->why) == DP_OK && cuts > 0) {
        dp_fail(probe->why, DP_INVALID, "layers_per_stage has %d stages, but %s on %d ranks %d",
                cuts, name, params.pipeline, stages);
    }
}

// Whether some schedule takes the sizes.
static bool probe_sizes(void *context, const struct sizes *sizes)
{
    struct probe *probe = context;
    int32_t samples[8];
    int32_t count = micro_batch_sizes(probe->explorer->problem, sizes->data, samples);
    for (int32_t i = 0; i < count && !probe->found; i++) {
        struct choice division = {.pipeline = sizes->pipeline};
        division.microbatches =
            probe->explorer->problem->spec->train.global_batch / sizes->data / samples[i];
        for (division.split = 0; division.split < 2; division.split++) {
            dp_planner_space_families(probe->explorer, &division, note_family, &probe->found);
        }
        if (!probe->found && probe->why != NULL) {
            note_refusal(probe, &division);
            return false;
        }
    }
    return !probe->found;
}

static int64_t world_step(const struct dp_parallel_spec *p)
{
    return (int64_t)at_least_one(p->pipeline) * at_least_one(p->data) * at_least_one(p->tensor) *
           at_least_one(p->context);
}

int64_t dp_planner_space_world(const struct explorer *explorer, int64_t tries)
{
    const struct problem *problem = explorer->problem;
    int64_t step = world_step(&problem->spec->parallel), ranks = problem->spec->resources.ranks;
    int64_t world = ranks > 0 ? ranks : problem->slots / step * step;
    for (; world >= step && world <= problem->slots && tries > 0; world -= step, tries--) {
        struct probe probe = {.explorer = explorer};
        each_sizes(problem, world, explorer->domain, probe_sizes, &probe);
        if (probe.found || ranks > 0) {
            return probe.found ? world : 0;
        }
    }
    return 0;
}

void dp_planner_space_refusal(const struct explorer *explorer, struct dp_error *ret_why)
{
    const struct problem *problem = explorer->problem;
    int64_t step = world_step(&problem->spec->parallel), ranks = problem->spec->resources.ranks;
    int64_t world = ranks > 0 ? ranks : problem->slots / step * step;
    ret_why->message[0] = '\0';
    for (; world >= step && ret_why->message[0] == '\0'; world -= step) {
        struct probe probe = {.explorer = explorer, .why = ret_why};
        each_sizes(problem, world, explorer->domain, probe_sizes, &probe);
        if (ranks > 0) {
            return;
        }
    }
}

static bool same_spans(const struct dp_spans *a, const struct dp_spans *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static int32_t recompute_choices(const struct problem *problem, uint32_t ret_choices[8])
{
    const struct dp_model_spec *m = &problem->spec->model;
    const char *wanted = problem->spec->parallel.recompute;
    if (wanted[0] != '\0') {
        struct dp_error err;
        DP_CHECK(dp_recompute_parse(wanted, &ret_choices[0], &err) == DP_OK); // was checked
        return 1;
    }
    uint32_t light = DP_RECOMPUTE_NORM | DP_RECOMPUTE_ACTIVATION;
    uint32_t up = m->mla_kv_rank > 0 ? light | DP_RECOMPUTE_UP : light;
    int32_t count = 0;
    ret_choices[count++] = 0;
    ret_choices[count++] = light;
    if (up != light) {
        ret_choices[count++] = up;
    }
    ret_choices[count++] = DP_RECOMPUTE_ATTENTION;
    ret_choices[count++] = up | DP_RECOMPUTE_ATTENTION;
    if (m->experts > 0) {
        ret_choices[count++] = up | DP_RECOMPUTE_EXPERTS;
    }
    ret_choices[count++] = DP_RECOMPUTE_FULL;
    return count;
}

static int32_t shard_choices(const struct problem *problem, dp_shard ret_choices[3])
{
    const char *wanted = problem->spec->parallel.shard;
    struct dp_error err;
    dp_shard shard = DP_SHARD_AUTO;
    if (wanted[0] != '\0') {
        DP_CHECK(dp_shard_parse(wanted, &shard, &err) == DP_OK); // was checked
    }
    if (shard != DP_SHARD_AUTO) {
        ret_choices[0] = shard;
        return 1;
    }
    ret_choices[0] = DP_SHARD_ZERO1;
    ret_choices[1] = DP_SHARD_NONE;
    ret_choices[2] = DP_SHARD_FSDP;
    return problem->spec->resources.device == DP_DEVICE_CPU ? 2 : 3; // our ranks gather no weights
}

static struct choice choice_of(const struct dp_place_sizes *sizes, int32_t mesh)
{
    return (struct choice){.pipeline = sizes->pipeline,
                           .expert = sizes->expert,
                           .data = sizes->data,
                           .tensor = sizes->tensor,
                           .context = sizes->context,
                           .expert_tensor = sizes->expert_tensor,
                           .mesh = mesh};
}

static struct mesh *next_mesh(struct explorer *explorer)
{
    if ((explorer->meshes_count & (explorer->meshes_count - 1)) == 0) {
        size_t room = explorer->meshes_count == 0 ? 1 : 2 * explorer->meshes_count;
        explorer->meshes = dp_realloc(explorer->meshes, room, sizeof(*explorer->meshes));
    }
    return &explorer->meshes[explorer->meshes_count];
}

// What only a faster step than `best_s` is looked at for.
struct opening {
    struct explorer *explorer;
    double best_s;
};

// Whether compute alone leaves room for a step of best_s, wherever the ranks stand.
static bool is_worthwhile(struct explorer *explorer, const struct dp_place_sizes *sizes,
                          double best_s)
{
    int32_t samples[8];
    uint32_t recompute[8];
    dp_shard shards[3];
    const struct problem *problem = explorer->problem;
    int32_t count = micro_batch_sizes(problem, sizes->data, samples);
    recompute_choices(problem, recompute);
    shard_choices(problem, shards);
    struct choice choice = choice_of(sizes, (int32_t)explorer->meshes_count);
    choice.recompute = recompute[0]; // the least work, as the first way to shard
    choice.shard = shards[0] == DP_SHARD_FSDP ? DP_SHARD_ZERO1 : shards[0];
    struct dp_strategy strategy;
    dp_planner_strategy_of(explorer, &choice, &strategy);
    struct mesh *mesh = next_mesh(explorer);
    *mesh = (struct mesh){.sizes = *sizes};
    dp_spans_default(&strategy, explorer->domain, &mesh->spans);
    for (int32_t i = 0; i < count; i++) {
        choice.micro_batch_size = samples[i];
        choice.microbatches = problem->spec->train.global_batch / sizes->data / samples[i];
        if (dp_planner_compute_bound_s(explorer, &choice) <= best_s) {
            return true;
        }
    }
    return false;
}

static bool add_meshes(void *context, const struct sizes *sizes)
{
    const struct opening *opening = context;
    struct explorer *explorer = opening->explorer;
    struct dp_place_sizes place = {.pipeline = sizes->pipeline,
                                   .data = sizes->data,
                                   .tensor = sizes->tensor,
                                   .context = sizes->context,
                                   .expert = sizes->expert,
                                   .expert_tensor = sizes->expert_tensor,
                                   .expert_groups = explorer->problem->spec->model.expert_groups};
    if (isfinite(opening->best_s) && !is_worthwhile(explorer, &place, opening->best_s)) {
        return dp_planner_explorer_works(explorer, 1);
    }
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    int32_t count = dp_place_orders(&place, orders);
    size_t first = explorer->meshes_count;
    for (int32_t i = 0; i < count; i++) {
        struct mesh mesh = {.sizes = place, .order = orders[i]};
        dp_place_spans(&explorer->fabric, &place, &orders[i], &mesh.spans);
        bool known = false;
        for (size_t k = first; k < explorer->meshes_count && !known; k++) {
            known = same_spans(&explorer->meshes[k].spans, &mesh.spans);
        }
        if (known) {
            continue;
        }
        *next_mesh(explorer) = mesh;
        explorer->meshes_count++;
    }
    return dp_planner_explorer_works(explorer, count * WORK_OF_SPANS);
}

static void add_division(struct explorer *explorer, struct choice *choice, double best_s)
{
    double bytes = dp_planner_division_bytes(explorer, choice);
    for (int32_t paired = 0; paired < 2; paired++) {
        choice->split = paired;
        choice->bound_s = dp_planner_division_bound_s(explorer, choice);
        if (choice->bound_s > best_s) {
            continue;
        }
        size_t count = explorer->divisions_count;
        if ((count & (count - 1)) == 0) {
            size_t room = count == 0 ? 1 : 2 * count;
            explorer->divisions =
                dp_realloc(explorer->divisions, room, sizeof(*explorer->divisions));
        }
        explorer->divisions[explorer->divisions_count++] = (struct division){*choice, bytes};
    }
}

static void add_divisions(struct explorer *explorer, int32_t mesh, double best_s)
{
    const struct dp_place_sizes *sizes = &explorer->meshes[mesh].sizes;
    const struct problem *problem = explorer->problem;
    int32_t samples[8];
    uint32_t recompute[8];
    dp_shard shards[3];
    int32_t samples_count = micro_batch_sizes(problem, sizes->data, samples);
    int32_t recompute_count = recompute_choices(problem, recompute);
    int32_t shards_count = shard_choices(problem, shards);
    if (sizes->data * sizes->context == 1) {
        shards_count = 1; // nobody to share with
    }
    struct choice division = choice_of(sizes, mesh);
    for (int32_t i = 0; i < samples_count; i++) {
        division.micro_batch_size = samples[i];
        division.microbatches = problem->spec->train.global_batch / sizes->data / samples[i];
        for (int32_t r = 0; r < recompute_count; r++) {
            division.recompute = recompute[r];
            for (int32_t s = 0; s < shards_count; s++) {
                division.shard = shards[s];
                add_division(explorer, &division, best_s);
            }
        }
    }
}

dp_status dp_planner_space_open(struct explorer *explorer, int64_t world, double best_s,
                                struct dp_error *err)
{
    struct opening opening = {explorer, best_s};
    size_t first = explorer->meshes_count;
    each_sizes(explorer->problem, world, explorer->domain, add_meshes, &opening);
    for (size_t i = first; i < explorer->meshes_count && !explorer->is_stopped; i++) {
        explorer->is_stopped = dp_planner_is_stopped(explorer->problem);
        add_divisions(explorer, (int32_t)i, best_s);
    }
    return explorer->is_stopped ? dp_planner_explorer_fail_stopped(explorer, err) : DP_OK;
}

// At most four significant bits: all numbers up to 16, eight of each octave.
static bool is_round(int64_t number)
{
    while (number % 2 == 0) {
        number /= 2;
    }
    return number < 16;
}

int64_t dp_planner_space_smaller(const struct explorer *explorer, int64_t world)
{
    const struct dp_job_spec *spec = explorer->problem->spec;
    int64_t step = world_step(&spec->parallel), all = explorer->world / step;
    bool divides_well = all > WORLD_SMALL && (all & (all - 1)) == 0;
    int64_t next = spec->resources.ranks > 0 || divides_well ? 0 : world / step - 1;
    while (next > 0 && !is_round(next)) {
        next--;
    }
    return next * step;
}

dp_status dp_planner_space_init(struct explorer *explorer, struct dp_error *err)
{
    explorer->world = dp_planner_space_world(explorer, INT64_MAX);
    if (explorer->world == 0) {
        return dp_fail(err, DP_INVALID, "no division of %lld ranks satisfies what the job sets",
                       (long long)explorer->problem->slots);
    }
    return dp_planner_space_open(explorer, explorer->world, INFINITY, err);
}
