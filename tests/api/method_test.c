#include "dp_test.h"

#include <math.h>

#include "dp/check.h"
#include "dp/method.h"
#include "dp/v1/calibration.pb-c.h"
#include "dp/v1/cluster.pb-c.h"
#include "dp/v1/history.pb-c.h"
#include "dp/v1/planner.pb-c.h"
#include "sample.h"

static void every_rpc_of_the_protos_is_one_row(void **state)
{
    static const ProtobufCServiceDescriptor *const services[] = {
        &dp__v1__controller__descriptor,  &dp__v1__agent_service__descriptor,
        &dp__v1__planner__descriptor,     &dp__v1__clusters__descriptor,
        &dp__v1__calibration__descriptor, &dp__v1__history__descriptor};
    unsigned rows = 0;
    for (size_t s = 0; s < DP_ARRAY_LENGTH(services); s++) {
        for (unsigned i = 0; i < services[s]->n_methods; i++) {
            char name[128];
            snprintf(name, sizeof name, "/%s/%s", services[s]->name, services[s]->methods[i].name);
            const struct dp_method *method = dp_method_find(name);
            assert_non_null(method);
            assert_ptr_equal(method->request, services[s]->methods[i].input);
            assert_ptr_equal(method->response, services[s]->methods[i].output);
            rows++;
        }
    }
    assert_int_equal(rows, DP_METHOD_COUNT);
    assert_null(dp_method_find("/dp.v1.Controller/Nothing"));
    (void)state;
}

static void http_paths_name_fields_of_the_request(void **state)
{
    for (size_t i = 0; i < DP_METHOD_COUNT; i++) {
        const char *path = dp_methods[i].http_path;
        const char *open = path == NULL ? NULL : strchr(path, '{');
        if (open != NULL) {
            char field[32] = {0};
            memcpy(field, open + 1, strcspn(open + 1, "}"));
            assert_non_null(
                protobuf_c_message_descriptor_get_field_by_name(dp_methods[i].request, field));
        }
    }
    (void)state;
}

static void unary_methods_have_a_deadline_and_streams_have_none(void **state)
{
    for (size_t i = 0; i < DP_METHOD_COUNT; i++) {
        const struct dp_method *method = &dp_methods[i];
        bool streams = method->client_streaming || method->server_streaming;
        assert_true(streams == (method->deadline_ms == 0));
    }
    // Longer than the two minutes that a checkpoint may take.
    assert_true(dp_methods[DP_METHOD_CHECKPOINT_JOB].deadline_ms > 120000);
    (void)state;
}

static void assert_json(const ProtobufCMessage *message, const char *expected)
{
    DP_AUTO_JSON json_t *json = dp_message_to_json(message);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    assert_string_equal(text.bytes, expected);
}

static void a_message_becomes_json_with_the_names_of_the_proto(void **state)
{
    Dp__V1__JobEvent event = DP__V1__JOB_EVENT__INIT;
    assert_json(&event.base, "{}");
    Dp__V1__StepPoint point = DP__V1__STEP_POINT__INIT;
    point.step = 3;
    point.loss = NAN;
    point.lr = -INFINITY;
    point.time_ns = INT64_MIN;
    event.event_case = DP__V1__JOB_EVENT__EVENT_STEP;
    event.step = &point;
    assert_json(&event.base, "{\"step\":{\"step\":3,\"loss\":\"NaN\",\"step_s\":0.0,"
                             "\"tokens_per_s\":0.0,\"lr\":\"-Infinity\",\"grad_norm\":0.0,"
                             "\"time_ns\":-9223372036854775808}}");

    Dp__V1__RankLevel level = DP__V1__RANK_LEVEL__INIT;
    level.phase = DP__V1__RANK_PHASE__RANK_DIED;
    level.signal = 9;
    assert_json(&level.base, "{\"rank\":0,\"phase\":\"RANK_DIED\",\"step\":0,\"exit_status\":0,"
                             "\"signal\":9,\"pid\":0,\"stopped\":false,"
                             "\"unkillable\":false}");
    (void)state;
}

