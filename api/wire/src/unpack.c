#include <string.h>

#include "check.h"
#include "dp/wire.h"
#include "scan.h"

struct budget {
    struct dp_arena *arena;
    size_t left;
};

static void *take(void *data, size_t size)
{
    struct budget *budget = data;
    if (size > budget->left) {
        return NULL;
    }
    budget->left -= size;
    return dp_arena_alloc(budget->arena, size);
}

static void give_back(void *data, void *memory)
{
    (void)data;
    (void)memory;
}

dp_status dp_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                         size_t length, struct dp_arena *arena, ProtobufCMessage **ret_message,
                         struct dp_error *err)
{
    size_t memory = 0;
    dp_status status = dp_wire_scan(descriptor, bytes, length, &memory, err);
    if (status != DP_OK) {
        return status;
    }
    struct budget budget = {.arena = arena, .left = memory};
    ProtobufCAllocator allocator = {.alloc = take, .free = give_back, .allocator_data = &budget};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &allocator, length, bytes);
    if (message == NULL && arena->max_bytes != 0 && memory > arena->max_bytes - arena->used_bytes) {
        return dp_fail(err, DP_TOO_LARGE, "%s needs up to %zu bytes; %zu are left",
                       descriptor->short_name, memory, arena->max_bytes - arena->used_bytes);
    }
    if (message == NULL) {
        return dp_fail(err, DP_INVALID, "the bytes are not a %s", descriptor->short_name);
    }
    status = dp_wire_check(message, err);
    if (status == DP_OK) {
        *ret_message = message;
    }
    return status;
}

struct buf_writer {
    ProtobufCBuffer base;
    struct dp_buf *out;
};

static void append(ProtobufCBuffer *buffer, size_t length, const uint8_t *bytes)
{
    dp_buf_append(((struct buf_writer *)buffer)->out, bytes, length);
}

void dp_wire_pack(const ProtobufCMessage *message, struct dp_buf *out)
{
    struct buf_writer writer = {.base.append = append, .out = out};
    protobuf_c_message_pack_to_buffer(message, &writer.base);
}
