#include "dp_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/check.h"
#include "dp/clock.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "echo_server.h"

#define LONG_MS 60000 // a deadline that only a broken build meets

struct fixture {
    struct echo_server server;
    struct dp_rpc_client *client;
};

static struct dp_rpc_client *open_client(const char *address)
{
    struct dp_error err = {0};
    struct dp_rpc_client *client = NULL;
    struct dp_rpc_client_options options = {.address = address, .own_connection = true};
    assert_ok(dp_rpc_client_open(&options, &client, &err), &err);
    return client;
}

static int setup(void **state)
{
    struct dp_error err = {0};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_ok(echo_server_start(&fixture->server, "127.0.0.1:0", &err), &err);
    fixture->client = open_client(fixture->server.address);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    dp_rpc_client_close(fixture->client);
    echo_server_stop(&fixture->server, 1000);
    free(fixture);
    return 0;
}

static dp_status get_job(struct dp_rpc_client *client, const char *id, unsigned deadline_ms,
                         struct dp_buf *bytes, struct dp_error *err)
{
    Dp__V1__GetJobRequest request = DP__V1__GET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    struct dp_rpc_call_options options = {.deadline_ms = deadline_ms};
    return dp_rpc_client_call(client, DP_METHOD_GET_JOB, &request.base, &options, bytes, err);
}

static bool reaches(atomic_uint *counter, unsigned least)
{
    int64_t end_ns = dp_clock_monotonic_ns() + LONG_MS * DP_NS_PER_MS;
    while (dp_clock_monotonic_ns() < end_ns) {
        if (atomic_load(counter) >= least) {
            return true;
        }
        poll(NULL, 0, 1);
    }
    return false;
}

// Every call that a handler saw was closed, once, and none is left.
static bool settles(struct echo_server *server)
{
    int64_t end_ns = dp_clock_monotonic_ns() + LONG_MS * DP_NS_PER_MS;
    while (dp_clock_monotonic_ns() < end_ns) {
        unsigned closed = atomic_load(&server->closed);
        if (atomic_load(&server->calls) == 0 && atomic_load(&server->opened) == closed) {
            return true;
        }
        poll(NULL, 0, 1);
    }
    return false;
}

static void a_call_brings_its_answer(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    for (int i = 0; i < 100; i++) {
        assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
        Dp__V1__Job *job = dp__v1__job__unpack(NULL, bytes.length, (const uint8_t *)bytes.bytes);
        assert_non_null(job);
        assert_string_equal(job->id, "job-7");
        dp__v1__job__free_unpacked(job, NULL);
    }
}

static void an_empty_answer_is_an_answer(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_buf_puts(&bytes, "what was here before");
    assert_ok(get_job(fixture->client, "", LONG_MS, &bytes, &err), &err);
    assert_int_equal(bytes.length, 0);
}

static void an_error_keeps_its_status_and_its_whole_text(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_status status = get_job(fixture->client, "missing", LONG_MS, &bytes, &err);
    assert_refused(status, DP_NOT_FOUND, &err, "no job \"missing\"");
    // Longer than the status text of gRPC may be.
    status = get_job(fixture->client, "unschedulable", LONG_MS, &bytes, &err);
    assert_refused(status, DP_UNSCHEDULABLE, &err, "xend.");
    assert_int_equal(strlen(err.message), 1800);
}

static void an_unknown_method_is_refused_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    Dp__V1__ListNodesRequest request = DP__V1__LIST_NODES_REQUEST__INIT;
    dp_status status = dp_rpc_client_call(fixture->client, DP_METHOD_LIST_NODES, &request.base,
                                          NULL, &bytes, &err);
    assert_refused(status, DP_UNSUPPORTED, &err, "no method /dp.v1.Controller/ListNodes");
}