// protobuf-c knows no bytes of ours that are not text, so a message that no proto describes.
struct blob {
    ProtobufCMessage base;
    ProtobufCBinaryData data;
};

static const ProtobufCFieldDescriptor blob_field = {
    .name = "data",
    .id = 1,
    .label = PROTOBUF_C_LABEL_NONE,
    .type = PROTOBUF_C_TYPE_BYTES,
    .offset = offsetof(struct blob, data),
};
static const unsigned blob_by_name[] = {0};
static const ProtobufCIntRange blob_ranges[] = {{1, 0}, {0, 1}};
static void blob_init(ProtobufCMessage *message);
static const ProtobufCMessageDescriptor blob_descriptor = {
    .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
    .short_name = "Blob",
    .sizeof_message = sizeof(struct blob),
    .n_fields = 1,
    .fields = &blob_field,
    .fields_sorted_by_name = blob_by_name,
    .n_field_ranges = 1,
    .field_ranges = blob_ranges,
    .message_init = blob_init,
};

static void blob_init(ProtobufCMessage *message)
{
    *(struct blob *)message = (struct blob){.base.descriptor = &blob_descriptor};
}

static void bytes_are_text_where_they_hold_text_and_base64_elsewhere(void **state)
{
    // The halves of a character that a log chunk cut.
    Dp__V1__LogText log = DP__V1__LOG_TEXT__INIT;
    log.data = (ProtobufCBinaryData){.len = 4, .data = (uint8_t *)"a\n\xc5x"};
    assert_json(&log.base, "{\"rank\":0,\"node\":\"\",\"data\":\"a\\n\xef\xbf\xbdx\"}");

    // RFC 4648 section 10.
    static const char *const vectors[][2] = {
        {"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
        {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        struct blob blob = {.base.descriptor = &blob_descriptor};
        blob.data =
            (ProtobufCBinaryData){.len = strlen(vectors[i][0]), .data = (uint8_t *)vectors[i][0]};
        char expected[64];
        snprintf(expected, sizeof expected, "{\"data\":\"%s\"}", vectors[i][1]);
        assert_json(&blob.base, expected);
        DP_AUTO_JSON json_t *json = json_loads(expected, 0, NULL);
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        struct dp_error err = {0};
        ProtobufCMessage *back = NULL;
        assert_ok(dp_message_from_json(&blob_descriptor, json, &arena, &back, &err), &err);
        const ProtobufCBinaryData *data = &((const struct blob *)back)->data;
        assert_int_equal(data->len, strlen(vectors[i][0]));
        assert_memory_equal(data->data == NULL ? (const void *)"" : data->data, vectors[i][0],
                            data->len);
    }
    (void)state;
}

static void assert_round_trip(const ProtobufCMessage *message)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_AUTO_JSON json_t *json = dp_message_to_json(message);
    struct dp_error err = {0};
    ProtobufCMessage *back = NULL;
    assert_ok(dp_message_from_json(message->descriptor, json, &arena, &back, &err), &err);
    size_t length = protobuf_c_message_get_packed_size(message);
    assert_int_equal(protobuf_c_message_get_packed_size(back), length);
    uint8_t *first = dp_arena_alloc(&arena, length), *second = dp_arena_alloc(&arena, length);
    protobuf_c_message_pack(message, first);
    protobuf_c_message_pack(back, second);
    assert_memory_equal(first, second, length);
}

static void json_comes_back_as_the_same_bytes(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = sample_job(&arena);
    job->step = UINT64_MAX; // over what JSON integers hold here
    assert_round_trip(&job->base);
    assert_round_trip(&sample_report(&arena)->base);
    assert_round_trip(&sample_prepare(&arena)->base);
    (void)state;
}

static void a_hash_is_hexadecimal(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_AUTO_JSON json_t *json = dp_message_to_json(&sample_plan(&arena)->base);
    assert_string_equal(json_string_value(json_object_get(json, "schedule_hash")),
                        "0xfedcba9876543210");
    DP_AUTO_JSON json_t *order = dp_message_to_json(&sample_prepare(&arena)->base);
    const json_t *prepare = json_object_get(order, "prepare");
    assert_string_equal(json_string_value(json_object_get(prepare, "token")), "0x0000000000000001");
    (void)state;
}

static void wrong_json_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"[]", "Job must be an object"},
        {"{\"nam\":\"x\"}", "Job has no field \"nam\"; did you mean \"name\"?"},
        {"{\"weather\":1}", "Job has no field \"weather\"; it has id, name, state"},
        {"{\"id\":1}", "id must be a string"},
        {"{\"id\":\"a\\u0000b\"}", "id must be a string without a zero byte"},
        {"{\"attempt\":-1}", "attempt must be an integer from 0 to 4294967295"},
        {"{\"attempt\":4294967296}", "attempt must be an integer from 0 to 4294967295"},
        {"{\"attempt\":1.5}", "attempt must be an integer"},
        {"{\"step\":\"18446744073709551616\"}", "step must be an integer from 0 to 184467"},
        {"{\"step\":\"-1\"}", "step must be an integer"},
        {"{\"state\":\"JOB_ASLEEP\"}", "state must be one of JOB_UNKNOWN, JOB_SUBMITTED"},
        {"{\"loss\":\"big\"}", "loss must be a number"},
        {"{\"loss_known\":1}", "loss_known must be true or false"},
        {"{\"ranks\":{}}", "ranks must be a list"},
        {"{\"ranks\":[{},{\"utilisation\":{\"step\":{}}}]}", "ranks[1].utilisation.step must be"},
        {"{\"plan\":{\"layer_begin\":[0,\"1\"]}}", "plan.layer_begin[1] must be an integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        DP_AUTO_JSON json_t *json = json_loads(cases[i].json, JSON_ALLOW_NUL, NULL);
        struct dp_error err = {0};
        ProtobufCMessage *message = NULL;
        assert_non_null(json);
        dp_status status =
            dp_message_from_json(&dp__v1__job__descriptor, json, &arena, &message, &err);
        assert_refused(status, DP_INVALID, &err, cases[i].message);
    }
    (void)state;
}

