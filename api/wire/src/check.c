#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "dp/check.h"
#include "dp/utf8.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/wire.h"
#include "rules.h"

static dp_status refuse(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                        struct dp_error *err, const char *why)
{
    return dp_fail(err, DP_INVALID, "%s.%s %s", message->descriptor->short_name, field->name, why);
}

static void mend(char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        size_t step = dp_utf8_length(text, left);
        unsigned char c = (unsigned char)*text;
        bool steers = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ||
                      (step == 2 && c == 0xc2 && (unsigned char)text[1] < 0xa0);
        if (step == 0 || steers) {
            step = step == 0 ? 1 : step;
            memset(text, '?', step);
        }
        text += step;
        left -= step;
    }
}

static dp_status check_unsigned(const ProtobufCMessage *message,
                                const ProtobufCFieldDescriptor *field, uint64_t value,
                                struct dp_error *err)
{
    uint64_t max = (uint64_t)dp_wire_integer_rule_find(field->name).max;
    if (value > max) {
        return dp_fail(err, DP_INVALID, "%s.%s is %" PRIu64 "; the limit is %" PRIu64,
                       message->descriptor->short_name, field->name, value, max);
    }
    return DP_OK;
}

static dp_status check_signed(const ProtobufCMessage *message,
                              const ProtobufCFieldDescriptor *field, int64_t value,
                              struct dp_error *err)
{
    struct wire_integer_rule rule = dp_wire_integer_rule_find(field->name);
    if (value < rule.min || value > rule.max) {
        return dp_fail(err, DP_INVALID, "%s.%s is %" PRId64 "; it may be %" PRId64 " to %" PRId64,
                       message->descriptor->short_name, field->name, value, rule.min, rule.max);
    }
    return DP_OK;
}

// `at` is where the C structure keeps the value.
static dp_status check_value(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                             const void *at, struct dp_error *err)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT32:
        return check_unsigned(message, field, *(const uint32_t *)at, err);
    case PROTOBUF_C_TYPE_UINT64:
        return check_unsigned(message, field, *(const uint64_t *)at, err);
    case PROTOBUF_C_TYPE_SINT32:
        return check_signed(message, field, *(const int32_t *)at, err);
    case PROTOBUF_C_TYPE_SINT64:
        return check_signed(message, field, *(const int64_t *)at, err);
    case PROTOBUF_C_TYPE_DOUBLE:
        return isfinite(*(const double *)at) ? DP_OK : refuse(message, field, err, "is not finite");
    case PROTOBUF_C_TYPE_ENUM:
        return protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)at) != NULL
                   ? DP_OK
                   : refuse(message, field, err, "has a value that this version does not know");
    case PROTOBUF_C_TYPE_STRING:
        if (dp_wire_string_rule_find(field->name)->kind == WIRE_STRING_TEXT) {
            mend(*(char *const *)at);
        }
        return DP_OK;
    case PROTOBUF_C_TYPE_MESSAGE:
        return dp_wire_check(*(ProtobufCMessage *const *)at, err);
    default:
        return DP_OK;
    }
}

static size_t size_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    default:
        return 8;
    }
}

static bool is_checked(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_UINT64 ||
           type == PROTOBUF_C_TYPE_SINT32 || type == PROTOBUF_C_TYPE_SINT64 ||
           type == PROTOBUF_C_TYPE_DOUBLE || type == PROTOBUF_C_TYPE_ENUM ||
           type == PROTOBUF_C_TYPE_STRING || type == PROTOBUF_C_TYPE_MESSAGE;
}

static dp_status check_list(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                            struct dp_error *err)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(base + field->quantifier_offset);
    const char *elements = *(const char *const *)(base + field->offset);
    if (count > dp_wire_list_max(field->name)) {
        return dp_fail(err, DP_TOO_LARGE, "%s.%s has %zu elements; the limit is %zu",
                       message->descriptor->short_name, field->name, count,
                       dp_wire_list_max(field->name));
    }
    dp_status status = DP_OK;
    for (size_t i = 0; i < count && status == DP_OK && is_checked(field->type); i++) {
        status = check_value(message, field, elements + i * size_of(field->type), err);
    }
    return status;
}

static dp_status check_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                             struct dp_error *err)
{
    const char *base = (const char *)message;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        return check_list(message, field, err);
    }
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
        *(const uint32_t *)(base + field->quantifier_offset) != field->id) {
        return DP_OK;
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
        *(const void *const *)(base + field->offset) == NULL) {
        return dp_wire_is_required(message->descriptor, field)
                   ? refuse(message, field, err, "is missing")
                   : DP_OK;
    }
    return check_value(message, field, base + field->offset, err);
}

static dp_status check_plan(const ProtobufCMessage *message, struct dp_error *err)
{
    struct dp_plan plan;
    dp_status status = dp_wire_plan_from_proto((const Dp__V1__Plan *)message, &plan, err);
    if (status == DP_OK) {
        dp_plan_deinit(&plan);
    }
    return status;
}

// job-N, written in one way only, with N from 1 to what a double keeps whole. It also becomes the
// name of a directory.
static bool is_job_id(const char *id)
{
    uint64_t number = 0;
    if (strncmp(id, "job-", 4) != 0 || id[4] == '0' || id[4] == '\0') {
        return false;
    }
    for (const char *at = id + 4; *at != '\0'; at++) {
        if (*at < '0' || *at > '9') {
            return false;
        }
        number = 10 * number + (uint64_t)(*at - '0');
        if (number >> 53 != 0) {
            return false;
        }
    }
    return true;
}

static dp_status check_fence(const ProtobufCMessage *message, struct dp_error *err)
{
    const Dp__V1__Fence *fence = (const Dp__V1__Fence *)message;
    if (!is_job_id(fence->job)) {
        return dp_fail(err, DP_INVALID, "Fence.job is \"%s\"; a job's id is job-N", fence->job);
    }
    return DP_OK;
}

static dp_status check_span(const ProtobufCMessage *message, struct dp_error *err)
{
    const Dp__V1__Span *span = (const Dp__V1__Span *)message;
    bool known = span->kind < DP_ACTION_KIND_COUNT || (span->kind >= 16 && span->kind <= 19);
    if (!known || span->b_kind >= DP_ACTION_KIND_COUNT) {
        return dp_fail(err, DP_INVALID, "Span.kind %u, b_kind %u: there is no such action",
                       span->kind, span->b_kind);
    }
    return span->duration_ns >= 0 ? DP_OK
                                  : dp_fail(err, DP_INVALID, "Span.duration_ns is negative");
}

static const struct {
    const ProtobufCMessageDescriptor *descriptor;
    dp_status (*check)(const ProtobufCMessage *message, struct dp_error *err);
} type_checks[] = {
    {&dp__v1__fence__descriptor, check_fence},
    {&dp__v1__plan__descriptor, check_plan},
    {&dp__v1__span__descriptor, check_span},
};

dp_status dp_wire_check(ProtobufCMessage *message, struct dp_error *err)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    message->n_unknown_fields = 0;
    message->unknown_fields = NULL;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        dp_status status = check_field(message, &descriptor->fields[i], err);
        if (status != DP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(type_checks); i++) {
        if (type_checks[i].descriptor == descriptor) {
            return type_checks[i].check(message, err);
        }
    }
    return DP_OK;
}
