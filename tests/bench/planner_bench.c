// What the search for accelerators takes on one core: seconds of processor time for a whole plan,
// candidates whose time and memory were computed per second of it, and the most memory of the
// program. Each row of build/bench.json is on a line.
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "dp/alloc.h"
#include "dp/planner.h"

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void give_up(const struct dp_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

struct question {
    const char *model, *gpu;
    int32_t gpus, batch, sequence;
    double goal_s;
};

static void print_row(const struct question *q, const char *what, double value, const char *unit,
                      double goal, bool at_most)
{
    bool met = at_most ? value <= goal : value >= goal;
    printf("{\"name\":\"plan, %s: %s on %d %s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"the "
           "stated bound\",\"ratio\":%.4f,\"goal\":\"at %s %g\",\"met\":%s}\n",
           what, q->model, q->gpus, q->gpu, value, unit, value / goal, at_most ? "most" : "least",
           goal, met ? "true" : "false");
}

static void bench(const struct question *q)
{
    struct dp_error err = {0};
    struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    struct dp_profile *profile = dp_new(struct dp_profile);
    struct dp_cluster_spec cluster;
    dp_job_spec_init(spec);
    if (dp_model_preset(q->model, &spec->model, &err) != DP_OK ||
        dp_cluster_preset(q->gpu, q->gpus, &cluster, &err) != DP_OK) {
        give_up(&err);
    }
    spec->train = (struct dp_train_spec){
        .steps = 1, .global_batch = q->batch, .sequence = q->sequence, .seed = 1};
    spec->resources.device = DP_DEVICE_CUDA;
    dp_profile_from_cluster(&cluster, profile);
    struct dp_planner_node *nodes;
    struct dp_planner_resources resources = {.profile = profile};
    dp_planner_cluster_nodes(&cluster, &nodes, &resources.nodes_count);
    resources.nodes = nodes;
    struct dp_plan plan;
    double begin = now();
    if (dp_planner_plan(spec, &resources, NULL, &plan, &err) != DP_OK) {
        give_up(&err);
    }
    double seconds = now() - begin;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    print_row(q, "the whole space", seconds, "s", q->goal_s, true);
    print_row(q, "candidates", (double)plan.searched / seconds, "candidates/s", 1e5, false);
    print_row(q, "most memory so far", (double)usage.ru_maxrss / 1024, "MiB", 256, true);
    dp_plan_deinit(&plan);
    free(nodes);
    free(profile);
    free(spec);
}

int main(void)
{
    static const struct question questions[] = {
        {"deepseek-v3", "h800", 2048, 15360, 4096, 2},
        {"deepseek-v3", "h800", 256, 15360, 4096, 2},
        {"deepseek-v3", "h800", 16384, 15360, 4096, 10},
        {"deepseek-v3", "h800", 15360, 15360, 4096, 10},
        {"llama-3.1-405b", "h100", 16384, 2048, 8192, 10},
        {"qwen3-235b-a22b", "h100", 4096, 8192, 32768, 10},
    };
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        bench(&questions[i]);
    }
    return 0;
}
