#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base64.h"
#include "dp/check.h"
#include "dp/method.h"
#include "dp/utf8.h"
#include "field.h"

static json_t *must(json_t *json)
{
    DP_CHECK(json != NULL);
    return json;
}

static json_t *text_to_json(const void *bytes, size_t length)
{
    json_t *json = json_stringn(bytes == NULL ? "" : bytes, length);
    if (json != NULL) {
        return json;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf mended = {0};
    const unsigned char *at = bytes;
    for (size_t left = length; left > 0;) {
        size_t step = dp_utf8_length(at, left);
        if (step == 0) {
            dp_buf_puts(&mended, "\xef\xbf\xbd");
            step = 1;
        } else {
            dp_buf_append(&mended, at, step);
        }
        at += step;
        left -= step;
    }
    return must(json_stringn(mended.bytes, mended.length));
}

static json_t *bytes_to_json(const ProtobufCMessageDescriptor *descriptor, const char *field,
                             const ProtobufCBinaryData *data)
{
    if (dp_method_field_is_text(descriptor, field)) {
        return text_to_json(data->data, data->len);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_base64_encode(data->data, data->len, &text);
    return must(json_stringn(text.length == 0 ? "" : text.bytes, text.length));
}

static json_t *double_to_json(double value)
{
    if (isnan(value)) {
        return must(json_string("NaN"));
    }
    if (isinf(value)) {
        return must(json_string(value > 0 ? "Infinity" : "-Infinity"));
    }
    return must(json_real(value));
}

// JSON integers are signed in jansson; what does not fit is written as its digits.
static json_t *unsigned_to_json(uint64_t value)
{
    if (value <= INT64_MAX) {
        return must(json_integer((json_int_t)value));
    }
    return must(json_sprintf("%" PRIu64, value));
}

static json_t *enum_to_json(const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    return must(known == NULL ? json_integer(value) : json_string(known->name));
}

// `at` is where the C structure keeps the value.
static json_t *value_to_json(const ProtobufCMessageDescriptor *descriptor,
                             const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return must(json_integer(*(const int32_t *)at));
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return must(json_integer(*(const uint32_t *)at));
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return must(json_integer(*(const int64_t *)at));
    case PROTOBUF_C_TYPE_UINT64:
        return unsigned_to_json(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FIXED64:
        return must(json_sprintf("0x%016" PRIx64, *(const uint64_t *)at));
    case PROTOBUF_C_TYPE_FLOAT:
        return double_to_json((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return double_to_json(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return must(json_boolean(*(const protobuf_c_boolean *)at));
    case PROTOBUF_C_TYPE_ENUM:
        return enum_to_json(field->descriptor, *(const int *)at);
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(const char *const *)at;
        return text_to_json(text, text == NULL ? 0 : strlen(text));
    }
    case PROTOBUF_C_TYPE_BYTES:
        return bytes_to_json(descriptor, field->name, at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return dp_message_to_json(*(const ProtobufCMessage *const *)at);
    }
    DP_CHECK(!"a field type that protobuf-c does not have");
    return NULL;
}

static json_t *list_to_json(const ProtobufCMessageDescriptor *descriptor,
                            const ProtobufCFieldDescriptor *field, const char *base)
{
    json_t *list = must(json_array());
    size_t count = *(const size_t *)(base + field->quantifier_offset);
    const char *elements = *(const char *const *)(base + field->offset);
    for (size_t i = 0; i < count; i++) {
        const void *at = elements + i * dp_field_size(field->type);
        json_array_append_new(list, value_to_json(descriptor, field, at));
    }
    return list;
}

json_t *dp_message_to_json(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    const char *base = (const char *)message;
    json_t *object = must(json_object());
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if (!dp_field_is_present(field, base)) {
            continue;
        }
        json_t *value = field->label == PROTOBUF_C_LABEL_REPEATED
                            ? list_to_json(descriptor, field, base)
                            : value_to_json(descriptor, field, base + field->offset);
        json_object_set_new(object, field->name, value);
    }
    return object;
}
