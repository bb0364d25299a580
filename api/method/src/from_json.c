#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/diag.h"
#include "dp/method.h"
#include "field.h"

#define NOWHERE SIZE_MAX

// One value being read: where it stands, for errors.
struct place {
    const struct place *parent;
    const ProtobufCMessageDescriptor *descriptor;
    const ProtobufCFieldDescriptor *field;
    size_t index; // in a list; NOWHERE = the list itself
};

struct reader {
    struct dp_arena *arena;
    struct dp_error *err;
};

static dp_status read_message(struct reader *reader, const ProtobufCMessageDescriptor *descriptor,
                              const json_t *json, const struct place *parent,
                              ProtobufCMessage **ret_message);

static void print_place(const struct place *place, struct dp_buf *out)
{
    if (place->parent != NULL) {
        print_place(place->parent, out);
        dp_buf_puts(out, ".");
    }
    dp_buf_puts(out, place->field->name);
    if (place->index != NOWHERE) {
        dp_buf_printf(out, "[%zu]", place->index);
    }
}

static dp_status refuse(struct reader *reader, const struct place *place, const char *wanted)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf path = {0};
    print_place(place, &path);
    return dp_fail(reader->err, DP_INVALID, "%s must be %s", path.bytes, wanted);
}

static dp_status full(struct reader *reader)
{
    return dp_fail(reader->err, DP_TOO_LARGE, "the message needs more than %zu bytes",
                   reader->arena->max_bytes);
}

static dp_status read_signed(struct reader *reader, const struct place *place, const json_t *json,
                             int64_t min, int64_t max, int64_t *ret_value)
{
    if (!json_is_integer(json) || json_integer_value(json) < min ||
        json_integer_value(json) > max) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "an integer from %" PRId64 " to %" PRId64, min, max);
        return refuse(reader, place, wanted);
    }
    *ret_value = json_integer_value(json);
    return DP_OK;
}

// A number, or its digits as text ("123", "0x7b") where JSON numbers end.
static dp_status read_unsigned(struct reader *reader, const struct place *place, const json_t *json,
                               uint64_t *ret_value)
{
    if (json_is_integer(json) && json_integer_value(json) >= 0) {
        *ret_value = (uint64_t)json_integer_value(json);
        return DP_OK;
    }
    const char *text = json_string_value(json);
    if (text != NULL && text[0] >= '0' && text[0] <= '9') {
        char *end = NULL;
        errno = 0;
        uint64_t value = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
        if (errno == 0 && *end == '\0') {
            *ret_value = value;
            return DP_OK;
        }
    }
    return refuse(reader, place, "an integer from 0 to 18446744073709551615");
}

static dp_status read_double(struct reader *reader, const struct place *place, const json_t *json,
                             double *ret_value)
{
    static const struct {
        const char *text;
        double value;
    } words[] = {{"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY}};
    if (json_is_number(json)) {
        *ret_value = json_number_value(json);
        return DP_OK;
    }
    for (size_t i = 0; json_is_string(json) && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(json_string_value(json), words[i].text) == 0) {
            *ret_value = words[i].value;
            return DP_OK;
        }
    }
    return refuse(reader, place, "a number");
}

static dp_status read_enum(struct reader *reader, const struct place *place, const json_t *json,
                           int *ret_value)
{
    const ProtobufCEnumDescriptor *descriptor = place->field->descriptor;
    const char *name = json_string_value(json);
    const ProtobufCEnumValue *value =
        name == NULL ? NULL : protobuf_c_enum_descriptor_get_value_by_name(descriptor, name);
    if (value == NULL) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf wanted = {0};
        dp_buf_puts(&wanted, "one of");
        for (unsigned i = 0; i < descriptor->n_values; i++) {
            dp_buf_printf(&wanted, "%s %s", i == 0 ? "" : ",", descriptor->values[i].name);
        }
        return refuse(reader, place, wanted.bytes);
    }
    *ret_value = value->value;
    return DP_OK;
}

static dp_status read_string(struct reader *reader, const struct place *place, const json_t *json,
                             char **ret_text)
{
    const char *text = json_string_value(json);
    if (text == NULL || strlen(text) != json_string_length(json)) {
        return refuse(reader, place, "a string without a zero byte");
    }
    char *copy = dp_arena_strdup(reader->arena, text);
    if (copy == NULL) {
        return full(reader);
    }
    *ret_text = copy;
    return DP_OK;
}

