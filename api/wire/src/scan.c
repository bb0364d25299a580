#include "scan.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "dp/utf8.h"
#include "dp/wire.h"
#include "rules.h"

// What protobuf-c notes for each field of a message while it unpacks; in slabs that double.
#define NOTE_BYTES (2 * 40)
#define NOTES_FREE 16
#define ROUNDING 16

#define WIRE_VARINT 0u
#define WIRE_64BIT 1u
#define WIRE_LENGTH 2u
#define WIRE_32BIT 5u

struct scan {
    size_t memory;
    unsigned depth;
    struct dp_error *err;
};

// A message that is being walked.
struct level {
    const ProtobufCMessageDescriptor *descriptor;
    const uint8_t *at, *end;
    uint64_t seen; // bit i: field i of the descriptor came
};

struct value {
    unsigned wire_type;
    const uint8_t *bytes;
    size_t length;
};

static dp_status scan_message(struct scan *scan, const ProtobufCMessageDescriptor *descriptor,
                              const uint8_t *bytes, size_t length);

static dp_status torn(struct scan *scan, const struct level *level)
{
    return dp_fail(scan->err, DP_INVALID, "%s: the bytes are not a message",
                   level->descriptor->short_name);
}

static dp_status refuse(struct scan *scan, const struct level *level, const char *field,
                        const char *why)
{
    return dp_fail(scan->err, DP_INVALID, "%s.%s %s", level->descriptor->short_name, field, why);
}

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (*at == end) {
            return false;
        }
        uint8_t byte = *(*at)++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if ((byte & 0x80) == 0) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

// Finds where the value lies and steps over it; groups are not proto3.
static bool read_value(struct level *level, unsigned wire_type, struct value *ret_value)
{
    uint64_t length = wire_type == WIRE_64BIT ? 8 : 4;
    const uint8_t *start = level->at;
    if (wire_type == WIRE_VARINT) {
        uint64_t ignored = 0;
        if (!read_varint(&level->at, level->end, &ignored)) {
            return false;
        }
        length = (uint64_t)(level->at - start);
        level->at = start;
    } else if (wire_type == WIRE_LENGTH) {
        if (!read_varint(&level->at, level->end, &length)) {
            return false;
        }
    } else if (wire_type != WIRE_64BIT && wire_type != WIRE_32BIT) {
        return false;
    }
    if (length > (uint64_t)(level->end - level->at)) {
        return false;
    }
    *ret_value =
        (struct value){.wire_type = wire_type, .bytes = level->at, .length = (size_t)length};
    level->at += length;
    return true;
}

static unsigned wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_32BIT;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_64BIT;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_LENGTH;
    default:
        return WIRE_VARINT;
    }
}

// A packed list; each number takes at most 8 bytes of memory and at least one here.
static dp_status scan_packed(struct scan *scan, const struct level *level,
                             const ProtobufCFieldDescriptor *field, const struct value *value)
{
    unsigned type = wire_type_of(field->type);
    size_t width = type == WIRE_64BIT ? 8 : 4;
    const uint8_t *at = value->bytes, *end = at + value->length;
    if (type != WIRE_VARINT) {
        scan->memory += value->length + ROUNDING;
        return value->length % width == 0 ? DP_OK : refuse(scan, level, field->name, "is torn");
    }
    while (at < end) {
        uint64_t ignored = 0;
        if (!read_varint(&at, end, &ignored)) {
            return refuse(scan, level, field->name, "is torn");
        }
        scan->memory += 8;
    }
    scan->memory += ROUNDING;
    return DP_OK;
}

static dp_status scan_string(struct scan *scan, const struct level *level, const char *field,
                             const struct value *value)
{
    const struct wire_string_rule *rule = dp_wire_string_rule_find(field);
    scan->memory += value->length + ROUNDING + 1;
    if (value->length > rule->bytes_max) {
        return dp_fail(scan->err, DP_TOO_LARGE, "%s.%s has %zu bytes; the limit is %zu",
                       level->descriptor->short_name, field, value->length, rule->bytes_max);
    }
    if (rule->kind == WIRE_STRING_TEXT) {
        return DP_OK;
    }
    if (!dp_utf8_valid(value->bytes, value->length)) {
        return refuse(scan, level, field, "is not UTF-8");
    }
    for (size_t i = 0; i < value->length; i++) {
        if (value->bytes[i] < 0x20 || value->bytes[i] == 0x7f) {
            return refuse(scan, level, field, "holds a control character");
        }
    }
    return DP_OK;
}

