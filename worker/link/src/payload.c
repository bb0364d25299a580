#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/link.h"

// Reads fields one after the other; `ok` turns false at the first that does not fit.
struct reader {
    const char *at;
    size_t left;
    bool ok;
};

static struct reader reader_of(const struct dp_link_frame *frame)
{
    return (struct reader){.at = frame->payload, .left = frame->length, .ok = true};
}

static const void *take(struct reader *reader, size_t length)
{
    if (!reader->ok || reader->left < length) {
        reader->ok = false;
        return NULL;
    }
    const void *bytes = reader->at;
    reader->at += length;
    reader->left -= length;
    return bytes;
}

static void take_into(struct reader *reader, void *ret_value, size_t length)
{
    const void *bytes = take(reader, length);
    if (bytes != NULL) {
        memcpy(ret_value, bytes, length);
    } else {
        memset(ret_value, 0, length);
    }
}

static const char *take_text(struct reader *reader)
{
    const char *end = reader->left == 0 ? NULL : memchr(reader->at, '\0', reader->left);
    if (!reader->ok || end == NULL) {
        reader->ok = false;
        return NULL;
    }
    return take(reader, (size_t)(end - reader->at) + 1);
}

static void take_stop(struct reader *reader, dp_link_stop *ret_stop)
{
    uint32_t stop;
    take_into(reader, &stop, sizeof stop);
    reader->ok = reader->ok && stop < DP_LINK_STOP_COUNT;
    *ret_stop = (dp_link_stop)stop;
}

static dp_status finish(const struct reader *reader, const char *what, struct dp_error *err)
{
    if (!reader->ok || reader->left != 0) {
        return dp_fail(err, DP_INVALID, "a %s frame is malformed", what);
    }
    return DP_OK;
}

void dp_link_u32_write(uint32_t value, struct dp_buf *buf)
{
    dp_buf_append(buf, &value, sizeof value);
}

dp_status dp_link_u32_read(const struct dp_link_frame *frame, uint32_t *ret_value,
                           struct dp_error *err)
{
    struct reader reader = reader_of(frame);
    uint32_t value;
    take_into(&reader, &value, sizeof value);
    dp_status status = finish(&reader, "number", err);
    if (status == DP_OK) {
        *ret_value = value;
    }
    return status;
}

void dp_link_hello_write(const struct dp_link_hello *hello, struct dp_buf *buf)
{
    dp_link_u32_write(hello->protocol, buf);
    dp_link_u32_write(hello->lease_ms, buf);
    dp_buf_append(buf, &hello->pid, sizeof hello->pid);
}

dp_status dp_link_hello_read(const struct dp_link_frame *frame, struct dp_link_hello *ret_hello,
                             struct dp_error *err)
{
    struct reader reader = reader_of(frame);
    struct dp_link_hello hello;
    take_into(&reader, &hello.protocol, sizeof hello.protocol);
    take_into(&reader, &hello.lease_ms, sizeof hello.lease_ms);
    take_into(&reader, &hello.pid, sizeof hello.pid);
    dp_status status = finish(&reader, "HELLO", err);
    if (status == DP_OK) {
        *ret_hello = hello;
    }
    return status;
}

static uint32_t count_texts(char *const *texts)
{
    uint32_t count = 0;
    while (texts != NULL && texts[count] != NULL) {
        count++;
    }
    return count;
}

static void write_texts(char *const *texts, uint32_t count, struct dp_buf *buf)
{
    for (uint32_t i = 0; i < count; i++) {
        dp_buf_append(buf, texts[i], strlen(texts[i]) + 1);
    }
}

void dp_link_spawn_write(const struct dp_link_spawn *spawn, struct dp_buf *buf)
{
    uint32_t arguments = count_texts(spawn->arguments);
    uint32_t variables = count_texts(spawn->environment);
    dp_link_u32_write(arguments, buf);
    dp_link_u32_write(variables, buf);
    dp_link_u32_write((uint32_t)spawn->order_length, buf);
    write_texts(spawn->arguments, arguments, buf);
    write_texts(spawn->environment, variables, buf);
    dp_buf_append(buf, spawn->order, spawn->order_length);
}

