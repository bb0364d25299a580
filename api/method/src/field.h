// How protobuf-c lays a field out in a message's C structure.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

// Bytes of one value of this type.
size_t dp_field_size(ProtobufCType type);
// Whether a message or a oneof's member is set; other fields always are.
bool dp_field_is_present(const ProtobufCFieldDescriptor *field, const char *message);
