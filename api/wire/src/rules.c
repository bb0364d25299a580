#include "rules.h"

#include <string.h>

#include "dp/check.h"
#include "dp/limits.h"
#include "dp/plan.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/cluster.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/planner.pb-c.h"

#define NAME(field)                                                                                \
    {                                                                                              \
        field, WIRE_STRING_LINE, DP_NAME_MAX - 1                                                   \
    }
#define TEXT(field)                                                                                \
    {                                                                                              \
        field, WIRE_STRING_TEXT, DP_WIRE_TEXT_MAX                                                  \
    }

static const struct wire_string_rule string_rules[] = {
    NAME("accelerator"),
    NAME("action"),
    NAME("adapter"),
    NAME("away"),
    NAME("boot_id"),
    NAME("bus_id"),
    NAME("client_version"),
    NAME("compute_capability"),
    NAME("controller"),
    NAME("device"),
    NAME("door"),
    NAME("driver_version"),
    NAME("fabric"),
    NAME("format"),
    NAME("gpu"),
    NAME("held_by"),
    NAME("id"),
    NAME("instance"),
    NAME("job"),
    NAME("jobs"),
    NAME("kind"),
    NAME("left_out"),
    NAME("link_layer"),
    NAME("link_state"),
    NAME("name"),
    NAME("node"),
    NAME("object"),
    NAME("of_user"),
    NAME("part"),
    NAME("phase"),
    NAME("physical_state"),
    NAME("rate"),
    NAME("recompute"),
    NAME("request_id"),
    NAME("resource"),
    NAME("schedule"),
    NAME("shard"),
    NAME("source"),
    NAME("state"),
    NAME("user"),
    NAME("uuid"),
    NAME("verb"),
    NAME("version"),
    {"address", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    {"bind_host", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    {"data_host", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    TEXT("answer"),
    TEXT("cause"),
    TEXT("changes"),
    TEXT("correction"),
    TEXT("error"),
    TEXT("explanation"),
    TEXT("fates"),
    TEXT("held_reason"),
    TEXT("left_out_why"),
    TEXT("message"),
    TEXT("notes"),
    TEXT("outcome"),
    TEXT("provenance"),
    TEXT("reason"),
    TEXT("used"),
    TEXT("warnings"),
    TEXT("why"),
};

static const struct wire_string_rule default_rule = {"", WIRE_STRING_LINE, DP_PATH_MAX - 1};

const struct wire_string_rule *dp_wire_string_rule_find(const char *field)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(string_rules); i++) {
        if (strcmp(string_rules[i].field, field) == 0) {
            return &string_rules[i];
        }
    }
    return &default_rule;
}

// Wall clock and durations. Two of these can be added without overflow; the wall clock gets there
// in 2096.
#define NS_MAX INT64_C(4000000000000000000)
#define WHOLE_MAX ((INT64_C(1) << 53) - 1)
#define DAY_MS (24 * 3600 * 1000)

static const struct wire_integer_rule integer_rules[] = {
    {"accelerators", 0, DP_RANKS_MAX},
    {"after_step", 0, DP_STEPS_MAX},
    {"attempt", 0, INT32_MAX},
    {"averaged_steps", 0, DP_STEPS_MAX},
    {"b_microbatch", 0, DP_MICROBATCHES_MAX - 1},
    {"b_stage", 0, DP_STAGES_MAX - 1},
    {"bytes_max", 0, DP_LOG_CHUNK_BYTES_MAX},
    {"comm_units", 0, 1 << 20},
    {"context", 0, DP_CONTEXT_MAX},
    {"cores", 0, 1 << 20},
    {"corpus_bytes", 0, DP_CORPUS_BYTES_MAX},
    {"corpus_tokens", 0, DP_CORPUS_BYTES_MAX},
    {"data", 0, DP_RANKS_MAX},
    {"ep_ranks", 1, DP_EXPERTS_MAX},
    {"epoch", 0, INT32_MAX},
    {"exit_status", 0, 255},
    {"expert", 0, DP_EXPERTS_MAX},
    {"expert_tensor", 0, DP_TENSOR_MAX},
    {"fence_ms", 0, 3 * DAY_MS},
    {"first_step_seen", 0, DP_STEPS_MAX},
    {"global_batch", 0, DP_GLOBAL_BATCH_MAX},
    {"gpus", 0, DP_RANKS_MAX},
    {"grace_ms", 0, DAY_MS},
    {"heartbeat_ms", 0, DAY_MS},
    {"hosts", 0, DP_NODES_MAX},
    {"keeper_signal", 0, 127},
    {"layer_begin", 0, DP_LAYERS_MAX},
    {"lease_ms", 0, DAY_MS},
    {"live_chunks", 0, INT32_MAX},
    {"measured_peak_chunks", 0, INT32_MAX},
    {"links", 0, 1 << 10},
    {"mig_instances", 0, DP_NODE_SLOTS_MAX},
    {"micro_batch_size", 0, DP_GLOBAL_BATCH_MAX},
    {"memory_position", 0, DP_PIPELINE_MAX - 1},
    {"microbatch", 0, DP_MICROBATCHES_MAX - 1},
    {"microbatches", 0, DP_MICROBATCHES_MAX},
    {"numa_node", -1, 1 << 16},
    {"peak_chunks", 0, INT32_MAX},
    {"peer", 0, DP_RANKS_MAX - 1},
    {"pid", 0, INT32_MAX},
    {"pipeline", 0, DP_PIPELINE_MAX},
    {"predicted_peak_chunks", 0, INT32_MAX},
    {"rank", 0, DP_RANKS_MAX - 1},
    {"ranks", 0, DP_RANKS_MAX - 1},
    {"resumed_step", 0, DP_STEPS_MAX},
    {"seq_len", 0, DP_SEQUENCE_MAX},
    {"signal", 0, 127},
    {"slot", 0, DP_NODE_SLOTS_MAX - 1},
    {"slot_experts", 0, DP_EXPERTS_MAX - 1},
    {"slots", 0, DP_NODE_SLOTS_MAX},
    {"slots_used", 0, DP_NODE_SLOTS_MAX},
    {"stage", 0, DP_STAGES_MAX - 1},
    {"stages", 0, DP_STAGES_MAX},
    {"state_step", 0, DP_STEPS_MAX},
    {"step", 0, DP_STEPS_MAX},
    {"steps_total", 0, DP_STEPS_MAX},
    {"tensor", 0, DP_TENSOR_MAX},
    {"virtual_stages", 0, DP_RANK_STAGES_MAX},
};

struct wire_integer_rule dp_wire_integer_rule_find(const char *field)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(integer_rules); i++) {
        if (strcmp(integer_rules[i].field, field) == 0) {
            return integer_rules[i];
        }
    }
    size_t length = strlen(field);
    bool is_ns = length > 3 && strcmp(field + length - 3, "_ns") == 0;
    int64_t max = is_ns ? NS_MAX : WHOLE_MAX;
    return (struct wire_integer_rule){.field = field, .min = -max, .max = max};
}

