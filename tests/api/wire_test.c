#include "dp_test.h"

#include <math.h>
#include <pthread.h>

#include "dp/alloc.h"
#include "dp/limits.h"
#include "dp/method.h"
#include "dp/rand.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/history.pb-c.h"
#include "dp/wire.h"
#include "sample.h"

static dp_status unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                        size_t length, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    ProtobufCMessage *message = NULL;
    *err = (struct dp_error){0};
    return dp_wire_unpack(descriptor, bytes, length, &arena, &message, err);
}

static dp_status repack(const ProtobufCMessage *message, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_wire_pack(message, &bytes);
    return unpack(message->descriptor, bytes.bytes == NULL ? "" : bytes.bytes, bytes.length, err);
}

static void what_was_packed_is_unpacked(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const ProtobufCMessage *const messages[] = {
        &sample_plan(&arena)->base, &sample_job(&arena)->base, &sample_report(&arena)->base,
        &sample_prepare(&arena)->base};
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0}, second = {0};
        struct dp_error err = {0};
        ProtobufCMessage *back = NULL;
        dp_wire_pack(messages[i], &first);
        assert_ok(
            dp_wire_unpack(messages[i]->descriptor, first.bytes, first.length, &arena, &back, &err),
            &err);
        dp_wire_pack(back, &second);
        assert_int_equal(first.length, second.length);
        assert_memory_equal(first.bytes, second.bytes, first.length);
    }
    struct dp_error err;
    char *text = dp_arena_alloc(&arena, DP_WIRE_TEXT_MAX + 1);
    memset(text, 'x', DP_WIRE_TEXT_MAX);
    Dp__V1__Job job = DP__V1__JOB__INIT;
    job.message = text;
    job.job_toml = (ProtobufCBinaryData){.len = DP_WIRE_TEXT_MAX, .data = (uint8_t *)text};
    assert_ok(repack(&job.base, &err), &err);
    assert_ok(unpack(&dp__v1__list_nodes_request__descriptor, "", 0, &err), &err);
    (void)state;
}

struct bytes_case {
    const ProtobufCMessageDescriptor *descriptor;
    const char *bytes;
    size_t length;
    dp_status status;
    const char *message;
};

#define CASE(type, literal, status, message)                                                       \
    {                                                                                              \
        &dp__v1__##type##__descriptor, literal, sizeof literal - 1, status, message                \
    }

