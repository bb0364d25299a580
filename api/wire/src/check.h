// What is asked of a message once it is unpacked.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "dp/error.h"

// Also mends text for people and forgets unknown fields.
dp_status dp_wire_check(ProtobufCMessage *message, struct dp_error *err);