size_t dp_wire_list_max(const char *field)
{
    static const struct {
        const char *field;
        size_t max;
    } limits[] = {
        {"assignments", DP_NODE_SLOTS_MAX},
        {"candidates", DP_CANDIDATES_MAX},
        {"chosen", DP_EXPERTS_MAX},
        {"clusters", DP_CLUSTERS_MAX},
        {"endpoints", DP_RANKS_MAX},
        {"expert_tokens", DP_EXPERT_LOADS_MAX},
        {"layer_begin", DP_STAGES_MAX + 1},
        {"gains", DP_PLAN_GAINS_MAX},
        {"gpus", DP_NODE_SLOTS_MAX},
        {"nodes", DP_NODES_MAX},
        {"numa", DP_NODE_NUMA_MAX},
        {"ports", DP_NODE_PORTS_MAX},
        {"positions", DP_PIPELINE_MAX},
        {"ranks", DP_RANKS_MAX},
        {"replicas", DP_RANKS_MAX},
        {"sets", DP_SETS_MAX},
        {"slot_experts", DP_EXPERT_SLOTS_MAX},
        {"slow", DP_WHAT_IF_ITEMS_MAX},
        {"slow_links", DP_WHAT_IF_ITEMS_MAX},
        {"sources", DP_RANKS_MAX},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(limits); i++) {
        if (strcmp(limits[i].field, field) == 0) {
            return limits[i].max;
        }
    }
    return SIZE_MAX;
}

bool dp_wire_is_required(const ProtobufCMessageDescriptor *descriptor,
                         const ProtobufCFieldDescriptor *field)
{
    static const struct {
        const ProtobufCMessageDescriptor *message;
        const char *field;
    } required[] = {
        {&dp__v1__apply_cluster_response__descriptor, "cluster"},
        {&dp__v1__hello__descriptor, "inventory"},
        {&dp__v1__plan_response__descriptor, "plan"},
        {&dp__v1__job_report__descriptor, "job"},
        {&dp__v1__prepare__descriptor, "plan"},
        {&dp__v1__rank_prepare__descriptor, "plan"},
        {&dp__v1__timeline__descriptor, "job"},
        {&dp__v1__validate_job_response__descriptor, "plan"},
    };
    if (field->descriptor == &dp__v1__fence__descriptor) {
        return true;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(required); i++) {
        if (required[i].message == descriptor && strcmp(required[i].field, field->name) == 0) {
            return true;
        }
    }
    return false;
}