static void bytes_that_are_no_message_are_refused(void **state)
{
    static const struct bytes_case cases[] = {
        CASE(ack, "\x08", DP_INVALID, "Ack: the bytes are not a message"),
        CASE(ack, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", DP_INVALID, "not a message"),
        CASE(ack, "\x00\x01", DP_INVALID, "not a message"), // field number 0
        CASE(ack, "\x0b\x0c", DP_INVALID, "not a message"), // a group
        CASE(ack,
             "\x12\x05"
             "ab",
             DP_INVALID, "not a message"), // longer than what is left
        CASE(ack,
             "\x0a\x01"
             "1",
             DP_INVALID, "Ack.sequence has the wrong type"),
        CASE(ack, "\x08\x01\x08\x02", DP_INVALID, "Ack.sequence comes twice"),
        CASE(job_event, "\x0a\x00\x12\x00", DP_INVALID, "JobEvent.step comes twice"),
        CASE(fence,
             "\x0a\x03"
             "a\0b",
             DP_INVALID, "Fence.job holds a control character"),
        CASE(fence,
             "\x0a\x03"
             "a\nb",
             DP_INVALID, "Fence.job holds a control character"),
        CASE(fence, "\x0a\x02\xc3(", DP_INVALID, "Fence.job is not UTF-8"),
        CASE(fence, "\x0a\x03\xed\xa0\x80", DP_INVALID, "Fence.job is not UTF-8"), // a surrogate
        CASE(fence, "", DP_INVALID, "Fence.job is \"\"; a job's id is job-N"),
        CASE(job, "\x18\x63", DP_INVALID, "Job.state has a value that this version does not know"),
        CASE(endpoint, "\x08\x80\x80\x04", DP_INVALID,
             "Endpoint.rank is 65536; the limit is 65535"),
        CASE(rank_start, "", DP_INVALID, "RankStart.fence is missing"),
        CASE(prepare, "\x0a\x07\x0a\x05job-1", DP_INVALID, "Prepare.plan is missing"),
        CASE(span, "\x10\x05", DP_INVALID, "Span.kind 5"),
        CASE(span, "\x40\x01", DP_INVALID, "duration_ns is negative"),
        CASE(step_point, "\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", DP_INVALID,
             "StepPoint.time_ns is -9223372036854775808; it may be -4000000000000000000"),
        CASE(step_done, "\x6a\x02\x80\x80", DP_INVALID, "StepDone.expert_tokens is torn"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dp_error err;
        dp_status status = unpack(cases[i].descriptor, cases[i].bytes, cases[i].length, &err);
        assert_refused(status, cases[i].status, &err, cases[i].message);
    }
    (void)state;
}

static void sizes_are_refused_before_anything_is_allocated(void **state)
{
    struct dp_error err;
    size_t length = DP_MESSAGE_BYTES_MAX;
    DP_AUTO_FREE char *bytes = dp_alloc(length + 1, 1);
    dp_status status = unpack(&dp__v1__job__descriptor, bytes, length + 1, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "Job has 4194305 bytes; the limit is 4194304");
    // Two million empty jobs in four million bytes would be half a gigabyte of structures.
    for (size_t i = 0; i < length; i += 2) {
        bytes[i] = 0x0a;
    }
    status = unpack(&dp__v1__list_jobs_response__descriptor, bytes, length, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "bytes of memory");
    // And so would unknown fields be.
    for (size_t i = 0; i < length; i += 2) {
        bytes[i] = 0x78;
    }
    status = unpack(&dp__v1__list_jobs_response__descriptor, bytes, length, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "bytes of memory");

    char name[DP_NAME_MAX + 1] = {0};
    memset(name, 'n', DP_NAME_MAX);
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    fence.job = name;
    assert_refused(repack(&fence.base, &err), DP_TOO_LARGE, &err, "Fence.job has 64 bytes");
    (void)state;
}

static void a_job_id_has_one_form(void **state)
{
    static const char *const good[] = {"job-1", "job-17", "job-9007199254740991"};
    static const char *const bad[] = {"job",
                                      "job-",
                                      "job-0",
                                      "job-01",
                                      "job--1",
                                      "job-1 ",
                                      "job-1a",
                                      "job-+1",
                                      "Job-1",
                                      "xjob-1",
                                      "job-1/../..",
                                      "job-1.1",
                                      "../etc",
                                      "job-9007199254740992",
                                      "job-18446744073709551617"};
    struct dp_error err;
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        fence.job = (char *)good[i];
        assert_ok(repack(&fence.base, &err), &err);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fence.job = (char *)bad[i];
        assert_refused(repack(&fence.base, &err), DP_INVALID, &err, bad[i]);
    }
    (void)state;
}

// The C structure's members that are doubles, wherever they are.
static void set_doubles(ProtobufCMessage *message, unsigned wanted, double value, unsigned *count)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        char *at = (char *)message + field->offset;
        if (field->type == PROTOBUF_C_TYPE_DOUBLE && field->label != PROTOBUF_C_LABEL_REPEATED &&
            (*count)++ == wanted) {
            *(double *)(void *)at = value;
        }
        if (field->type == PROTOBUF_C_TYPE_DOUBLE &&
            (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
            *(uint32_t *)(void *)((char *)message + field->quantifier_offset) = field->id;
        }
    }
}

static void a_number_that_is_not_finite_is_refused_wherever_it_is(void **state)
{
    static const ProtobufCMessageDescriptor *const descriptors[] = {
        &dp__v1__candidate__descriptor,   &dp__v1__rank_plan__descriptor,
        &dp__v1__rank_ready__descriptor,  &dp__v1__utilisation__descriptor,
        &dp__v1__step_done__descriptor,   &dp__v1__eval_done__descriptor,
        &dp__v1__job__descriptor,         &dp__v1__step_point__descriptor,
        &dp__v1__rank_result__descriptor,
    };
    static const double values[] = {NAN, INFINITY, -INFINITY};
    unsigned refused = 0;
    for (size_t i = 0; i < sizeof descriptors / sizeof descriptors[0]; i++) {
        unsigned count = 0, fields = 1;
        for (unsigned wanted = 0; wanted < fields; wanted++) {
            _Alignas(16) char memory[1024];
            ProtobufCMessage *message = (ProtobufCMessage *)(void *)memory;
            struct dp_error err;
            assert_true(descriptors[i]->sizeof_message <= sizeof memory);
            protobuf_c_message_init(descriptors[i], message);
            count = 0;
            set_doubles(message, wanted, values[wanted % 3], &count);
            fields = count;
            assert_refused(repack(message, &err), DP_INVALID, &err, "is not finite");
            refused++;
        }
    }
    assert_in_range(refused, 25, 100);
    (void)state;
}

