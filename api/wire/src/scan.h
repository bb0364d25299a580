// The walk over a message's bytes before anything is allocated.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

// *ret_memory: an upper bound of what unpacking takes.
dp_status dp_wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                       size_t length, size_t *ret_memory, struct dp_error *err);
