// A request's message, from its path, its query and its body.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/wire.h"
#include "server.h"

// The JSON value that this text stands for in a field of that type. What does not fit stays text,
// and the mapping of messages says what is wanted.
static json_t *value_of(const ProtobufCFieldDescriptor *field, const char *text)
{
    char *end = NULL;
    errno = 0;
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        if (strcmp(text, "true") == 0 || text[0] == '\0') {
            return json_true();
        }
        return strcmp(text, "false") == 0 ? json_false() : json_string(text);
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FLOAT: {
        double number = strtod(text, &end);
        json_t *json = text[0] != '\0' && *end == '\0' ? json_real(number) : NULL;
        return json != NULL ? json : json_string(text);
    }
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_MESSAGE:
        return json_string(text);
    default: {
        long long number = strtoll(text, &end, 10);
        bool whole = text[0] != '\0' && *end == '\0' && errno == 0;
        return whole ? json_integer(number) : json_string(text);
    }
    }
}

static dp_status set(const ProtobufCMessageDescriptor *descriptor, json_t *object, const char *name,
                     const char *text, const char *place, struct dp_error *err)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(descriptor, name);
    json_t *before = json_object_get(object, name);
    if (field != NULL && field->label == PROTOBUF_C_LABEL_REPEATED) {
        if (before == NULL) {
            json_object_set_new(object, name, json_array());
            before = json_object_get(object, name);
        }
        json_array_append_new(before, value_of(field, text));
        return DP_OK;
    }
    if (before != NULL) {
        return dp_fail(err, DP_INVALID, "\"%s\" is given twice: in %s and before that", name,
                       place);
    }
    // An unknown name is told with the one that was meant by the mapping of messages.
    json_object_set_new(object, name, field == NULL ? json_string(text) : value_of(field, text));
    return DP_OK;
}

static dp_status set_path(const struct rest_request *request, json_t *object, struct dp_error *err)
{
    const char *at = request->route->path;
    dp_status status = DP_OK;
    for (size_t i = 0; *at == '/' && status == DP_OK; i++) {
        size_t length = strcspn(at + 1, "/");
        char name[DP_NAME_MAX];
        if (at[1] == '{') {
            DP_CHECK(length > 2 && length - 2 < sizeof name);
            memcpy(name, at + 2, length - 2);
            name[length - 2] = '\0';
            status = set(dp_methods[request->route->handler->method].request, object, name,
                         request->uri.segments[i], "the path", err);
        }
        at += 1 + length;
    }
    return status;
}

// Whether the media type is this one, whatever its parameters.
static bool is_type(const char *content_type, const char *wanted)
{
    size_t length = strlen(wanted);
    return content_type != NULL && strncasecmp(content_type, wanted, length) == 0 &&
           strchr("; \t", content_type[length]) != NULL; // finds the terminator, too
}

static dp_status read_toml(const struct rest_request *request, json_t *object, struct dp_error *err)
{
    json_t *text = json_stringn(request->body.bytes, request->body.length);
    if (text == NULL) {
        return dp_fail(err, DP_INVALID, "the body is not UTF-8");
    }
    json_object_set_new(object, "job_toml", text);
    return DP_OK;
}

static dp_status read_body(const struct rest_request *request, const char *content_type,
                           json_t **ret_object, struct dp_error *err)
{
    const struct dp_method *method = &dp_methods[request->route->handler->method];
    const struct dp_buf *body = &request->body;
    bool takes_toml =
        protobuf_c_message_descriptor_get_field_by_name(method->request, "job_toml") != NULL;
    if (body->length == 0) {
        *ret_object = json_object();
        return DP_OK;
    }
    if (strcmp(method->http_verb, "GET") == 0) {
        return dp_fail(err, DP_INVALID, "GET takes its fields from the query and has no body");
    }
    if (takes_toml && is_type(content_type, "application/toml")) {
        *ret_object = json_object();
        return read_toml(request, *ret_object, err);
    }
    if (!is_type(content_type, "application/json")) {
        return dp_fail(err, DP_UNSUPPORTED, "the body must be application/json%s, not %s",
                       takes_toml ? " or, a job file as it is, application/toml" : "",
                       content_type == NULL ? "without a Content-Type" : content_type);
    }
    dp_status status =
        dp_json_parse(body->bytes, body->length, DP_REST_BODY_BYTES_MAX, "body", ret_object, err);
    if (status == DP_OK && !json_is_object(*ret_object)) {
        return dp_fail(err, DP_INVALID, "the body must be a JSON object: the fields of %s",
                       method->request->short_name);
    }
    return status;
}

dp_status dp_rest_bind(const struct rest_request *request, const char *content_type,
                       struct dp_buf *ret_bytes, struct dp_error *err)
{
    const ProtobufCMessageDescriptor *descriptor =
        dp_methods[request->route->handler->method].request;
    DP_AUTO_JSON json_t *object = NULL;
    dp_status status = read_body(request, content_type, &object, err);
    if (status == DP_OK) {
        status = set_path(request, object, err);
    }
    for (size_t i = 0; i < request->uri.parameters_count && status == DP_OK; i++) {
        const struct rest_parameter *parameter = &request->uri.parameters[i];
        status = set(descriptor, object, parameter->name, parameter->value, "the query", err);
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena;
    dp_arena_init(&arena, DP_WIRE_MEMORY_MAX);
    ProtobufCMessage *message = NULL;
    if (status == DP_OK) {
        status = dp_message_from_json(descriptor, object, &arena, &message, err);
    }
    if (status == DP_OK) {
        dp_wire_pack(message, ret_bytes);
    }
    return status;
}
