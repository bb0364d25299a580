// Between bytes from a peer, protobuf-c messages and plain structs. dp_wire_unpack is the only
// place where untrusted bytes become messages; what it returned can be used without asking again.
// Pure; any thread.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

#include "dp/arena.h"
#include "dp/buf.h"
#include "dp/error.h"
#include "dp/plan.h"
#include "dp/v1/plan.pb-c.h"

// Decodes `length` bytes as one message into `arena` (valid until the arena's deinit; nothing to
// free). Before anything is allocated the bytes are walked once: total size, nesting, wire types,
// element counts, memory needed (at most DP_WIRE_MEMORY_MAX), UTF-8 in strings and no control
// characters in names. Afterwards: enum values known, numbers within limits.h, and what each type
// asks of itself (a Plan's layer_begin has stages + 1 entries that rise, ranks are below
// DP_RANKS_MAX, times are finite). Unknown fields are dropped. Refusals name the field:
// DP_TOO_LARGE for sizes, DP_INVALID for the rest.
dp_status dp_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                         size_t length, struct dp_arena *arena, ProtobufCMessage **ret_message,
                         struct dp_error *err);

// Appends the message's bytes.
void dp_wire_pack(const ProtobufCMessage *message, struct dp_buf *out);

// A plan as it travels, to a plan. The message must come from dp_wire_unpack. The caller owns
// *ret_plan (dp_plan_deinit).
dp_status dp_wire_plan_from_proto(const Dp__V1__Plan *message, struct dp_plan *ret_plan,
                                  struct dp_error *err);
// The inverse. Everything lies in `arena`, which has no limit, except strings, which are borrowed
// from `plan`.
Dp__V1__Plan *dp_wire_plan_to_proto(const struct dp_plan *plan, struct dp_arena *arena);
