// Clusters and jobs for accelerators.
#pragma once

#include "planner_support.h"

#include "dp/rand.h"

// A cluster with its profile; the nodes are the caller's to free.
struct cluster {
    struct dp_cluster_spec spec;
    struct dp_profile profile;
    struct dp_planner_node *nodes;
    size_t nodes_count;
};

static inline void cluster_init(struct cluster *cluster, const char *gpu, int32_t gpus)
{
    struct dp_error err = {0};
    assert_ok(dp_cluster_preset(gpu, gpus, &cluster->spec, &err), &err);
    dp_profile_from_cluster(&cluster->spec, &cluster->profile);
    dp_planner_cluster_nodes(&cluster->spec, &cluster->nodes, &cluster->nodes_count);
}

static inline void cluster_deinit(struct cluster *cluster)
{
    free(cluster->nodes);
}

static inline void cluster_set_memory(struct cluster *cluster, double bytes)
{
    for (size_t i = 0; i < cluster->nodes_count; i++) {
        cluster->nodes[i].memory_bytes = bytes;
    }
}

static inline dp_status plan_on_cluster(const struct cluster *cluster,
                                        const struct dp_job_spec *spec, struct dp_plan *ret_plan,
                                        struct dp_error *err)
{
    const struct dp_planner_resources resources = {cluster->nodes, cluster->nodes_count,
                                                   &cluster->profile};
    return dp_planner_plan(spec, &resources, NULL, ret_plan, err);
}

static inline int32_t rand_between(struct dp_rand *rand, int32_t low, int32_t high)
{
    return low + (int32_t)dp_rand_below(rand, (uint64_t)(high - low) + 1);
}

// Some model that a few accelerators can train, and a batch for it.
static inline struct dp_job_spec some_accelerator_job(struct dp_rand *rand)
{
    struct dp_job_spec spec = JOB("mixtral-8x7b", 16, 4096, "resources.device=cuda");
    struct dp_model_spec *m = &spec.model;
    m->layers = rand_between(rand, 3, 14);
    m->hidden = 512 * rand_between(rand, 1, 8);
    m->heads = m->kv_heads = 8 * rand_between(rand, 1, 3);
    m->head_dim = 64;
    m->ffn = 4 * m->hidden;
    m->vocabulary = 16000 * rand_between(rand, 1, 6);
    m->dense_layers = rand_between(rand, 0, m->layers);
    m->experts = 8 << rand_between(rand, 0, 2);
    m->top_k = rand_between(rand, 1, 4);
    m->expert_ffn = 256 * rand_between(rand, 1, 8);
    m->shared_experts = rand_between(rand, 0, 1);
    spec.train.global_batch = 8 * rand_between(rand, 1, 6);
    spec.train.sequence = 1024 * rand_between(rand, 1, 4);
    return spec;
}