static dp_status read_bytes(struct reader *reader, const struct place *place, const json_t *json,
                            ProtobufCBinaryData *ret_data)
{
    bool is_text = dp_method_field_is_text(place->descriptor, place->field->name);
    bool is_json = dp_method_field_is_json(place->descriptor, place->field->name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf decoded = {0};
    if (!json_is_string(json) && !(is_json && json_is_object(json))) {
        return refuse(reader, place, is_json ? "an object, or its text" : "a string");
    }
    if (json_is_object(json)) {
        dp_json_write(json, 0, &decoded);
    } else if (is_text) {
        dp_buf_append(&decoded, json_string_value(json), json_string_length(json));
    } else if (!dp_base64_decode(json_string_value(json), json_string_length(json), &decoded)) {
        return refuse(reader, place, "base64 with padding");
    }
    if (decoded.length == 0) {
        *ret_data = (ProtobufCBinaryData){0};
        return DP_OK;
    }
    uint8_t *copy = dp_arena_alloc(reader->arena, decoded.length);
    if (copy == NULL) {
        return full(reader);
    }
    memcpy(copy, decoded.bytes, decoded.length);
    *ret_data = (ProtobufCBinaryData){.len = decoded.length, .data = copy};
    return DP_OK;
}

static dp_status read_integer(struct reader *reader, const struct place *place, const json_t *json,
                              void *at)
{
    int64_t value = 0;
    dp_status status = DP_OK;
    switch (place->field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        status = read_signed(reader, place, json, INT32_MIN, INT32_MAX, &value);
        *(int32_t *)at = (int32_t)value;
        return status;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        status = read_signed(reader, place, json, 0, UINT32_MAX, &value);
        *(uint32_t *)at = (uint32_t)value;
        return status;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return read_unsigned(reader, place, json, at);
    default:
        return read_signed(reader, place, json, INT64_MIN, INT64_MAX, at);
    }
}

static dp_status read_value(struct reader *reader, const struct place *place, const json_t *json,
                            void *at)
{
    double number = 0;
    dp_status status = DP_OK;
    switch (place->field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
        status = read_double(reader, place, json, &number);
        *(float *)at = (float)number;
        return status;
    case PROTOBUF_C_TYPE_DOUBLE:
        return read_double(reader, place, json, at);
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = json_is_true(json);
        return json_is_boolean(json) ? DP_OK : refuse(reader, place, "true or false");
    case PROTOBUF_C_TYPE_ENUM:
        return read_enum(reader, place, json, at);
    case PROTOBUF_C_TYPE_STRING:
        return read_string(reader, place, json, at);
    case PROTOBUF_C_TYPE_BYTES:
        return read_bytes(reader, place, json, at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return read_message(reader, place->field->descriptor, json, place, at);
    default:
        return read_integer(reader, place, json, at);
    }
}

static dp_status read_list(struct reader *reader, struct place *place, const json_t *json,
                           char *message)
{
    const ProtobufCFieldDescriptor *field = place->field;
    if (!json_is_array(json)) {
        return refuse(reader, place, "a list");
    }
    size_t count = json_array_size(json);
    if (count == 0) {
        return DP_OK;
    }
    size_t size = dp_field_size(field->type);
    char *elements = dp_arena_alloc(reader->arena, count * size);
    if (elements == NULL) {
        return full(reader);
    }
    *(char **)(message + field->offset) = elements;
    *(size_t *)(message + field->quantifier_offset) = count;
    for (place->index = 0; place->index < count; place->index++) {
        const json_t *element = json_array_get(json, place->index);
        dp_status status = read_value(reader, place, element, elements + place->index * size);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

static dp_status read_field(struct reader *reader, struct place *place, const json_t *json,
                            char *message)
{
    const ProtobufCFieldDescriptor *field = place->field;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        return read_list(reader, place, json, message);
    }
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        uint32_t *which = (uint32_t *)(message + field->quantifier_offset);
        if (*which != 0) {
            return refuse(reader, place, "absent: another member of the same oneof is given");
        }
        *which = field->id;
    }
    return read_value(reader, place, json, message + field->offset);
}

static dp_status unknown_key(struct reader *reader, const ProtobufCMessageDescriptor *descriptor,
                             const char *key)
{
    const char **names = dp_arena_alloc(reader->arena, (descriptor->n_fields + 1) * sizeof *names);
    if (names == NULL) {
        return full(reader);
    }
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        names[i] = descriptor->fields[i].name;
    }
    const char *near = dp_suggest(key, names);
    if (near != NULL) {
        return dp_fail(reader->err, DP_INVALID, "%s has no field \"%.*s\"; did you mean \"%s\"?",
                       descriptor->short_name, DP_NAME_MAX, key, near);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf all = {0};
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        dp_buf_printf(&all, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    return dp_fail(reader->err, DP_INVALID, "%s has no field \"%.*s\"; it has %s",
                   descriptor->short_name, DP_NAME_MAX, key,
                   descriptor->n_fields == 0 ? "none" : all.bytes);
}

static dp_status read_message(struct reader *reader, const ProtobufCMessageDescriptor *descriptor,
                              const json_t *json, const struct place *parent,
                              ProtobufCMessage **ret_message)
{
    if (!json_is_object(json)) {
        return parent == NULL ? dp_fail(reader->err, DP_INVALID, "%s must be an object",
                                        descriptor->short_name)
                              : refuse(reader, parent, "an object");
    }
    ProtobufCMessage *message = dp_arena_alloc(reader->arena, descriptor->sizeof_message);
    if (message == NULL) {
        return full(reader);
    }
    protobuf_c_message_init(descriptor, message);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)json, key, value)
    {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(descriptor, key);
        if (field == NULL) {
            return unknown_key(reader, descriptor, key);
        }
        struct place place = {
            .parent = parent, .descriptor = descriptor, .field = field, .index = NOWHERE};
        if (!json_is_null(value)) {
            dp_status status = read_field(reader, &place, value, (char *)message);
            if (status != DP_OK) {
                return status;
            }
        }
    }
    *ret_message = message;
    return DP_OK;
}

dp_status dp_message_from_json(const ProtobufCMessageDescriptor *descriptor, const json_t *json,
                               struct dp_arena *arena, ProtobufCMessage **ret_message,
                               struct dp_error *err)
{
    struct reader reader = {.arena = arena, .err = err};
    return read_message(&reader, descriptor, json, NULL, ret_message);
}
