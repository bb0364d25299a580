#include "rules.h"

#include <string.h>

#include "dp/check.h"
#include "dp/limits.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"

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
    NAME("boot_id"),
    NAME("client_version"),
    NAME("controller"),
    NAME("device"),
    NAME("id"),
    NAME("instance"),
    NAME("job"),
    NAME("jobs"),
    NAME("kind"),
    NAME("name"),
    NAME("node"),
    NAME("phase"),
    NAME("request_id"),
    NAME("schedule"),
    NAME("state"),
    NAME("version"),
    {"address", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    {"bind_host", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    {"data_host", WIRE_STRING_LINE, DP_ADDRESS_MAX - 1},
    TEXT("error"),
    TEXT("explanation"),
    TEXT("message"),
    TEXT("notes"),
    TEXT("provenance"),
    TEXT("reason"),
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

struct limit {
    const char *field;
    uint64_t max;
};

static uint64_t limit_of(const struct limit *limits, size_t count, const char *field)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(limits[i].field, field) == 0) {
            return limits[i].max;
        }
    }
    return UINT64_MAX;
}

uint64_t dp_wire_integer_max(const char *field)
{
    static const struct limit limits[] = {
        {"b_microbatch", DP_MICROBATCHES_MAX - 1},
        {"b_stage", DP_STAGES_MAX - 1},
        {"bytes_max", DP_LOG_CHUNK_BYTES_MAX},
        {"cores", 1u << 20},
        {"data", DP_RANKS_MAX},
        {"expert", DP_EXPERTS_MAX},
        {"grace_ms", 24u * 3600 * 1000},
        {"heartbeat_ms", 24u * 3600 * 1000},
        {"layer_begin", DP_LAYERS_MAX},
        {"lease_ms", 24u * 3600 * 1000},
        {"micro_batch_size", DP_GLOBAL_BATCH_MAX},
        {"microbatch", DP_MICROBATCHES_MAX - 1},
        {"microbatches", DP_MICROBATCHES_MAX},
        {"peak_chunks", INT32_MAX},
        {"pipeline", DP_PIPELINE_MAX},
        {"rank", DP_RANKS_MAX - 1},
        {"ranks", DP_RANKS_MAX - 1},
        {"slot", DP_NODE_SLOTS_MAX - 1},
        {"slots", DP_NODE_SLOTS_MAX},
        {"slots_used", DP_NODE_SLOTS_MAX},
        {"stage", DP_STAGES_MAX - 1},
        {"stages", DP_STAGES_MAX},
        {"step", DP_STEPS_MAX},
        {"steps_total", DP_STEPS_MAX},
        {"virtual_stages", DP_RANK_STAGES_MAX},
    };
    return limit_of(limits, DP_ARRAY_LENGTH(limits), field);
}

size_t dp_wire_list_max(const char *field)
{
    static const struct limit limits[] = {
        {"assignments", DP_NODE_SLOTS_MAX},
        {"candidates", DP_CANDIDATES_MAX},
        {"endpoints", DP_RANKS_MAX},
        {"expert_tokens", DP_EXPERTS_MAX},
        {"layer_begin", DP_STAGES_MAX + 1},
        {"nodes", DP_NODES_MAX},
        {"ranks", DP_RANKS_MAX},
    };
    return limit_of(limits, DP_ARRAY_LENGTH(limits), field);
}

bool dp_wire_is_required(const ProtobufCMessageDescriptor *descriptor,
                         const ProtobufCFieldDescriptor *field)
{
    static const struct {
        const ProtobufCMessageDescriptor *message;
        const char *field;
    } required[] = {
        {&dp__v1__hello__descriptor, "inventory"},
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
