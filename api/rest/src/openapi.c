// OpenAPI 3.1 of the method table: paths from its rows, schemas from the descriptors.
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "server.h"

static void set(json_t *object, const char *key, json_t *value)
{
    DP_CHECK(value != NULL && json_object_set_new(object, key, value) == 0);
}

static json_t *reference(const char *name)
{
    return json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", name));
}

static json_t *type_of(const char *type)
{
    return json_pack("{s:s}", "type", type);
}

static json_t *enum_schema(const ProtobufCEnumDescriptor *descriptor)
{
    json_t *names = json_array();
    for (unsigned i = 0; i < descriptor->n_values; i++) {
        json_array_append_new(names, json_string(descriptor->values[i].name));
    }
    return json_pack("{s:s, s:o}", "type", "string", "enum", names);
}

// As dp_message_to_json writes them: NaN and infinities are words, and so are integers that JSON
// numbers do not hold.
static json_t *number_schema(void)
{
    return json_pack("{s:[{s:s}, {s:s, s:[s, s, s]}]}", "anyOf", "type", "number", "type", "string",
                     "enum", "NaN", "Infinity", "-Infinity");
}

static json_t *integer_schema(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_pack("{s:s, s:i}", "type", "integer", "minimum", 0);
    case PROTOBUF_C_TYPE_UINT64:
        return json_pack("{s:[{s:s, s:i}, {s:s, s:s}]}", "anyOf", "type", "integer", "minimum", 0,
                         "type", "string", "pattern", "^[0-9]+$");
    case PROTOBUF_C_TYPE_FIXED64:
        return json_pack("{s:s, s:s}", "type", "string", "pattern", "^0x[0-9a-f]{16}$");
    default:
        return type_of("integer");
    }
}

static json_t *value_schema(const ProtobufCMessageDescriptor *message,
                            const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        return number_schema();
    case PROTOBUF_C_TYPE_BOOL:
        return type_of("boolean");
    case PROTOBUF_C_TYPE_ENUM:
        return enum_schema(field->descriptor);
    case PROTOBUF_C_TYPE_STRING:
        return type_of("string");
    case PROTOBUF_C_TYPE_BYTES:
        return dp_method_field_is_text(message, field->name)
                   ? type_of("string")
                   : json_pack("{s:s, s:s}", "type", "string", "contentEncoding", "base64");
    case PROTOBUF_C_TYPE_MESSAGE:
        return reference(((const ProtobufCMessageDescriptor *)field->descriptor)->short_name);
    default:
        return integer_schema(field->type);
    }
}

static json_t *field_schema(const ProtobufCMessageDescriptor *message,
                            const ProtobufCFieldDescriptor *field)
{
    json_t *value = value_schema(message, field);
    if (dp_method_field_is_json(message, field->name)) {
        json_decref(value);
        value = json_pack("{s:[{s:s}, {s:s}]}", "anyOf", "type", "object", "type", "string");
    }
    return field->label == PROTOBUF_C_LABEL_REPEATED
               ? json_pack("{s:s, s:o}", "type", "array", "items", value)
               : value;
}

// The message's schema and those that it refers to.
static void add_schema(json_t *schemas, const ProtobufCMessageDescriptor *message)
{
    if (json_object_get(schemas, message->short_name) != NULL) {
        return;
    }
    json_t *properties = json_object();
    set(schemas, message->short_name,
        json_pack("{s:s, s:O, s:b}", "type", "object", "properties", properties,
                  "additionalProperties", 0));
    for (unsigned i = 0; i < message->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->fields[i];
        set(properties, field->name, field_schema(message, field));
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            add_schema(schemas, field->descriptor);
        }
    }
    json_decref(properties);
}

static void add_error_schema(json_t *schemas)
{
    json_t *names = json_array();
    for (int i = DP_OK + 1; i < DP_STATUS_COUNT; i++) {
        json_array_append_new(names, json_string(dp_status_name((dp_status)i)));
    }
    set(schemas, "Error",
        json_pack("{s:s, s:[s, s, s], s:{s:{s:s}, s:{s:s, s:o}, s:{s:s}}}", "type", "object",
                  "required", "code", "status", "message", "properties", "code", "type", "integer",
                  "status", "type", "string", "enum", names, "message", "type", "string"));
}

static json_t *content(const char *media_type, json_t *schema)
{
    return json_pack("{s:{s:o}}", media_type, "schema", schema);
}

