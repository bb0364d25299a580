#include "dp_test.h"

#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/client.h"
#include "echo_server.h"

#define LONG_MS 20000

struct fixture {
    struct echo_server server;
    struct dp_client *client;
};

static int setup(void **state)
{
    struct dp_error err = {0};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_ok(echo_server_start(&fixture->server, "127.0.0.1:0", &err), &err);
    assert_ok(dp_client_open(fixture->server.address, 0, &fixture->client, &err), &err);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    dp_client_close(fixture->client);
    echo_server_stop(&fixture->server, 1000);
    free(fixture);
    return 0;
}

static void calls_bring_typed_answers(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    assert_string_equal(dp_client_version(fixture->client)->version, "9.8.7");
    assert_string_equal(dp_client_address(fixture->client), fixture->server.address);
    Dp__V1__Job *job = NULL;
    assert_ok(dp_client_get_job(fixture->client, "job-7", &arena, &job, &err), &err);
    assert_string_equal(job->id, "job-7");
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_toml = (ProtobufCBinaryData){.len = 8, .data = (uint8_t *)"[model]\n"};
    assert_ok(dp_client_submit_job(fixture->client, &request, &arena, &job, &err), &err);
    assert_memory_equal(job->job_toml.data, "[model]\n", 8);
    dp_status status = dp_client_get_job(fixture->client, "missing", &arena, &job, &err);
    assert_refused(status, DP_NOT_FOUND, &err, "no job \"missing\"");
    Dp__V1__ListNodesResponse *nodes = NULL;
    status = dp_client_list_nodes(fixture->client, &arena, &nodes, &err);
    assert_refused(status, DP_UNSUPPORTED, &err, "no method");
}

static void a_watch_tells_steps_and_the_end(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = "job-1";
    request.after_step = 3;
    struct dp_client_watch *watch = NULL;
    assert_ok(dp_client_watch_job(fixture->client, &request, &watch, &err), &err);
    bool end = false;
    uint64_t steps = 0;
    while (!end) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__JobEvent *event = NULL;
        assert_ok(dp_client_watch_next(watch, LONG_MS, &arena, &event, &end, &err), &err);
        assert_true(end == (event == NULL));
        steps += event == NULL ? 0 : 1;
        assert_true(event == NULL || event->step->step == steps);
    }
    assert_int_equal(steps, 3);
    dp_client_watch_close(watch);
}

static void logs_arrive_whole(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    struct dp_client_logs *logs = NULL;
    assert_ok(dp_client_read_logs(fixture->client, &request, &logs, &err), &err);
    bool end = false;
    size_t bytes = 0;
    while (!end) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__LogText *text = NULL;
        assert_ok(dp_client_logs_next(logs, LONG_MS, &arena, &text, &end, &err), &err);
        bytes += text == NULL ? 0 : text->data.len;
    }
    assert_int_equal(bytes, 256 * 65536);
    dp_client_logs_close(logs);
}

static void nobody_at_the_address_says_what_to_do(void **state)
{
    struct dp_error err = {0};
    struct dp_client *client = NULL;
    dp_status status = dp_client_open("127.0.0.1:1", 0, &client, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "no controller answers at 127.0.0.1:1");
    assert_refused(status, DP_UNAVAILABLE, &err, "dpctl local up");
    status = dp_client_open("@/nonexistent/address", 0, &client, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "/nonexistent/address");
    assert_refused(dp_client_open("nowhere", 0, &client, &err), DP_INVALID, &err, "\"nowhere\"");
    (void)state;
}

static void an_address_may_come_from_a_file(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    char path[64], line[DP_ADDRESS_MAX + 2];
    snprintf(path, sizeof path, "@/tmp/dp-client-test-%d", (int)getpid());
    snprintf(line, sizeof line, "%s\n", fixture->server.address);
    assert_ok(dp_write_file(path + 1, line, strlen(line), &err), &err);
    struct dp_client *client = NULL;
    assert_ok(dp_client_open(path, 0, &client, &err), &err);
    assert_string_equal(dp_client_address(client), fixture->server.address);
    dp_client_close(client);
    unlink(path + 1);
}

static void another_protocol_is_refused_with_both_versions(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    assert_ok(echo_server_start_protocol(&server, "127.0.0.1:0", DP_PROTOCOL_VERSION + 1, &err),
              &err);
    struct dp_client *client = NULL;
    dp_status status = dp_client_open(server.address, 0, &client, &err);
    char theirs[64], ours[64];
    snprintf(theirs, sizeof(theirs), "version 9.8.7 and speaks protocol %u",
             DP_PROTOCOL_VERSION + 1);
    snprintf(ours, sizeof(ours), "version %s, protocol %u", DP_VERSION, DP_PROTOCOL_VERSION);
    assert_refused(status, DP_UNSUPPORTED, &err, theirs);
    assert_refused(status, DP_UNSUPPORTED, &err, ours);
    echo_server_stop(&server, 1000);
    (void)state;
}

static void a_read_survives_a_restart_of_the_server(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    struct dp_client *client = NULL;
    assert_ok(dp_client_open(server.address, 0, &client, &err), &err);
    char address[DP_ADDRESS_MAX];
    DP_COPY_TEXT(address, server.address);
    echo_server_stop(&server, 0);
    assert_ok(echo_server_start(&server, address, &err), &err);
    Dp__V1__Job *job = NULL;
    assert_ok(dp_client_get_job(client, "job-7", &arena, &job, &err), &err);
    dp_client_close(client);
    echo_server_stop(&server, 1000);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_bring_typed_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(a_watch_tells_steps_and_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(logs_arrive_whole, setup, teardown),
        cmocka_unit_test(nobody_at_the_address_says_what_to_do),
        cmocka_unit_test_setup_teardown(an_address_may_come_from_a_file, setup, teardown),
        cmocka_unit_test(another_protocol_is_refused_with_both_versions),
        cmocka_unit_test(a_read_survives_a_restart_of_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
