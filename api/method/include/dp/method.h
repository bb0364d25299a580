// The method table: every RPC is one row, and every door (gRPC, later REST) dispatches through it.
// Also the one mapping between messages and JSON, made from the descriptors that protobuf-c keeps.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "dp/arena.h"
#include "dp/json.h"

// Programs of one machine refuse each other when they speak another protocol (GetVersion). A
// controller also takes agents of the one before (Hello), so that machines can follow one by one;
// it asks nothing of them that they do not know:
//   1  submission to report
//   2  assignments beside others, pauses, settling, probes; other periods of heartbeats
#define DP_PROTOCOL_VERSION 2u
#define DP_PROTOCOL_OLDEST 1u

typedef enum dp_method_id {
    DP_METHOD_GET_VERSION,
    DP_METHOD_SUBMIT_JOB,
    DP_METHOD_VALIDATE_JOB,
    DP_METHOD_GET_JOB,
    DP_METHOD_LIST_JOBS,
    DP_METHOD_CANCEL_JOB,
    DP_METHOD_UPDATE_JOB,
    DP_METHOD_CHECKPOINT_JOB,
    DP_METHOD_REASSIGN_JOB,
    DP_METHOD_LIST_DECISIONS,
    DP_METHOD_LIST_NODES,
    DP_METHOD_DRAIN_NODE,
    DP_METHOD_UNDRAIN_NODE,
    DP_METHOD_SET_NODE,
    DP_METHOD_SET_QUOTA,
    DP_METHOD_LIST_QUOTAS,
    DP_METHOD_WATCH_JOB,
    DP_METHOD_READ_LOGS,
    DP_METHOD_GET_REPORT,
    DP_METHOD_GET_TIMELINE,
    DP_METHOD_LIST_EVENTS,
    DP_METHOD_WATCH_EVENTS,
    DP_METHOD_LIST_AUDIT,
    DP_METHOD_LIST_HISTORY,
    DP_METHOD_BACKUP,
    DP_METHOD_PLAN,
    DP_METHOD_SIMULATE,
    DP_METHOD_APPLY_CLUSTER,
    DP_METHOD_GET_CLUSTER,
    DP_METHOD_LIST_CLUSTERS,
    DP_METHOD_DELETE_CLUSTER,
    DP_METHOD_CALIBRATE,
    DP_METHOD_LIST_PROFILES,
    DP_METHOD_SESSION, // agents
    DP_METHOD_COUNT
} dp_method_id;

struct dp_method {
    const char *name; // "/dp.v1.Controller/SubmitJob"
    const ProtobufCMessageDescriptor *request;
    const ProtobufCMessageDescriptor *response;
    bool client_streaming;
    bool server_streaming;
    unsigned deadline_ms;   // how long a caller waits for the answer; streams have none
    const char *permission; // "open", "read", "submit", "operate" or "agent"
    const char *http_verb;  // NULL = not offered over HTTP
    const char *http_path;  // "/v1/jobs/{id}"; a part in braces is a field of the request
};

// What most unary methods answer within.
#define DP_METHOD_DEADLINE_MS 10000u

// One row for each id.
extern const struct dp_method dp_methods[DP_METHOD_COUNT];

// The row with this full gRPC name, or NULL.
const struct dp_method *dp_method_find(const char *name);

// A JSON object with the proto's own names (snake_case). Scalars and lists always appear, messages
// and oneof members when present. Enums are their names; 64-bit integers are numbers, except
// fixed64 (hashes, tokens), which are "0x" and 16 digits; bytes are base64, except the fields that
// hold text (dp_method_field_is_text), where what is not UTF-8 becomes U+FFFD; NaN and infinities
// are "NaN", "Infinity", "-Infinity". The caller owns the result, which is never NULL. Any thread.
json_t *dp_message_to_json(const ProtobufCMessage *message);

// The inverse, into `arena`. An unknown key, a wrong type, an unknown enum name or a number out of
// range is DP_INVALID with the path of the value ("ranks[3].node"). Absent keys keep the default;
// null counts as absent. DP_TOO_LARGE when the arena's limit is reached. Limits on values are not
// checked here: pack the result and let dp_wire_unpack do it.
dp_status dp_message_from_json(const ProtobufCMessageDescriptor *descriptor, const json_t *json,
                               struct dp_arena *arena, ProtobufCMessage **ret_message,
                               struct dp_error *err);

// Whether a bytes field of this message holds text (job_toml, log data, JSON documents).
bool dp_method_field_is_text(const ProtobufCMessageDescriptor *descriptor, const char *field);
// Whether that text is a JSON document, which dp_message_from_json also takes as an object.
bool dp_method_field_is_json(const ProtobufCMessageDescriptor *descriptor, const char *field);
