// Values that several ranks serve, out of hand-made memory: any of them can fail in any way, and
// what arrives is right or nothing is.
#include "dp_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/device.h"
#include "dp/rand.h"
#include "dp/state.h"
#include "dp/tcp.h"
#include "relay.h"

#define TOKEN 91u
#define STEP 7
#define COUNT 700000 // of the big tensor: several answers
#define SMALL 10
#define SERVERS 3

static float value_of(int64_t index)
{
    return (float)(index % 8191) * 0.25f - 7;
}

struct serving {
    struct dp_device *device;
    float *values; // [COUNT]
    struct dp_state states[SERVERS];
    struct dp_state_server *servers[SERVERS];
    pthread_t threads[SERVERS];
    char addresses[SERVERS][DP_ADDRESS_MAX];
};

static void add(struct dp_state *state, const char *own, dp_archive_kind kind, int64_t begin,
                int64_t end, int64_t count, const float *values)
{
    state->parts = dp_realloc(state->parts, (size_t)state->count + 1, sizeof state->parts[0]);
    struct dp_state_part *part = &state->parts[state->count++];
    *part = (struct dp_state_part){.kind = kind,
                                   .dtype = DP_DTYPE_F32,
                                   .begin = begin,
                                   .end = end,
                                   .count = count,
                                   .values = values + begin};
    DP_COPY_TEXT(part->own, own);
}

static void *run_server(void *argument)
{
    dp_state_server_run(argument);
    return NULL;
}

static void serve(struct serving *serving, int32_t i)
{
    struct dp_state *state = &serving->states[i];
    struct dp_error err;
    state->device = serving->device;
    state->meta = (struct dp_archive_meta){.is_trained = true,
                                           .seed = 3,
                                           .step = STEP,
                                           .next_sample = 112,
                                           .corpus_hash = 99,
                                           .model = {.layers = 2, .hidden = 8}};
    assert_ok(dp_state_server_open(state, "127.0.0.1", i, TOKEN, serving->addresses[i],
                                   &serving->servers[i], &err),
              &err);
    DP_CHECK(pthread_create(&serving->threads[i], NULL, run_server, serving->servers[i]) == 0);
}

// All have the weights; of the first moments each has a third, and the next one's as well.
static void set_up(struct serving *serving)
{
    struct dp_error err;
    *serving = (struct serving){0};
    assert_ok(dp_device_open_cpu(DP_F32, &serving->device, &err), &err);
    serving->values = dp_new_array(float, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        serving->values[i] = value_of(i);
    }
    for (int32_t i = 0; i < SERVERS; i++) {
        struct dp_state *state = &serving->states[i];
        add(state, "big", DP_ARCHIVE_WEIGHT, 0, COUNT, COUNT, serving->values);
        add(state, "small", DP_ARCHIVE_WEIGHT, 0, SMALL, SMALL, serving->values);
        for (int32_t k = 0; k < 2; k++) {
            const int64_t third = (i + k) % SERVERS;
            add(state, "big", DP_ARCHIVE_M, third * COUNT / SERVERS, (third + 1) * COUNT / SERVERS,
                COUNT, serving->values);
        }
        serve(serving, i);
    }
}

static void end_server(struct serving *serving, int32_t i)
{
    if (serving->servers[i] != NULL) {
        dp_state_server_close(serving->servers[i]);
        pthread_join(serving->threads[i], NULL);
        dp_state_server_free(serving->servers[i]);
        serving->servers[i] = NULL;
    }
}

static void tear_down(struct serving *serving)
{
    for (int32_t i = 0; i < SERVERS; i++) {
        end_server(serving, i);
        dp_state_deinit(&serving->states[i]);
    }
    free(serving->values);
    dp_device_close(serving->device);
}

static dp_status open_reader(const struct dp_state_address *sources, int32_t count, uint64_t token,
                             struct dp_state_reader **ret_reader, struct dp_error *err)
{
    const struct dp_state_reader_config config = {.sources = sources,
                                                  .count = count,
                                                  .rank = 1,
                                                  .token = token,
                                                  .step = STEP,
                                                  .deadline_ns =
                                                      dp_clock_monotonic_ns() + 30 * DP_NS_PER_S,
                                                  .silent_ms = 300};
    return dp_state_reader_open(&config, ret_reader, err);
}