static void numbers_stay_within_what_is_kept_whole(void **state)
{
    struct dp_error err;
    Dp__V1__RankReady ready = DP__V1__RANK_READY__INIT;
    ready.resumed_step = DP_STEPS_MAX;
    assert_ok(repack(&ready.base, &err), &err);
    ready.resumed_step++;
    assert_refused(repack(&ready.base, &err), DP_INVALID, &err, "RankReady.resumed_step is");
    ready.resumed_step = 0;
    // A hash uses all its bits.
    ready.corpus_hash = UINT64_MAX;
    ready.parameters = (1ull << 53) - 1;
    assert_ok(repack(&ready.base, &err), &err);
    ready.parameters++;
    assert_refused(repack(&ready.base, &err), DP_INVALID, &err,
                   "RankReady.parameters is 9007199254740992; the limit is 9007199254740991");
    Dp__V1__Ack ack = DP__V1__ACK__INIT;
    ack.sequence = UINT64_MAX;
    assert_refused(repack(&ack.base, &err), DP_INVALID, &err, "Ack.sequence is");
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    fence.job = "job-1";
    fence.epoch = 1u << 31;
    assert_refused(repack(&fence.base, &err), DP_INVALID, &err, "Fence.epoch is 2147483648");
    Dp__V1__RankLevel level = DP__V1__RANK_LEVEL__INIT;
    level.signal = 9;
    level.exit_status = 255;
    level.pid = 4194304;
    assert_ok(repack(&level.base, &err), &err);
    level.signal = -9;
    assert_refused(repack(&level.base, &err), DP_INVALID, &err, "RankLevel.signal is -9");
    level.signal = 0;
    level.pid = -1;
    assert_refused(repack(&level.base, &err), DP_INVALID, &err, "RankLevel.pid is -1");
    level.pid = 0;
    level.exit_status = 256;
    assert_refused(repack(&level.base, &err), DP_INVALID, &err, "RankLevel.exit_status is 256");
    (void)state;
}

static void a_member_is_found_in_a_message_that_is_refused(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_error err = {0};
    Dp__V1__ControllerMessage *message = sample_prepare(&arena);
    message->prepare->plan->n_layer_begin = 1;
    assert_refused(repack(&message->base, &err), DP_INVALID, &err, "Plan.layer_begin");
    dp_wire_pack(&message->base, &bytes);
    const void *at = bytes.bytes;
    size_t length = bytes.length;
    assert_true(dp_wire_member(message->base.descriptor, "prepare", at, length, &at, &length));
    assert_true(dp_wire_member(&dp__v1__prepare__descriptor, "fence", at, length, &at, &length));
    ProtobufCMessage *fence = NULL;
    assert_ok(dp_wire_unpack(&dp__v1__fence__descriptor, at, length, &arena, &fence, &err), &err);
    assert_string_equal(((Dp__V1__Fence *)fence)->job, "job-17");
    assert_false(
        dp_wire_member(message->base.descriptor, "ack", bytes.bytes, bytes.length, &at, &length));
    // Whatever the bytes are, it stays within them.
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        DP_AUTO_FREE char *exact = dp_memdup(bytes.bytes, bytes.length);
        exact[dp_rand_below(&rand, 16)] = (char)dp_rand_below(&rand, 256);
        size_t cut = dp_rand_below(&rand, bytes.length + 1);
        DP_AUTO_FREE char *piece = dp_memdup(exact, cut);
        if (dp_wire_member(message->base.descriptor, "prepare", piece, cut, &at, &length)) {
            assert_true((const char *)at >= piece && (const char *)at + length <= piece + cut);
        }
    }
    (void)state;
}

static void an_arena_that_is_too_small_is_said_so(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0}, small = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    dp_wire_pack(&sample_job(&arena)->base, &bytes);
    dp_arena_init(&small, 1024);
    dp_status status =
        dp_wire_unpack(&dp__v1__job__descriptor, bytes.bytes, bytes.length, &small, &message, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "Job needs up to");
    (void)state;
}