static void a_message_over_the_limit_is_refused_either_way(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_status status = get_job(fixture->client, "huge", LONG_MS, &bytes, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "the limit is 4194304");

    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    memset(dp_buf_extend(&toml, DP_MESSAGE_BYTES_MAX), ' ', DP_MESSAGE_BYTES_MAX);
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_toml = (ProtobufCBinaryData){.len = toml.length, .data = (uint8_t *)toml.bytes};
    status = dp_rpc_client_call(fixture->client, DP_METHOD_SUBMIT_JOB, &request.base, NULL, &bytes,
                                &err);
    assert_refused(status, DP_TOO_LARGE, &err, "the request has 4194309 bytes");
    // A client without that limit is refused by the server's.
    struct dp_rpc_client_options options = {.address = fixture->server.address,
                                            .message_bytes_max = 2 * DP_MESSAGE_BYTES_MAX,
                                            .own_connection = true};
    struct dp_rpc_client *careless = NULL;
    assert_ok(dp_rpc_client_open(&options, &careless, &err), &err);
    status = dp_rpc_client_call(careless, DP_METHOD_SUBMIT_JOB, &request.base, NULL, &bytes, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "larger than max");
    // And goes on serving.
    assert_ok(get_job(careless, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_client_close(careless);
}

static void a_deadline_ends_the_call_on_both_sides(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    // On a busy machine a short one may pass before the server has heard of the call.
    for (unsigned ms = 50; atomic_load(&fixture->server.opened) == 0; ms *= 2) {
        assert_true(ms < LONG_MS);
        dp_status status = get_job(fixture->client, "never", ms, &bytes, &err);
        assert_refused(status, DP_TIMEOUT, &err, fixture->server.address);
    }
    assert_true(reaches(&fixture->server.cancelled, 1));
    assert_true(settles(&fixture->server));
}

static struct dp_rpc_reader *watch(struct dp_rpc_client *client, const char *id, unsigned steps)
{
    struct dp_error err = {0};
    struct dp_rpc_reader *reader = NULL;
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.after_step = steps;
    assert_ok(dp_rpc_reader_open(client, DP_METHOD_WATCH_JOB, &request.base, NULL, &reader, &err),
              &err);
    return reader;
}

static void a_stream_arrives_in_order_and_ends(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_rpc_reader *reader = watch(fixture->client, "job-1", 16);
    dp_rpc_read read = DP_RPC_IDLE;
    for (uint64_t step = 1; step <= 16; step++) {
        assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
        assert_int_equal(read, DP_RPC_MESSAGE);
        Dp__V1__JobEvent *event =
            dp__v1__job_event__unpack(NULL, bytes.length, (const uint8_t *)bytes.bytes);
        assert_int_equal(event->step->step, step);
        dp__v1__job_event__free_unpacked(event, NULL);
    }
    for (int again = 0; again < 2; again++) {
        assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
        assert_int_equal(read, DP_RPC_END);
    }
    dp_rpc_reader_close(reader);
}

static void a_silent_stream_gives_the_caller_back_its_time(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_rpc_reader *reader = watch(fixture->client, "forever", 1);
    dp_rpc_read read = DP_RPC_IDLE;
    assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
    assert_int_equal(read, DP_RPC_MESSAGE);
    for (int i = 0; i < 3; i++) {
        assert_ok(dp_rpc_reader_next(reader, 1, &read, &bytes, &err), &err);
        assert_int_equal(read, DP_RPC_IDLE);
    }
    // A call beside it works.
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_reader_close(reader);
    assert_true(reaches(&fixture->server.cancelled, 1));
}

static size_t open_descriptors(void)
{
    size_t count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += dup2(fd, fd) == fd ? 1 : 0;
    }
    return count;
}

static void a_thousand_opened_and_cancelled_streams_leave_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_rpc_read read = DP_RPC_IDLE;
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    size_t before = open_descriptors();
    for (unsigned i = 0; i < 1000; i++) {
        struct dp_rpc_reader *reader = watch(fixture->client, "forever", 1);
        if (i % 2 == 0) {
            assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
        }
        dp_rpc_reader_close(reader);
    }
    assert_true(settles(&fixture->server));
    assert_int_equal(open_descriptors(), before);
}

static void a_slow_reader_costs_a_bounded_queue(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_rpc_reader *reader = NULL;
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    assert_ok(dp_rpc_reader_open(fixture->client, DP_METHOD_READ_LOGS, &request.base, NULL, &reader,
                                 &err),
              &err);
    // 16 MiB want to go out; nobody reads yet.
    assert_true(reaches(&fixture->server.refused, 1));
    assert_int_equal(atomic_load(&fixture->server.queued_max), 16);
    // Now read: everything comes, in order, once.
    dp_rpc_read read = DP_RPC_IDLE;
    unsigned chunks = 0;
    for (;;) {
        assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
        if (read == DP_RPC_END) {
            break;
        }
        assert_int_equal(read, DP_RPC_MESSAGE);
        Dp__V1__LogText *text =
            dp__v1__log_text__unpack(NULL, bytes.length, (const uint8_t *)bytes.bytes);
        assert_int_equal(text->rank, chunks++);
        dp__v1__log_text__free_unpacked(text, NULL);
    }
    assert_int_equal(chunks, 256);
    assert_int_equal(atomic_load(&fixture->server.queued_max), 16);
    dp_rpc_reader_close(reader);
}