static void sources_of(const struct serving *serving, struct dp_state_address ret_sources[SERVERS])
{
    for (int32_t i = 0; i < SERVERS; i++) {
        ret_sources[i] = (struct dp_state_address){i, serving->addresses[i]};
    }
}

static dp_status read_big(struct dp_state_reader *reader, dp_archive_kind kind,
                          struct dp_error *err)
{
    DP_AUTO_FREE float *values = dp_new_array(float, COUNT);
    const struct dp_tensor_source source = dp_state_reader_source(reader);
    dp_status status =
        kind == DP_ARCHIVE_WEIGHT
            ? source.read_weight(source.context, "big", COUNT / 100, 100, DP_DTYPE_F32, values, err)
            : source.read_moments(source.context, "big", kind, COUNT, DP_DTYPE_F32, values, err);
    for (int64_t i = 0; i < COUNT && status == DP_OK; i++) {
        if (values[i] != value_of(i)) {
            fail_msg("value %d is %g", (int)i, (double)values[i]);
        }
    }
    return status;
}

static void values_come_from_all_that_have_them(void **state)
{
    (void)state;
    struct serving serving;
    struct dp_state_address sources[SERVERS];
    struct dp_state_reader *reader;
    struct dp_error err = {0};
    set_up(&serving);
    sources_of(&serving, sources);
    assert_ok(open_reader(sources, SERVERS, TOKEN, &reader, &err), &err);
    assert_int_equal(dp_state_reader_meta(reader)->next_sample, 112);
    assert_ok(read_big(reader, DP_ARCHIVE_WEIGHT, &err), &err);
    assert_ok(read_big(reader, DP_ARCHIVE_M, &err), &err);
    const struct dp_tensor_source source = dp_state_reader_source(reader);
    assert_true(source.has(source.context, "big", DP_ARCHIVE_M, COUNT));
    assert_false(source.has(source.context, "big", DP_ARCHIVE_V, COUNT));
    assert_false(source.has(source.context, "big", DP_ARCHIVE_WEIGHT, COUNT + 1));
    assert_false(source.has(source.context, "bigger", DP_ARCHIVE_WEIGHT, COUNT));
    double wide[SMALL];
    assert_ok(source.read_weight(source.context, "small", 1, SMALL, DP_DTYPE_F64, wide, &err),
              &err);
    assert_true(wide[3] == (double)value_of(3));
    struct dp_state_reader_stats stats;
    dp_state_reader_stats(reader, &stats);
    assert_int_equal(stats.bytes, 2 * COUNT * sizeof(float) + SMALL * sizeof(float));
    assert_int_equal(stats.lost, 0);
    dp_state_reader_free(reader);
    tear_down(&serving);
}

// One of the ways is bad from some byte on: what it did not bring comes from the others.
static void a_source_that_fails_in_the_midst_is_left_out(void **state)
{
    (void)state;
    struct serving serving;
    struct dp_rand rand;
    set_up(&serving);
    dp_rand_init(&rand, 4);
    const long runs = dp_fuzz_runs(15);
    for (long i = 0; i < runs; i++) {
        const relay_fault fault = (relay_fault)(i % 3);
        struct dp_state_address sources[SERVERS];
        struct dp_state_reader *reader;
        struct dp_error err = {0};
        struct relay relay;
        sources_of(&serving, sources);
        // The hello and the table are within the first part of it.
        const size_t after = dp_rand_below(&rand, i % 2 == 0 ? 1200 : COUNT);
        relay_start(&relay, serving.addresses[0], fault, after);
        sources[0].address = relay.address;
        assert_ok(open_reader(sources, SERVERS, TOKEN, &reader, &err), &err);
        assert_ok(read_big(reader, DP_ARCHIVE_WEIGHT, &err), &err);
        assert_ok(read_big(reader, DP_ARCHIVE_M, &err), &err);
        struct dp_state_reader_stats stats;
        dp_state_reader_stats(reader, &stats);
        if (stats.lost != 1 && atomic_load(&relay.passed) > after) {
            fail_msg("fault %d after %zu of %zu bytes was not noticed", (int)fault, after,
                     atomic_load(&relay.passed));
        }
        dp_state_reader_free(reader);
        relay_stop(&relay);
    }
    tear_down(&serving);
}