static void text_for_people_is_mended_not_refused(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    Dp__V1__RankFinished finished = DP__V1__RANK_FINISHED__INIT;
    finished.error = "ok\n\ttab \x1b[31m \xff zażółć \xc2\x9b!";
    dp_wire_pack(&finished.base, &bytes);
    assert_ok(
        dp_wire_unpack(finished.base.descriptor, bytes.bytes, bytes.length, &arena, &message, &err),
        &err);
    assert_string_equal(((Dp__V1__RankFinished *)message)->error, "ok\n\ttab ?[31m ? zażółć ?"
                                                                  "?!");
    (void)state;
}

// Sentences, as long as rows keep them, of a rank's own words and cut anywhere.
static void what_was_decided_may_be_told_at_length(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    char text[1024];
    memset(text, 'x', sizeof text - 1);
    text[10] = '\n';
    text[sizeof text - 2] = '\xc3';
    text[sizeof text - 1] = '\0';
    Dp__V1__HistoryDecision decision = DP__V1__HISTORY_DECISION__INIT;
    decision.cause = decision.answer = decision.outcome = text;
    dp_wire_pack(&decision.base, &bytes);
    assert_ok(
        dp_wire_unpack(decision.base.descriptor, bytes.bytes, bytes.length, &arena, &message, &err),
        &err);
    assert_int_equal(strlen(((Dp__V1__HistoryDecision *)message)->answer), sizeof text - 1);
    (void)state;
}

// What dpctl lets through is not refused later, in words about fields.
static void the_largest_quota_is_taken_and_no_larger_one(void **state)
{
    struct dp_error err;
    Dp__V1__SetQuotaRequest request = DP__V1__SET_QUOTA_REQUEST__INIT;
    request.of_user = "alice";
    request.bound_case = DP__V1__SET_QUOTA_REQUEST__BOUND_RANKS;
    request.ranks = DP_QUOTA_RANKS_MAX;
    assert_ok(repack(&request.base, &err), &err);
    request.ranks++;
    assert_refused(repack(&request.base, &err), DP_INVALID, &err, "ranks");
    (void)state;
}

static void unknown_fields_and_kinds_are_dropped(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    ProtobufCMessage *message = NULL;
    static const char bytes[] = "\x08\x05\xfa\x01\x03xyz";
    assert_ok(
        dp_wire_unpack(&dp__v1__ack__descriptor, bytes, sizeof bytes - 1, &arena, &message, &err),
        &err);
    assert_int_equal(message->n_unknown_fields, 0);
    assert_int_equal(((Dp__V1__Ack *)message)->sequence, 5);
    static const char kind[] = "\xfa\x01\x00"; // an order that this build does not have
    assert_ok(dp_wire_unpack(&dp__v1__controller_message__descriptor, kind, sizeof kind - 1, &arena,
                             &message, &err),
              &err);
    assert_int_equal(((Dp__V1__ControllerMessage *)message)->message_case,
                     DP__V1__CONTROLLER_MESSAGE__MESSAGE__NOT_SET);
    (void)state;
}

static void a_plan_comes_back_as_it_was(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    Dp__V1__Plan *message = sample_plan(&arena);
    message->schedule_json = (ProtobufCBinaryData){.len = 2, .data = (uint8_t *)"{}"};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_wire_plan_from_proto(message, &plan, &err), &err);
    assert_int_equal(plan.layer_begin[2], 5);
    assert_string_equal(plan.ranks[3].node, "node-b");
    assert_string_equal(plan.schedule_json, "{}");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf before = {0}, after = {0};
    dp_wire_pack(&message->base, &before);
    dp_wire_pack(&dp_wire_plan_to_proto(&plan, &arena)->base, &after);
    assert_int_equal(before.length, after.length);
    assert_memory_equal(before.bytes, after.bytes, before.length);
    (void)state;
}

