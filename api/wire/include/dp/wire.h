// Between bytes from a peer, protobuf-c messages and plain structs. dp_wire_unpack is the only
// place where untrusted bytes become messages; what it returned can be used without asking again.
// Pure; any thread.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

#include "dp/action_span.h"
#include "dp/arena.h"
#include "dp/buf.h"
#include "dp/error.h"
#include "dp/plan.h"
#include "dp/v1/plan.pb-c.h"

// Decodes `length` bytes as one message into `arena` (valid until the arena's deinit; nothing to
// free). Refusals name the field: DP_TOO_LARGE for sizes, DP_INVALID for the rest.
//
// Before anything is allocated the bytes are walked once: total size (DP_MESSAGE_BYTES_MAX),
// nesting, wire types, each field at most once unless repeated, memory needed (at most
// DP_WIRE_MEMORY_MAX), strings of valid UTF-8, and names, addresses and paths without control
// characters and of bounded length. Text for people (message, error, reason, explanation, ...) is
// mended instead: what is not UTF-8 or would steer a terminal becomes "?".
// Afterwards: enum values known; ranks, stages, steps, slots and the like within limits.h, other
// integers (fixed64 apart, which are hashes) below 2^53 and times below 2^62; every double finite,
// a loss, too: one that is not ends its rank with RankFinished.not_finite; lists within theirs;
// every `fence`, with a job id of the form job-N, and every plan in an order, present; a Plan as
// dp_plan_check wants it.
//
// A oneof may still be empty (a kind that this build does not know): ignore such a message. Unknown
// fields are dropped.
dp_status dp_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                         size_t length, struct dp_arena *arena, ProtobufCMessage **ret_message,
                         struct dp_error *err);

// Where a member, a message too, lies in the bytes of a message that need not be a good one: false
// when it is not found. For an answer that says whom a refused message was about; what is found is
// as untrusted as the rest.
bool dp_wire_member(const ProtobufCMessageDescriptor *descriptor, const char *field,
                    const void *bytes, size_t length, const void **ret_bytes, size_t *ret_length);

// Appends the message's bytes.
void dp_wire_pack(const ProtobufCMessage *message, struct dp_buf *out);

// A plan as it travels, to a plan: DP_INVALID unless dp_plan_check is content. The caller owns
// *ret_plan (dp_plan_deinit).
dp_status dp_wire_plan_from_proto(const Dp__V1__Plan *message, struct dp_plan *ret_plan,
                                  struct dp_error *err);
// The inverse. Lies in `arena`, which has no limit, except strings, which are borrowed from `plan`.
Dp__V1__Plan *dp_wire_plan_to_proto(const struct dp_plan *plan, struct dp_arena *arena);

// Kinds of Span and KindTime are dp_action_kind, and for the update:
#define DP_WIRE_KIND_OPTIMIZER 17
// Spans, whose rank is global on the wire: replica * pipeline + pipeline rank.
void dp_wire_span_from_proto(const Dp__V1__Span *message, int32_t pipeline, int64_t step,
                             struct dp_action_span *ret_span);
void dp_wire_span_to_proto(const struct dp_action_span *span, int32_t pipeline,
                           Dp__V1__Span *ret_message);