static int dial(const char *address)
{
    struct sockaddr_storage to = {0};
    socklen_t length;
    struct dp_error err;
    assert_ok(dp_tcp_resolve(address, &to, &length, &err), &err);
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, length) == 0);
    return fd;
}

// A socket that nobody accepts from; with one connection waiting its queue is full, and what else
// knocks is not answered at all.
static int listen_alone(char address[DP_ADDRESS_MAX])
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&own, length) == 0 && listen(fd, 0) == 0 &&
                getsockname(fd, (struct sockaddr *)&own, &length) == 0);
    snprintf(address, DP_ADDRESS_MAX, "127.0.0.1:%d", ntohs(own.sin_port));
    return fd;
}

static void sources_that_never_say_a_word_take_no_others_along(void **state)
{
    (void)state;
    struct serving serving;
    set_up(&serving);
    // 0: it is connected to by the kernel; 1: not even that.
    for (int full = 0; full < 2; full++) {
        char address[DP_ADDRESS_MAX];
        struct dp_state_address sources[SERVERS];
        struct dp_state_reader *reader;
        struct dp_error err = {0};
        const int silent = listen_alone(address), first = full ? dial(address) : -1;
        sources_of(&serving, sources);
        sources[0].address = address;
        const struct dp_state_reader_config config = {.sources = sources,
                                                      .count = SERVERS,
                                                      .token = TOKEN,
                                                      .step = STEP,
                                                      .deadline_ns = dp_clock_monotonic_ns() +
                                                                     300 * DP_NS_PER_MS,
                                                      .silent_ms = 200};
        assert_ok(dp_state_reader_open(&config, &reader, &err), &err);
        assert_non_null(strstr(dp_state_reader_lost(reader), "rank 0"));
        struct dp_state_reader_stats stats;
        dp_state_reader_stats(reader, &stats);
        assert_int_equal(stats.sources, SERVERS - 1);
        assert_ok(read_big(reader, DP_ARCHIVE_M, &err), &err);
        dp_state_reader_free(reader);
        close(silent);
        if (full) {
            close(first);
        }
    }
    tear_down(&serving);
}

static void what_the_last_source_takes_along_is_told(void **state)
{
    (void)state;
    struct serving serving;
    struct dp_state_address sources[SERVERS];
    struct dp_state_reader *reader;
    struct dp_error err = {0};
    set_up(&serving);
    sources_of(&serving, sources);
    assert_ok(open_reader(sources, SERVERS, TOKEN, &reader, &err), &err);
    end_server(&serving, 0);
    assert_ok(read_big(reader, DP_ARCHIVE_M, &err), &err); // the others have its thirds
    end_server(&serving, 1);
    assert_ok(read_big(reader, DP_ARCHIVE_WEIGHT, &err), &err);
    assert_int_equal(read_big(reader, DP_ARCHIVE_M, &err), DP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "moments of big"));
    assert_non_null(strstr(err.message, "rank 1"));
    dp_state_reader_free(reader);
    // Those that are not there at all.
    assert_ok(open_reader(sources, SERVERS, TOKEN, &reader, &err), &err);
    assert_non_null(strstr(dp_state_reader_lost(reader), "rank 0"));
    dp_state_reader_free(reader);
    end_server(&serving, 2);
    assert_int_equal(open_reader(sources, SERVERS, TOKEN, &reader, &err), DP_UNAVAILABLE);
    tear_down(&serving);
}

static void put_u32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value); // of machines as those that run here
}

static void put_hello(unsigned char *bytes)
{
    const uint64_t token = TOKEN;
    put_u32(bytes, 0x54535044u);
    put_u32(bytes + 4, 1);
    memcpy(bytes + 8, &token, sizeof token);
}