static json_t *responses(const char *media_type, json_t *schema)
{
    return json_pack("{s:{s:s, s:o}, s:{s:s, s:o}}", "200", "description", "the answer", "content",
                     content(media_type, schema), "default", "description", "an error", "content",
                     content("application/json", reference("Error")));
}

static bool is_in_path(const char *path, const char *field)
{
    size_t length = strlen(field);
    for (const char *at = strchr(path, '{'); at != NULL; at = strchr(at + 1, '{')) {
        if (strncmp(at + 1, field, length) == 0 && at[1 + length] == '}') {
            return true;
        }
    }
    return false;
}

static json_t *parameter(const struct dp_method *method, const ProtobufCFieldDescriptor *field)
{
    bool in_path = is_in_path(method->http_path, field->name);
    return json_pack("{s:s, s:s, s:b, s:o}", "name", field->name, "in", in_path ? "path" : "query",
                     "required", in_path, "schema", field_schema(method->request, field));
}

// Of a method with a body the query can hold the same fields; one way of saying it is enough.
static json_t *parameters(const struct dp_method *method)
{
    bool has_body = strcmp(method->http_verb, "GET") != 0;
    json_t *list = json_array();
    for (unsigned i = 0; i < method->request->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &method->request->fields[i];
        bool in_query = !has_body && field->type != PROTOBUF_C_TYPE_MESSAGE;
        if (in_query || is_in_path(method->http_path, field->name)) {
            json_array_append_new(list, parameter(method, field));
        }
    }
    return list;
}

static json_t *request_body(const struct dp_method *method)
{
    json_t *media = content("application/json", reference(method->request->short_name));
    if (protobuf_c_message_descriptor_get_field_by_name(method->request, "job_toml") != NULL) {
        set(media, "application/toml", json_pack("{s:o}", "schema", type_of("string")));
    }
    return json_pack("{s:o}", "content", media);
}

static json_t *operation(const struct dp_method *method, json_t *schemas)
{
    // "/dp.v1.Controller/ListJobs": the last part is the id.
    const char *id = strrchr(method->name, '/') + 1;
    json_t *json =
        json_pack("{s:s, s:s, s:o, s:o}", "operationId", id, "summary", method->name + 1,
                  "parameters", parameters(method), "responses",
                  responses(method->server_streaming ? "application/x-ndjson" : "application/json",
                            reference(method->response->short_name)));
    add_schema(schemas, method->response);
    if (strcmp(method->http_verb, "GET") != 0) {
        set(json, "requestBody", request_body(method));
        add_schema(schemas, method->request);
    }
    return json;
}

static void add_operation(json_t *paths, const char *path, const char *verb, json_t *operation)
{
    char lower[16] = "";
    for (size_t i = 0; verb[i] != '\0' && i + 1 < sizeof lower; i++) {
        lower[i] = (char)(verb[i] | 0x20);
    }
    if (json_object_get(paths, path) == NULL) {
        set(paths, path, json_object());
    }
    set(json_object_get(paths, path), lower, operation);
}

static void add_page(json_t *paths, const char *path, const char *content_type, const char *summary)
{
    // "text/plain; version=0.0.4": the type alone.
    char media[64];
    dp_copy_text(media, sizeof media, content_type);
    media[strcspn(media, ";")] = '\0';
    add_operation(
        paths, path, "GET",
        json_pack("{s:s, s:o}", "summary", summary, "responses", responses(media, json_object())));
}

json_t *dp_rest_openapi(const struct dp_rest_handler *handlers, size_t handlers_count,
                        const struct dp_rest_page *pages, size_t pages_count)
{
    json_t *paths = json_object(), *schemas = json_object();
    add_error_schema(schemas);
    for (size_t i = 0; i < handlers_count; i++) {
        const struct dp_method *method = &dp_methods[handlers[i].method];
        if (method->http_verb != NULL) {
            add_operation(paths, method->http_path, method->http_verb, operation(method, schemas));
        }
    }
    for (size_t i = 0; i < pages_count; i++) {
        add_page(paths, pages[i].path, pages[i].content_type, pages[i].summary);
    }
    add_page(paths, "/openapi.json", "application/json", "this document");
    json_t *json = json_pack("{s:s, s:{s:s, s:s}, s:o, s:{s:o}}", "openapi", "3.1.0", "info",
                             "title", "dp-controller", "version", DP_VERSION, "paths", paths,
                             "components", "schemas", schemas);
    DP_CHECK(json != NULL);
    return json;
}