static void a_server_that_stops_ends_open_streams_with_a_hint(void **state)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct echo_server server;
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    struct dp_rpc_client *client = open_client(server.address);
    struct dp_rpc_reader *reader = watch(client, "forever", 1);
    dp_rpc_read read = DP_RPC_IDLE;
    assert_ok(dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err), &err);
    echo_server_stop(&server, LONG_MS);
    assert_int_equal(atomic_load(&server.cancelled), 1);
    dp_status status = dp_rpc_reader_next(reader, LONG_MS, &read, &bytes, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "stopping; try again");
    dp_rpc_reader_close(reader);
    // Nobody is there any more, and the error says where.
    status = get_job(client, "job-7", LONG_MS, &bytes, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, server.address);
    dp_rpc_client_close(client);
    (void)state;
}

static void a_stop_without_grace_cancels_a_reader_that_does_not_read(void **state)
{
    struct dp_error err = {0};
    struct echo_server server;
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    struct dp_rpc_client *client = open_client(server.address);
    struct dp_rpc_reader *reader = NULL;
    Dp__V1__ReadLogsRequest request = DP__V1__READ_LOGS_REQUEST__INIT;
    assert_ok(dp_rpc_reader_open(client, DP_METHOD_READ_LOGS, &request.base, NULL, &reader, &err),
              &err);
    assert_true(reaches(&server.refused, 1));
    echo_server_stop(&server, 0);
    assert_int_equal(atomic_load(&server.closed), 1);
    dp_rpc_reader_close(reader);
    dp_rpc_client_close(client);
    (void)state;
}

static void a_port_that_is_taken_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    struct echo_server second;
    dp_status status = echo_server_start(&second, fixture->server.address, &err);
    assert_refused(status, DP_CONFLICT, &err, fixture->server.address);
    assert_refused(status, DP_CONFLICT, &err, "in use");
}