// True: the server has closed the connection without a word.
static bool is_dropped(int fd)
{
    unsigned char bytes[64];
    return recv(fd, bytes, sizeof bytes, 0) <= 0;
}

static void strangers_are_dropped_and_harm_nobody(void **state)
{
    (void)state;
    struct serving serving;
    struct dp_state_address sources[SERVERS];
    struct dp_state_reader *reader;
    struct dp_error err = {0};
    set_up(&serving);
    sources_of(&serving, sources);
    assert_int_equal(open_reader(sources, SERVERS, TOKEN + 1, &reader, &err), DP_UNAVAILABLE);
    const int silent = dial(serving.addresses[0]);
    struct dp_rand rand;
    dp_rand_init(&rand, 8);
    const long runs = dp_fuzz_runs(200);
    for (long i = 0; i < runs; i++) {
        // A hello that is right but for one bit of its first 24 bytes is none; one that is right
        // may ask for what is not there.
        unsigned char bytes[64] = {0};
        put_hello(bytes);
        const bool is_known = i % 2 == 1;
        const size_t at = dp_rand_below(&rand, 24);
        if (!is_known) {
            bytes[at == 16 ? 0 : at >= 16 && at < 20 ? 4 : at] ^= (unsigned char)(1 << (i % 8));
        }
        for (size_t k = 32; k < sizeof bytes; k++) {
            bytes[k] = (unsigned char)dp_rand_below(&rand, 256);
        }
        put_u32(bytes + 32, (uint32_t)dp_rand_below(&rand, 2) * 2); // no question, or values
        const int fd = dial(serving.addresses[0]);
        assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
        unsigned char hello[32];
        if (is_known) {
            assert_int_equal(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
        }
        assert_true(is_dropped(fd));
        close(fd);
    }
    assert_ok(open_reader(sources, SERVERS, TOKEN, &reader, &err), &err);
    assert_ok(read_big(reader, DP_ARCHIVE_WEIGHT, &err), &err);
    assert_string_equal(dp_state_reader_lost(reader), "");
    dp_state_reader_free(reader);
    close(silent);
    tear_down(&serving);
}

// Says hello on a connection and is answered.
static void greet(int fd)
{
    unsigned char bytes[32] = {0};
    put_hello(bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_int_equal(recv(fd, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
}

// A socket that waits no longer than a test may.
static int make_socket(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval most = {.tv_sec = 20};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), 0);
    return fd;
}

static void join(int fd, const char *address)
{
    struct sockaddr_storage to = {0};
    socklen_t length;
    struct dp_error err;
    assert_ok(dp_tcp_resolve(address, &to, &length, &err), &err);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, length), 0);
}

// Crowds before and behind a reader that has not said hello yet: those that came first go.
static void a_crowd_of_strangers_keeps_no_reader_out(void **state)
{
    (void)state;
    enum { BEFORE = DP_STATE_READERS_MAX, BEHIND = DP_STATE_READERS_MAX - 1 };
    static int strangers[BEFORE + BEHIND];
    struct serving serving;
    struct rlimit limit;
    dp_raise_file_limit();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * DP_ARRAY_LENGTH(strangers) + 100) {
        skip();
    }
    set_up(&serving);
    const int fd = make_socket();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strangers); i++) {
        if (i == BEFORE) {
            join(fd, serving.addresses[0]);
        }
        strangers[i] = make_socket();
        join(strangers[i], serving.addresses[0]);
    }
    assert_true(is_dropped(strangers[BEHIND])); // by then all have been met
    greet(fd);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strangers); i++) {
        close(strangers[i]);
    }
    close(fd);
    tear_down(&serving);
}

static void a_rank_without_descriptors_makes_strangers_go(void **state)
{
    (void)state;
    int strangers[64];
    struct serving serving;
    struct rlimit limit, low;
    set_up(&serving);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strangers); i++) {
        strangers[i] = make_socket();
    }
    const int fd = make_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)fd + 9; // eight connections
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strangers); i++) {
        join(strangers[i], serving.addresses[0]);
    }
    join(fd, serving.addresses[0]);
    greet(fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strangers); i++) {
        close(strangers[i]);
    }
    close(fd);
    tear_down(&serving);
}

