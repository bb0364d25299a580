// dp-controller as a process: output of ranks that it reads from their nodes.
#include <stdlib.h>
#include <string.h>

#include "daemon_support.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/utf8.h"

#define AUTO_LOGS __attribute__((cleanup(close_logs)))

static void close_logs(struct dp_client_logs **logs)
{
    dp_client_logs_close(*logs);
}

// Of job-1.
static struct dp_client_logs *read_logs(struct scene *scene, Dp__V1__ReadLogsRequest *request)
{
    request->id = (char *)"job-1";
    struct dp_client_logs *logs = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_read_logs(scene->client, request, &logs, &err), &err);
    return logs;
}

static void send_chunk(struct fake_agent *agent, const Dp__V1__ReadLog *read, const void *bytes,
                       size_t length, bool end)
{
    Dp__V1__LogChunk chunk = DP__V1__LOG_CHUNK__INIT;
    chunk.request = read->request;
    chunk.rank = read->rank;
    chunk.offset = read->offset;
    chunk.data.data = (uint8_t *)bytes;
    chunk.data.len = length;
    chunk.end = end;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LOG;
    message.log = &chunk;
    agent_send(agent, &message);
}

static void send_log(struct fake_agent *agent, const Dp__V1__ReadLog *read, const void *bytes,
                     size_t length)
{
    send_chunk(agent, read, bytes, length, false);
}

static void send_end(struct fake_agent *agent, const Dp__V1__ReadLog *read)
{
    send_chunk(agent, read, "", 0, true);
}

// Takes what came; false at the end of the stream.
static bool next_log(struct dp_client_logs *logs, struct scene *scene, Dp__V1__LogText **ret_text)
{
    bool end = false;
    struct dp_error err = {0};
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    *ret_text = NULL;
    while (*ret_text == NULL && !end) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        agent_pump(&scene->agent, 1);
        assert_ok(dp_client_logs_next(logs, 10, &scene->arena, ret_text, &end, &err), &err);
    }
    return !end;
}

static const Dp__V1__ReadLog *next_read(struct scene *scene)
{
    return agent_expect(&scene->agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_READ_LOG)->read_log;
}

static void logs_are_read_from_the_node_that_has_them(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    request.rank = 1;
    request.tail_lines = 2;
    AUTO_LOGS struct dp_client_logs *logs = read_logs(&scene, &request);
    static const char *const parts[] = {"one\ntwo\nth", "ree\nfour\n", ""};
    uint64_t offset = 0;
    for (size_t i = 0; i < 3; i++) {
        const Dp__V1__ReadLog *read = next_read(&scene);
        assert_int_equal(read->rank, 1);
        assert_int_equal(read->offset, offset);
        send_log(&scene.agent, read, parts[i], strlen(parts[i]));
        offset += strlen(parts[i]);
    }
    Dp__V1__LogText *text;
    assert_true(next_log(logs, &scene, &text));
    assert_int_equal(text->data.len, strlen("three\nfour\n"));
    assert_memory_equal(text->data.data, "three\nfour\n", text->data.len);
    assert_string_equal(text->node, "node-x");
    assert_false(next_log(logs, &scene, &text));
}