static void two_members_of_a_oneof_are_refused(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_AUTO_JSON json_t *json = json_loads("{\"job\":{},\"step\":{}}", 0, NULL);
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_message_from_json(&dp__v1__job_event__descriptor, json, &arena, &message, &err);
    assert_refused(status, DP_INVALID, &err, "another member of the same oneof");
    (void)state;
}

static void a_full_arena_ends_the_reading(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena all = {0}, small = {0};
    DP_AUTO_JSON json_t *json = dp_message_to_json(&sample_job(&all)->base);
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    dp_arena_init(&small, 512);
    dp_status status = dp_message_from_json(&dp__v1__job__descriptor, json, &small, &message, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "512 bytes");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rpc_of_the_protos_is_one_row),
        cmocka_unit_test(http_paths_name_fields_of_the_request),
        cmocka_unit_test(unary_methods_have_a_deadline_and_streams_have_none),
        cmocka_unit_test(a_message_becomes_json_with_the_names_of_the_proto),
        cmocka_unit_test(bytes_are_text_where_they_hold_text_and_base64_elsewhere),
        cmocka_unit_test(json_comes_back_as_the_same_bytes),
        cmocka_unit_test(a_hash_is_hexadecimal),
        cmocka_unit_test(wrong_json_is_refused_with_its_place),
        cmocka_unit_test(two_members_of_a_oneof_are_refused),
        cmocka_unit_test(a_full_arena_ends_the_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