// A controller finds such plans in its database.
static void a_plan_of_an_older_version_is_read(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    Dp__V1__Plan *message = sample_plan(&arena);
    message->tensor = message->context = message->expert_tensor = message->comm_units = 0;
    message->imbalance = 0;
    message->n_positions = message->n_gains = 0;
    message->format = message->shard = message->recompute = message->warnings = "";
    message->candidates[0]->recompute = "";
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_wire_plan_from_proto(message, &plan, &err), &err);
    assert_int_equal(dp_plan_world(&plan), 4);
    assert_null(plan.positions);
    assert_int_equal(plan.recompute, 0);
    assert_int_equal(plan.format, DP_FORMAT_AUTO);
    (void)state;
}

static void a_plan_that_does_not_fit_together_is_refused(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err;
    static uint32_t falling[] = {0, 3, 2}, late[] = {1, 2, 5};
    Dp__V1__Plan *plan = sample_plan(&arena);
    plan->n_layer_begin = 2;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "Plan.layer_begin has 2 entries");
    plan = sample_plan(&arena);
    plan->layer_begin = falling;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "stage 1 runs layers 3 to 1");
    plan->layer_begin = late;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "starts at layer 1");
    plan = sample_plan(&arena);
    plan->n_ranks = 3;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "3 entries for 2 x 2 ranks");
    plan = sample_plan(&arena);
    plan->ranks[1]->rank = 2;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "ranks[1] is rank 2");
    plan = sample_plan(&arena);
    plan->tensor = 3;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "4 entries for 2 x 6 ranks");
    plan = sample_plan(&arena);
    plan->n_positions = 1;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "Plan.positions has 1 entries");
    plan = sample_plan(&arena);
    plan->format = "fp7";
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "fp7");
    plan = sample_plan(&arena);
    plan->candidates[0]->recompute = "most";
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "most");
    plan = sample_plan(&arena);
    plan->expert = 3;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "does not divide");
    plan = sample_plan(&arena);
    plan->step_s = -1;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "finite");
    plan = sample_plan(&arena);
    plan->stages = DP_STAGES_MAX + 1;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "Plan.stages is 1025");
    plan = sample_plan(&arena);
    plan->pipeline = 0;
    assert_refused(repack(&plan->base, &err), DP_INVALID, &err, "0 x 2 ranks");
    (void)state;
}

static void a_span_keeps_its_meaning(void **state)
{
    const struct dp_action_span spans[] = {
        {.rank = 1,
         .replica = 2,
         .kind = DP_ACTION_FB,
         .b_kind = DP_ACTION_I,
         .stage = 3,
         .microbatch = 4,
         .b_stage = 5,
         .b_microbatch = 6,
         .step = 9,
         .start_ns = 100,
         .end_ns = 250,
         .own_ns = 120},
        {.rank = 3,
         .replica = 0,
         .kind = DP_SPAN_GRADIENT_SYNC,
         .step = 9,
         .start_ns = 1,
         .end_ns = 2},
        {.rank = 0, .replica = 1, .kind = DP_SPAN_OPTIMIZER, .step = 9, .start_ns = 1, .end_ns = 2},
    };
    static const uint32_t kinds[] = {DP_ACTION_FB, 16, 17}, ranks[] = {9, 3, 4};
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        Dp__V1__Span message;
        struct dp_action_span back;
        dp_wire_span_to_proto(&spans[i], 4, &message);
        assert_int_equal(message.kind, kinds[i]);
        assert_int_equal(message.rank, ranks[i]);
        dp_wire_span_from_proto(&message, 4, 9, &back);
        assert_memory_equal(&back, &spans[i], sizeof back);
    }
    (void)state;
}

static void mutate(struct dp_rand *rand, struct dp_buf *bytes)
{
    size_t at = bytes->length == 0 ? 0 : dp_rand_below(rand, bytes->length);
    switch (dp_rand_below(rand, 5)) {
    case 0:
        if (bytes->length > 0) {
            bytes->bytes[at] ^= (char)(1u << dp_rand_below(rand, 8));
        }
        break;
    case 1:
        if (bytes->length > 0) {
            bytes->bytes[at] = (char)dp_rand_below(rand, 256);
        }
        break;
    case 2:
        bytes->length = at;
        break;
    case 3: {
        // A piece of itself, at the end.
        size_t length = dp_rand_below(rand, bytes->length - at + 1);
        DP_AUTO_FREE char *piece = dp_memdup(bytes->bytes + at, length);
        dp_buf_append(bytes, piece, length);
        break;
    }
    default:
        dp_buf_consume(bytes, at > 8 ? 8 : at);
        break;
    }
}

