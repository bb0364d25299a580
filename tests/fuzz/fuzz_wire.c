// Messages of the wire: the first byte says which, the rest is from a peer. What is accepted packs,
// and what was packed is accepted and packs to the same bytes; a plan also makes the way through
// the plain struct.
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/rank.pb-c.h"
#include "dp/wire.h"
#include "fuzz.h"

static const ProtobufCMessageDescriptor *const others[] = {
    &dp__v1__plan__descriptor, &dp__v1__rank_order__descriptor, &dp__v1__rank_report__descriptor,
    &dp__v1__prepare__descriptor, &dp__v1__job__descriptor};

static const ProtobufCMessageDescriptor *descriptor_of(unsigned number)
{
    number %= 2 * DP_METHOD_COUNT + DP_ARRAY_LENGTH(others);
    if (number >= 2 * DP_METHOD_COUNT) {
        return others[number - 2 * DP_METHOD_COUNT];
    }
    return number % 2 == 0 ? dp_methods[number / 2].request : dp_methods[number / 2].response;
}

static void check_plan(const ProtobufCMessage *message)
{
    struct dp_plan plan;
    struct dp_error err = {0};
    DP_CHECK(dp_wire_plan_from_proto((const Dp__V1__Plan *)message, &plan, &err) == DP_OK);
    struct dp_arena arena;
    dp_arena_init(&arena, 0);
    Dp__V1__Plan *back = dp_wire_plan_to_proto(&plan, &arena);
    struct dp_plan again;
    DP_CHECK(dp_wire_plan_from_proto(back, &again, &err) == DP_OK);
    dp_plan_deinit(&again);
    dp_arena_deinit(&arena);
    dp_plan_deinit(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(data[0]);
    struct dp_arena arena;
    struct dp_error err = {0};
    ProtobufCMessage *message;
    dp_arena_init(&arena, 0);
    const void *member;
    size_t member_length;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        dp_wire_member(descriptor, descriptor->fields[i].name, data + 1, size - 1, &member,
                       &member_length);
    }
    if (dp_wire_unpack(descriptor, data + 1, size - 1, &arena, &message, &err) == DP_OK) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0};
        DP_CLEANUP(dp_buf_deinit) struct dp_buf second = {0};
        dp_wire_pack(message, &first);
        ProtobufCMessage *back;
        DP_CHECK(dp_wire_unpack(descriptor, first.length == 0 ? "" : first.bytes, first.length,
                                &arena, &back, &err) == DP_OK);
        dp_wire_pack(back, &second);
        DP_CHECK(first.length == second.length);
        DP_CHECK(first.length == 0 || memcmp(first.bytes, second.bytes, first.length) == 0);
        json_decref(dp_message_to_json(message));
        if (descriptor == &dp__v1__plan__descriptor) {
            check_plan(message);
        }
    }
    dp_arena_deinit(&arena);
    return 0;
}