// Callers until nobody can be accepted any more; then they leave.
static void a_port_outlives_a_moment_without_descriptors(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    const char *port = strrchr(fixture->server.address, ':') + 1;
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval most = {.tv_sec = 10};
    int callers[64];
    for (size_t i = 0; i < DP_ARRAY_LENGTH(callers); i++) {
        callers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(callers[i] >= 0);
    }
    const int last = callers[DP_ARRAY_LENGTH(callers) - 1];
    assert_int_equal(setsockopt(last, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), 0);
    struct rlimit limit, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)last + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(callers); i++) {
        assert_int_equal(connect(callers[i], (const struct sockaddr *)&to, sizeof to), 0);
    }
    // Servers speak first in HTTP/2: what is accepted hears settings, who is turned away nothing.
    char byte;
    const ssize_t heard = recv(last, &byte, 1, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(callers); i++) {
        close(callers[i]);
    }
    assert_true(heard == 0 || (heard < 0 && errno == ECONNRESET));
    // Those who were there, and those who come.
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    struct dp_rpc_client *client = open_client(fixture->server.address);
    assert_ok(get_job(client, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_client_close(client);
}

static void a_socket_path_that_is_served_is_refused(void **state)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    char address[64];
    snprintf(address, sizeof address, "unix:/tmp/dp-rpc-test-%d.sock", (int)getpid());
    struct echo_server first, second;
    assert_ok(echo_server_start(&first, address, &err), &err);
    dp_status status = echo_server_start(&second, address, &err);
    assert_refused(status, DP_CONFLICT, &err, "another server answers");
    struct dp_rpc_client *client = open_client(address);
    assert_ok(get_job(client, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_client_close(client);
    echo_server_stop(&first, 1000);
    unlink(address + 5);
    (void)state;
}

static void an_address_that_is_none_is_refused(void **state)
{
    static const char *const wrong[] = {"",
                                        "host",
                                        "host:",
                                        ":5",
                                        "h:65536",
                                        "h:x",
                                        "a b:1",
                                        "1.2.3.4:-1",
                                        "unix:",
                                        "::1:5",
                                        "h:0",
                                        "http://h:80",
                                        "h:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct dp_error err = {0};
        struct dp_rpc_client *client = NULL;
        struct dp_rpc_client_options options = {.address = wrong[i]};
        assert_refused(dp_rpc_client_open(&options, &client, &err), DP_INVALID, &err, "address");
    }
    struct dp_error err = {0};
    struct echo_server server;
    // TEST-NET-1 is nobody's address here.
    dp_status status = echo_server_start(&server, "192.0.2.1:0", &err);
    assert_refused(status, DP_UNAVAILABLE, &err, "192.0.2.1");
    (void)state;
}

static void nothing(void *context, uint64_t call, const void *bytes, size_t length)
{
    (void)context;
    (void)call;
    (void)bytes;
    (void)length;
}

static void a_method_with_two_handlers_is_refused(void **state)
{
    struct dp_error err = {0};
    struct dp_rpc_server *server = NULL;
    static const struct dp_rpc_handler handlers[] = {
        {.method = DP_METHOD_GET_JOB, .on_message = nothing},
        {.method = DP_METHOD_GET_JOB, .on_message = nothing},
    };
    struct dp_rpc_server_options options = {
        .listen = "127.0.0.1:0", .handlers = handlers, .handlers_count = 2};
    dp_status status = dp_rpc_server_new(&options, &server, &err);
    assert_refused(status, DP_INTERNAL, &err, "GetJob has two handlers");
    (void)state;
}

static void a_client_finds_a_server_that_comes_back(void **state)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct echo_server server;
    assert_ok(echo_server_start(&server, "127.0.0.1:0", &err), &err);
    char address[DP_ADDRESS_MAX];
    snprintf(address, sizeof address, "%s", server.address);
    struct dp_rpc_client *client = open_client(address);
    assert_ok(get_job(client, "job-7", LONG_MS, &bytes, &err), &err);
    echo_server_stop(&server, 0);
    // A call finds out; between calls nobody looks at the connection.
    dp_status status = get_job(client, "job-7", LONG_MS, &bytes, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, address);
    status = dp_rpc_client_connect(client, 0, &err);
    assert_refused(status, DP_UNAVAILABLE, &err, address);
    assert_ok(echo_server_start(&server, address, &err), &err);
    assert_ok(dp_rpc_client_connect(client, LONG_MS, &err), &err);
    assert_ok(get_job(client, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_client_close(client);
    echo_server_stop(&server, 1000);
    (void)state;
}

static void a_proxy_in_the_environment_is_not_asked(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    struct dp_rpc_client *client = open_client(fixture->server.address);
    assert_ok(get_job(client, "job-7", LONG_MS, &bytes, &err), &err);
    dp_rpc_client_close(client);
    unsetenv("http_proxy");
}

static void a_child_that_execs_holds_none_of_the_ports(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c",
              "ls -l /proc/$$/fd | awk '$9 > 2' | grep -q -E 'socket|eventpoll|eventfd'",
              (char *)NULL);
        _exit(99);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 1); // grep found none
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
}

static void signals_are_left_to_the_owner(void **state)
{
    struct fixture *fixture = *state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    // Sent to the process while blocked here: any thread that took it would end the process.
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    kill(getpid(), SIGUSR1);
    assert_ok(get_job(fixture->client, "job-7", LONG_MS, &bytes, &err), &err);
    int taken = 0;
    sigwait(&set, &taken);
    assert_int_equal(taken, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_brings_its_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(an_empty_answer_is_an_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(an_error_keeps_its_status_and_its_whole_text, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_unknown_method_is_refused_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_over_the_limit_is_refused_either_way, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_deadline_ends_the_call_on_both_sides, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_arrives_in_order_and_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(a_silent_stream_gives_the_caller_back_its_time, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_thousand_opened_and_cancelled_streams_leave_nothing,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_reader_costs_a_bounded_queue, setup, teardown),
        cmocka_unit_test(a_server_that_stops_ends_open_streams_with_a_hint),
        cmocka_unit_test(a_stop_without_grace_cancels_a_reader_that_does_not_read),
        cmocka_unit_test_setup_teardown(a_port_that_is_taken_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_port_outlives_a_moment_without_descriptors, setup,
                                        teardown),
        cmocka_unit_test(a_socket_path_that_is_served_is_refused),
        cmocka_unit_test(an_address_that_is_none_is_refused),
        cmocka_unit_test(a_method_with_two_handlers_is_refused),
        cmocka_unit_test(a_client_finds_a_server_that_comes_back),
        cmocka_unit_test_setup_teardown(a_proxy_in_the_environment_is_not_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(a_child_that_execs_holds_none_of_the_ports, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(signals_are_left_to_the_owner, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