// Whatever comes is refused with a message, or is a message that packs into bytes that are taken.
static void damaged_bytes_never_do_harm(void **state)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena samples = {0};
    const ProtobufCMessage *const messages[] = {&sample_job(&samples)->base,
                                                &sample_report(&samples)->base,
                                                &sample_prepare(&samples)->base};
    size_t accepted = 0, refused = 0;
    for (uint64_t seed = 0; seed < (uint64_t)dp_fuzz_runs(12000); seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        const ProtobufCMessage *message = messages[seed % 3];
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
        dp_wire_pack(message, &bytes);
        for (uint64_t left = 1 + dp_rand_below(&rand, 6); left > 0; left--) {
            mutate(&rand, &bytes);
        }
        // Its own allocation, so that reading past the end is seen.
        DP_AUTO_FREE char *exact = dp_memdup(bytes.bytes, bytes.length);
        struct dp_error err = {0};
        ProtobufCMessage *back = NULL;
        dp_status status =
            dp_wire_unpack(message->descriptor, exact, bytes.length, &arena, &back, &err);
        if (status != DP_OK) {
            assert_true(status == DP_INVALID || status == DP_TOO_LARGE);
            assert_true(err.message[0] != '\0');
            refused++;
            continue;
        }
        DP_AUTO_JSON json_t *json = dp_message_to_json(back);
        assert_non_null(json);
        assert_ok(repack(back, &err), &err);
        accepted++;
    }
    assert_true(accepted > 100 && refused > 1000);
    (void)state;
}

static void *unpack_nested(void *context)
{
    struct dp_buf *bytes = context;
    struct dp_error err = {0};
    dp_status status = unpack(&dp__v1__job_report__descriptor, bytes->bytes, bytes->length, &err);
    return (void *)(intptr_t)status;
}

static void deep_messages_are_refused_on_a_small_stack(void **state)
{
    (void)state;
    // Messages in messages, deeper than any of ours.
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    for (int depth = 0; depth < 20000; depth++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf outer = {0};
        uint8_t tag = 1 << 3 | 2;
        dp_buf_append(&outer, &tag, 1);
        for (size_t length = bytes.length;; length >>= 7) {
            uint8_t byte = (uint8_t)(length < 0x80 ? length : (length & 0x7f) | 0x80);
            dp_buf_append(&outer, &byte, 1);
            if (length < 0x80) {
                break;
            }
        }
        dp_buf_append(&outer, bytes.bytes == NULL ? "" : bytes.bytes, bytes.length);
        struct dp_buf before = bytes;
        bytes = outer;
        outer = before;
    }
    pthread_attr_t attributes;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    // As small as the sanitizers' frames allow.
    assert_int_equal(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, &attributes, unpack_nested, &bytes), 0);
    void *result = NULL;
    assert_int_equal(pthread_join(thread, &result), 0);
    dp_status refused = (dp_status)(intptr_t)result;
    assert_true(refused == DP_INVALID || refused == DP_TOO_LARGE);
    pthread_attr_destroy(&attributes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_packed_is_unpacked),
        cmocka_unit_test(bytes_that_are_no_message_are_refused),
        cmocka_unit_test(sizes_are_refused_before_anything_is_allocated),
        cmocka_unit_test(a_job_id_has_one_form),
        cmocka_unit_test(a_number_that_is_not_finite_is_refused_wherever_it_is),
        cmocka_unit_test(numbers_stay_within_what_is_kept_whole),
        cmocka_unit_test(a_member_is_found_in_a_message_that_is_refused),
        cmocka_unit_test(an_arena_that_is_too_small_is_said_so),
        cmocka_unit_test(text_for_people_is_mended_not_refused),
        cmocka_unit_test(what_was_decided_may_be_told_at_length),
        cmocka_unit_test(the_largest_quota_is_taken_and_no_larger_one),
        cmocka_unit_test(unknown_fields_and_kinds_are_dropped),
        cmocka_unit_test(a_plan_comes_back_as_it_was),
        cmocka_unit_test(a_plan_of_an_older_version_is_read),
        cmocka_unit_test(a_plan_that_does_not_fit_together_is_refused),
        cmocka_unit_test(a_span_keeps_its_meaning),
        cmocka_unit_test(damaged_bytes_never_do_harm),
        cmocka_unit_test(deep_messages_are_refused_on_a_small_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