static char **read_texts(struct reader *reader, uint32_t count)
{
    char **texts = dp_new_array(char *, (size_t)count + 1);
    for (uint32_t i = 0; i < count; i++) {
        texts[i] = (char *)take_text(reader);
    }
    return texts;
}

dp_status dp_link_spawn_read(const struct dp_link_frame *frame, struct dp_link_spawn *ret_spawn,
                             struct dp_error *err)
{
    struct reader reader = reader_of(frame);
    uint32_t arguments, variables, order_length;
    take_into(&reader, &arguments, sizeof arguments);
    take_into(&reader, &variables, sizeof variables);
    take_into(&reader, &order_length, sizeof order_length);
    if (arguments == 0 || arguments > DP_LINK_ARGUMENTS_MAX || variables > DP_LINK_ARGUMENTS_MAX) {
        return dp_fail(err, DP_INVALID, "a SPAWN frame has %u arguments and %u variables",
                       arguments, variables);
    }
    struct dp_link_spawn spawn = {0};
    spawn.arguments = read_texts(&reader, arguments);
    spawn.environment = read_texts(&reader, variables);
    spawn.order = take(&reader, order_length);
    spawn.order_length = order_length;
    dp_status status = finish(&reader, "SPAWN", err);
    if (status != DP_OK) {
        dp_link_spawn_deinit(&spawn);
        return status;
    }
    *ret_spawn = spawn;
    return DP_OK;
}

void dp_link_spawn_deinit(struct dp_link_spawn *spawn)
{
    free(spawn->arguments);
    free(spawn->environment);
    *spawn = (struct dp_link_spawn){0};
}

void dp_link_spawned_write(const struct dp_link_spawned *spawned, struct dp_buf *buf)
{
    dp_buf_append(buf, &spawned->pid, sizeof spawned->pid);
    dp_link_u32_write(spawned->started, buf);
    dp_link_u32_write(spawned->stop, buf);
}

dp_status dp_link_spawned_read(const struct dp_link_frame *frame,
                               struct dp_link_spawned *ret_spawned, struct dp_error *err)
{
    struct reader reader = reader_of(frame);
    struct dp_link_spawned spawned = {0};
    uint32_t started;
    take_into(&reader, &spawned.pid, sizeof spawned.pid);
    take_into(&reader, &started, sizeof started);
    take_stop(&reader, &spawned.stop);
    dp_status status = finish(&reader, "SPAWNED", err);
    if (status == DP_OK) {
        spawned.started = started != 0;
        *ret_spawned = spawned;
    }
    return status;
}

void dp_link_exited_write(const struct dp_link_exited *exited, struct dp_buf *buf)
{
    dp_buf_append(buf, &exited->pid, sizeof exited->pid);
    dp_buf_append(buf, &exited->status, sizeof exited->status);
    dp_buf_append(buf, &exited->signal, sizeof exited->signal);
    dp_link_u32_write(exited->stop, buf);
    dp_buf_append(buf, &exited->log_dropped, sizeof exited->log_dropped);
    dp_buf_append(buf, exited->error, strnlen(exited->error, sizeof exited->error - 1));
    dp_buf_append(buf, "", 1);
}

dp_status dp_link_exited_read(const struct dp_link_frame *frame, struct dp_link_exited *ret_exited,
                              struct dp_error *err)
{
    struct reader reader = reader_of(frame);
    struct dp_link_exited exited = {0};
    take_into(&reader, &exited.pid, sizeof exited.pid);
    take_into(&reader, &exited.status, sizeof exited.status);
    take_into(&reader, &exited.signal, sizeof exited.signal);
    take_stop(&reader, &exited.stop);
    take_into(&reader, &exited.log_dropped, sizeof exited.log_dropped);
    const char *text = take_text(&reader);
    dp_status status = finish(&reader, "EXITED", err);
    if (status == DP_OK) {
        (void)DP_COPY_TEXT(exited.error, text);
        *ret_exited = exited;
    }
    return status;
}