static dp_status scan_value(struct scan *scan, const struct level *level,
                            const ProtobufCFieldDescriptor *field, const struct value *value)
{
    unsigned wanted = wire_type_of(field->type);
    bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
    scan->memory += repeated ? sizeof(ProtobufCBinaryData) : 0;
    if (value->wire_type != wanted) {
        return repeated && value->wire_type == WIRE_LENGTH
                   ? scan_packed(scan, level, field, value)
                   : refuse(scan, level, field->name, "has the wrong type");
    }
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        return scan_string(scan, level, field->name, value);
    case PROTOBUF_C_TYPE_BYTES:
        scan->memory += value->length + ROUNDING;
        return DP_OK;
    case PROTOBUF_C_TYPE_MESSAGE:
        return scan_message(scan, field->descriptor, value->bytes, value->length);
    default:
        return DP_OK;
    }
}

// protobuf-c would merge what comes twice; no encoder writes that, so it is not worth the risk.
static bool comes_twice(struct level *level, const ProtobufCFieldDescriptor *field)
{
    const ProtobufCMessageDescriptor *descriptor = level->descriptor;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        return false;
    }
    for (unsigned i = 0; i < descriptor->n_fields && i < 64; i++) {
        const ProtobufCFieldDescriptor *other = &descriptor->fields[i];
        bool same_oneof = (field->flags & other->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
                          field->quantifier_offset == other->quantifier_offset;
        if ((level->seen >> i & 1) != 0 && (other == field || same_oneof)) {
            return true;
        }
    }
    size_t index = (size_t)(field - descriptor->fields);
    level->seen |= index < 64 ? (uint64_t)1 << index : 0;
    return false;
}

static dp_status scan_field(struct scan *scan, struct level *level)
{
    uint64_t key = 0;
    struct value value;
    if (!read_varint(&level->at, level->end, &key) || key >> 3 == 0 || key > UINT32_MAX ||
        !read_value(level, (unsigned)(key & 7), &value)) {
        return torn(scan, level);
    }
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(level->descriptor, (unsigned)(key >> 3));
    if (field == NULL) {
        scan->memory += sizeof(ProtobufCMessageUnknownField) + value.length + 2 * ROUNDING;
        return DP_OK;
    }
    if (comes_twice(level, field)) {
        return refuse(scan, level, field->name, "comes twice");
    }
    return scan_value(scan, level, field, &value);
}

static dp_status scan_message(struct scan *scan, const ProtobufCMessageDescriptor *descriptor,
                              const uint8_t *bytes, size_t length)
{
    struct level level = {.descriptor = descriptor, .at = bytes, .end = bytes + length};
    if (++scan->depth > DP_WIRE_DEPTH_MAX) {
        return dp_fail(scan->err, DP_TOO_LARGE, "%s is nested more than %d deep",
                       descriptor->short_name, DP_WIRE_DEPTH_MAX);
    }
    scan->memory += descriptor->sizeof_message + (descriptor->n_fields + 1) * (size_t)ROUNDING;
    size_t fields = 0;
    while (level.at < level.end) {
        dp_status status = scan_field(scan, &level);
        if (status != DP_OK) {
            return status;
        }
        fields++;
        if (scan->memory + fields * NOTE_BYTES > DP_WIRE_MEMORY_MAX) {
            return dp_fail(scan->err, DP_TOO_LARGE,
                           "%s would take more than %u bytes of memory; the limit of its elements",
                           descriptor->short_name, DP_WIRE_MEMORY_MAX);
        }
    }
    scan->memory += fields > NOTES_FREE ? fields * NOTE_BYTES : 0;
    scan->depth--;
    return DP_OK;
}

dp_status dp_wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                       size_t length, size_t *ret_memory, struct dp_error *err)
{
    struct scan scan = {.err = err};
    if (length > DP_MESSAGE_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; the limit is %u",
                       descriptor->short_name, length, DP_MESSAGE_BYTES_MAX);
    }
    dp_status status = scan_message(&scan, descriptor, bytes, length);
    if (status == DP_OK) {
        *ret_memory = scan.memory;
    }
    return status;
}

bool dp_wire_member(const ProtobufCMessageDescriptor *descriptor, const char *field,
                    const void *bytes, size_t length, const void **ret_bytes, size_t *ret_length)
{
    const ProtobufCFieldDescriptor *wanted =
        protobuf_c_message_descriptor_get_field_by_name(descriptor, field);
    const uint8_t *start = bytes;
    struct level level = {.descriptor = descriptor, .at = start, .end = start + length};
    while (level.at < level.end) {
        uint64_t key = 0;
        struct value value;
        if (!read_varint(&level.at, level.end, &key) ||
            !read_value(&level, (unsigned)(key & 7), &value)) {
            return false;
        }
        if (key == ((uint64_t)wanted->id << 3 | WIRE_LENGTH)) {
            *ret_bytes = value.bytes;
            *ret_length = value.length;
            return true;
        }
    }
    return false;
}