// The first value behind what there is, more than an answer may have, none, and sums that wrap.
static void questions_for_what_is_not_there_are_not_answered(void **state)
{
    (void)state;
    static const struct {
        uint32_t question, part;
        uint64_t first, count;
    } questions[] = {{2, 0, COUNT - 1, 2},  {2, 0, COUNT, 1},
                     {2, 1, 0, SMALL + 1},  {2, 0, 0, (1u << 20) / sizeof(float) + 1},
                     {2, 0, 0, 0},          {2, 0, UINT64_MAX, 2},
                     {2, 0, 2, UINT64_MAX}, {2, 4, 0, 1},
                     {3, 0, 0, 1}};
    struct serving serving;
    set_up(&serving);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(questions); i++) {
        unsigned char bytes[64] = {0}, hello[32];
        put_hello(bytes);
        put_u32(bytes + 32, questions[i].question);
        put_u32(bytes + 36, questions[i].part);
        memcpy(bytes + 40, &questions[i].first, sizeof questions[i].first);
        memcpy(bytes + 48, &questions[i].count, sizeof questions[i].count);
        const int fd = dial(serving.addresses[0]);
        assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
        assert_int_equal(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
        if (!is_dropped(fd)) {
            fail_msg("question %zu was answered", i);
        }
        close(fd);
    }
    tear_down(&serving);
}

// Tables that are cut off or changed anywhere are refused, or say what a table can say.
static void tables_are_checked(void **state)
{
    (void)state;
    struct serving serving;
    struct dp_rand rand;
    set_up(&serving);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf table = {0};
    dp_state_write_table(&serving.states[0], &table);
    struct dp_state parsed;
    struct dp_error err = {0};
    assert_ok(dp_state_parse_table(table.bytes, table.length, &parsed, &err), &err);
    assert_int_equal(parsed.count, serving.states[0].count);
    assert_string_equal(parsed.parts[0].own, "big");
    assert_int_equal(parsed.parts[3].begin, COUNT / SERVERS);
    dp_state_deinit(&parsed);
    for (size_t length = 0; length < table.length; length++) {
        DP_AUTO_FREE char *cut = dp_memdup(table.bytes, length); // of its length, for the sanitizer
        assert_int_not_equal(dp_state_parse_table(cut, length, &parsed, &err), DP_OK);
    }
    dp_buf_append(&table, "", 1); // and one with a byte behind it
    assert_int_equal(dp_state_parse_table(table.bytes, table.length, &parsed, &err), DP_INVALID);
    table.length--;
    dp_rand_init(&rand, 5);
    for (long i = 0; i < dp_fuzz_runs(2000); i++) {
        DP_AUTO_FREE char *changed = dp_memdup(table.bytes, table.length);
        changed[dp_rand_below(&rand, table.length)] ^= (char)(1 << (i % 8));
        if (dp_state_parse_table(changed, table.length, &parsed, &err) == DP_OK) {
            for (int64_t k = 0; k < parsed.count; k++) {
                const struct dp_state_part *part = &parsed.parts[k];
                assert_true(part->begin >= 0 && part->begin < part->end &&
                            part->end <= part->count);
            }
            dp_state_deinit(&parsed);
        }
    }
    tear_down(&serving);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_from_all_that_have_them),
        cmocka_unit_test(a_source_that_fails_in_the_midst_is_left_out),
        cmocka_unit_test(sources_that_never_say_a_word_take_no_others_along),
        cmocka_unit_test(what_the_last_source_takes_along_is_told),
        cmocka_unit_test(strangers_are_dropped_and_harm_nobody),
        cmocka_unit_test(a_crowd_of_strangers_keeps_no_reader_out),
        cmocka_unit_test(a_rank_without_descriptors_makes_strangers_go),
        cmocka_unit_test(questions_for_what_is_not_there_are_not_answered),
        cmocka_unit_test(tables_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