static void output_arrives_whole_in_characters_and_from_the_oldest_byte_kept(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    AUTO_LOGS struct dp_client_logs *logs = read_logs(&scene, &request);
    static const char said[] = "żółw🐢\n";
    // The first thousand bytes were rotated away; then it comes byte by byte.
    for (size_t i = 0; i <= strlen(said); i++) {
        Dp__V1__ReadLog read = *next_read(&scene);
        assert_int_equal(read.offset, i == 0 ? 0 : 1000 + i);
        read.offset = 1000 + i;
        send_log(&scene.agent, &read, said + i, i < strlen(said) ? 1 : 0);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf heard = {0};
    Dp__V1__LogText *text;
    while (next_log(logs, &scene, &text)) {
        assert_true(dp_utf8_valid(text->data.data, text->data.len));
        dp_buf_append(&heard, text->data.data, text->data.len);
    }
    assert_string_equal(heard.bytes, said);
}

static const Dp__V1__ReadLog *next_read_of(struct scene *scene, uint32_t attempt)
{
    const Dp__V1__ReadLog *read = next_read(scene);
    assert_int_equal(read->fence->attempt, attempt);
    return read;
}

// Its one node is drained at once and taken back; the next attempt runs there.
static void begin_again(struct scene *scene)
{
    struct dp_error err = {0};
    Dp__V1__Node *node = NULL;
    Dp__V1__DrainNodeRequest drain = DP__V1__DRAIN_NODE_REQUEST__INIT;
    drain.node = (char *)"node-x";
    drain.force = true;
    assert_ok(dp_client_drain_node(scene->client, &drain, &scene->arena, &node, &err), &err);
    agent_expect(&scene->agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP);
    scene_level(scene, DP__V1__RANK_PHASE__RANK_DIED);
    agent_expect(&scene->agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE);
    assert_ok(dp_client_undrain_node(scene->client, "node-x", &scene->arena, &node, &err), &err);
    scene->fence.attempt = 2;
    agent_expect(&scene->agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE);
    agent_start_ranks(&scene->agent, &scene->fence);
}

static void who_follows_output_goes_on_with_the_ranks_of_the_next_attempt(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    request.follow = true;
    AUTO_LOGS struct dp_client_logs *logs = read_logs(&scene, &request);
    send_log(&scene.agent, next_read_of(&scene, 1), "one\n", 4);
    Dp__V1__ReadLog last = *next_read_of(&scene, 1);
    begin_again(&scene);
    send_end(&scene.agent, &last);
    send_log(&scene.agent, next_read_of(&scene, 2), "two\n", 4);
    last = *next_read_of(&scene, 2);
    assert_int_equal(last.offset, 4);
    scene_level(&scene, DP__V1__RANK_PHASE__RANK_FINISHED);
    send_end(&scene.agent, &last);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf heard = {0};
    Dp__V1__LogText *text;
    while (next_log(logs, &scene, &text)) {
        dp_buf_append(&heard, text->data.data, text->data.len);
    }
    dp_buf_puts(&heard, "");
    assert_string_equal(heard.bytes, "one\ntwo\n");
}

static void logs_of_all_ranks_come_by_rank_when_they_are_not_followed(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    request.all_ranks = true;
    AUTO_LOGS struct dp_client_logs *logs = read_logs(&scene, &request);
    static const struct {
        uint32_t rank;
        const char *text;
    } parts[] = {{0, "a\n"}, {0, "b\n"}, {0, ""}, {1, "c\n"}, {1, ""}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
        const Dp__V1__ReadLog *read = next_read(&scene);
        assert_int_equal(read->rank, parts[i].rank);
        send_log(&scene.agent, read, parts[i].text, strlen(parts[i].text));
    }
    static const char *const lines[] = {"a\n", "b\n", "c\n"};
    Dp__V1__LogText *text = NULL;
    for (size_t i = 0; i < 3; i++) {
        assert_true(next_log(logs, &scene, &text));
        assert_int_equal(text->rank, i == 2);
        assert_memory_equal(text->data.data, lines[i], 2);
    }
    assert_false(next_log(logs, &scene, &text));
}

// More than a stream's queue takes: it waits for its reader, and nothing of it is lost.
static void a_long_tail_comes_whole_to_a_slow_reader(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    request.tail_lines = 1000000;
    AUTO_LOGS struct dp_client_logs *logs = read_logs(&scene, &request);
    // 40 MiB of lines of 16 bytes; the last 16 MiB may stay.
    char part[DP_LOG_CHUNK_BYTES_MAX + 1];
    const uint64_t lines_each = DP_LOG_CHUNK_BYTES_MAX / 16, parts = 640;
    for (uint64_t p = 0; p <= parts; p++) {
        const Dp__V1__ReadLog *read = next_read(&scene);
        for (uint64_t i = 0; i < lines_each; i++) {
            snprintf(part + 16 * i, 17, "%015llu\n", (unsigned long long)(p * lines_each + i));
        }
        send_log(&scene.agent, read, part, p == parts ? 0 : DP_LOG_CHUNK_BYTES_MAX);
        scene.agent.got_count = scene.agent.taken = 0;
    }
    Dp__V1__LogText *text = NULL;
    uint64_t bytes = 0, line = 0;
    while (next_log(logs, &scene, &text)) {
        for (size_t i = 0; i < text->data.len; i += 16) {
            uint64_t number = strtoull((const char *)text->data.data + i, NULL, 10);
            assert_true(bytes + i == 0 || number == line + 1);
            line = number;
        }
        bytes += text->data.len;
    }
    assert_int_equal(line, parts * lines_each - 1);
    assert_true(bytes > (15u << 20) && bytes <= (16u << 20));
}

static const struct CMUnitTest tests[] = {
    DAEMON_TEST(logs_are_read_from_the_node_that_has_them),
    DAEMON_TEST(output_arrives_whole_in_characters_and_from_the_oldest_byte_kept),
    DAEMON_TEST(who_follows_output_goes_on_with_the_ranks_of_the_next_attempt),
    DAEMON_TEST(logs_of_all_ranks_come_by_rank_when_they_are_not_followed),
    DAEMON_TEST(a_long_tail_comes_whole_to_a_slow_reader),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
