// What values fields may have. Rules go by field name, which means the same in every message; a
// field that is added gets the strict default.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum wire_string_kind {
    WIRE_STRING_LINE, // one line without control characters
    WIRE_STRING_TEXT, // for people; mended, not refused
} wire_string_kind;

struct wire_string_rule {
    const char *field;
    wire_string_kind kind;
    size_t bytes_max; // without the terminator
};

// Never NULL.
const struct wire_string_rule *dp_wire_string_rule_find(const char *field);
// What an integer field may hold. Without a rule of its own: what a double, and so JSON, keeps
// whole.
struct wire_integer_rule {
    const char *field;
    int64_t min, max;
};
struct wire_integer_rule dp_wire_integer_rule_find(const char *field);
// The most elements of a list.
size_t dp_wire_list_max(const char *field);
// Whether this member must be there.
bool dp_wire_is_required(const ProtobufCMessageDescriptor *descriptor,
                         const ProtobufCFieldDescriptor *field);
