// Frames and their payloads: round trips over real sockets, limits, and bytes that nobody sent.
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/link.h"
#include "dp/rand.h"
#include "dp_test.h"

struct pair {
    struct dp_link a, b;
};

static struct pair pair_open(size_t out_bytes_max)
{
    int fds[2];
    struct pair pair;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    dp_link_init(&pair.a, fds[0], out_bytes_max);
    dp_link_init(&pair.b, fds[1], out_bytes_max);
    return pair;
}

static void pair_close(struct pair *pair)
{
    dp_link_deinit(&pair->a);
    dp_link_deinit(&pair->b);
}

static void a_frame_arrives_as_it_was_sent(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    struct dp_link_frame sent = {DP_LINK_REPORT, DP_LINK_SLOT_STEP, 7, "abc", 3}, got;
    assert_ok(dp_link_send(&pair.a, &sent, 1000, &err), &err);
    assert_ok(dp_link_recv(&pair.b, 1000, &got, &err), &err);
    assert_int_equal(got.type, DP_LINK_REPORT);
    assert_int_equal(got.slot, DP_LINK_SLOT_STEP);
    assert_int_equal(got.rank, 7);
    assert_int_equal(got.length, 3);
    assert_memory_equal(got.payload, "abc", 3);
    pair_close(&pair);
}

static void a_frame_has_twelve_bytes_of_header_in_host_order(void **state)
{
    (void)state;
    struct dp_buf buf = {0};
    struct dp_link_frame frame = {DP_LINK_ORDER, DP_LINK_ORDER_START, 0x01020304, "xy", 2};
    dp_link_frame_write(&frame, &buf);
    assert_int_equal(buf.length, 14);
    uint32_t length, rank;
    uint16_t type, slot;
    memcpy(&length, buf.bytes, 4);
    memcpy(&type, buf.bytes + 4, 2);
    memcpy(&slot, buf.bytes + 6, 2);
    memcpy(&rank, buf.bytes + 8, 4);
    assert_int_equal(length, 2);
    assert_int_equal(type, DP_LINK_ORDER);
    assert_int_equal(slot, 1);
    assert_int_equal(rank, 0x01020304);
    assert_memory_equal(buf.bytes + 12, "xy", 2);
    dp_buf_deinit(&buf);
}

static void frames_that_come_one_byte_at_a_time_are_whole(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    struct dp_buf bytes = {0};
    for (uint32_t i = 0; i < 5; i++) {
        dp_link_frame_write(&(struct dp_link_frame){DP_LINK_REPORT, 1, i, "payload", i}, &bytes);
    }
    uint32_t seen = 0;
    for (size_t i = 0; i < bytes.length; i++) {
        assert_int_equal(write(pair.a.fd, bytes.bytes + i, 1), 1);
        assert_ok(dp_link_read(&pair.b, &err), &err);
        struct dp_link_frame frame;
        assert_ok(dp_link_next(&pair.b, &frame, &err), &err);
        if (frame.type != DP_LINK_NONE) {
            assert_int_equal(frame.rank, seen);
            assert_int_equal(frame.length, seen);
            seen++;
        }
    }
    assert_int_equal(seen, 5);
    dp_buf_deinit(&bytes);
    pair_close(&pair);
}

static void a_header_that_claims_too_much_ends_the_connection_without_memory(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    uint32_t header[3] = {UINT32_MAX, DP_LINK_REPORT, 0};
    assert_int_equal(write(pair.a.fd, header, sizeof header), sizeof header);
    struct dp_link_frame frame;
    assert_refused(dp_link_recv(&pair.b, 1000, &frame, &err), DP_INVALID, &err, "limit");
    assert_true(pair.b.in.capacity < 4096);
    pair_close(&pair);
}

static void an_unknown_type_ends_the_connection(void **state)
{
    (void)state;
    struct dp_error err = {0};
    for (uint32_t type = DP_LINK_TYPE_COUNT; type < 300; type += 7) {
        struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
        uint32_t header[3] = {0, type, 0};
        assert_int_equal(write(pair.a.fd, header, sizeof header), sizeof header);
        struct dp_link_frame frame;
        assert_refused(dp_link_recv(&pair.b, 1000, &frame, &err), DP_INVALID, &err, "unknown type");
        pair_close(&pair);
    }
}

static void frames_before_the_end_are_handed_out_then_the_end(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    struct dp_link_frame sent = {DP_LINK_REPORT, DP_LINK_SLOT_FINISHED, 1, "bye", 3}, got;
    assert_ok(dp_link_send(&pair.a, &sent, 1000, &err), &err);
    dp_link_deinit(&pair.a);
    assert_ok(dp_link_recv(&pair.b, 1000, &got, &err), &err);
    assert_int_equal(got.type, DP_LINK_REPORT);
    assert_refused(dp_link_recv(&pair.b, 1000, &got, &err), DP_UNAVAILABLE, &err, "closed");
    pair_close(&pair);
}

static void sending_to_a_peer_that_is_gone_fails_without_a_signal(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    dp_link_deinit(&pair.b);
    struct dp_link_frame frame = {DP_LINK_REPORT, 0, 0, "x", 1};
    assert_refused(dp_link_send(&pair.a, &frame, 1000, &err), DP_UNAVAILABLE, &err, "write");
    pair_close(&pair);
}

static void a_peer_that_never_reads_costs_a_bounded_queue(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(100000);
    static const char block[10000];
    dp_status status = DP_OK;
    int sent = 0;
    for (; status == DP_OK && sent < 10000; sent++) {
        status = dp_link_queue(
            &pair.a, &(struct dp_link_frame){DP_LINK_REPORT, 0, 0, block, sizeof block}, &err);
    }
    assert_refused(status, DP_TOO_LARGE, &err, "does not read");
    assert_true(pair.a.out.length - pair.a.out_at <= 100000);
    // What was accepted arrives once the peer reads.
    int arrived = 0;
    struct dp_link_frame frame;
    while (arrived < sent - 1) {
        assert_ok(dp_link_flush(&pair.a, &err), &err);
        assert_ok(dp_link_recv(&pair.b, 1000, &frame, &err), &err);
        arrived++;
    }
    assert_false(dp_link_wants_write(&pair.a));
    pair_close(&pair);
}

static void a_report_over_the_limit_is_refused_by_the_sender(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    char *large = dp_alloc(DP_FRAME_BYTES_MAX + 1, 1);
    assert_refused(
        dp_link_rank_report(&pair.a, 0, DP_LINK_SLOT_STEP, large, DP_FRAME_BYTES_MAX + 1, &err),
        DP_TOO_LARGE, &err, "limit");
    free(large);
    pair_close(&pair);
}

static void a_receive_that_times_out_keeps_half_a_frame(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct pair pair = pair_open(DP_LINK_OUT_BYTES_MAX);
    struct dp_buf bytes = {0};
    const uint8_t *order;
    size_t length;
    dp_link_frame_write(&(struct dp_link_frame){DP_LINK_ORDER, 0, 0, "order", 5}, &bytes);
    assert_int_equal(write(pair.a.fd, bytes.bytes, 9), 9);
    assert_refused(dp_link_rank_order(&pair.b, 0, &order, &length, &err), DP_TIMEOUT, &err, "time");
    assert_int_equal(write(pair.a.fd, bytes.bytes + 9, bytes.length - 9), bytes.length - 9);
    assert_ok(dp_link_rank_order(&pair.b, 1000, &order, &length, &err), &err);
    assert_int_equal(length, 5);
    assert_memory_equal(order, "order", 5);
    dp_buf_deinit(&bytes);
    pair_close(&pair);
}

static struct dp_link_frame frame_of(const struct dp_buf *buf)
{
    return (struct dp_link_frame){DP_LINK_HELLO, 0, 0, buf->bytes, buf->length};
}

static void a_spawn_travels_whole(void **state)
{
    (void)state;
    struct dp_error err = {0};
    char *arguments[] = {(char *)"/bin/rank", (char *)"--rank", (char *)"", NULL};
    char *environment[] = {(char *)"A=1", NULL};
    struct dp_link_spawn sent = {arguments, environment, "\0order\0", 7}, got;
    struct dp_buf buf = {0};
    dp_link_spawn_write(&sent, &buf);
    struct dp_link_frame frame = frame_of(&buf);
    assert_ok(dp_link_spawn_read(&frame, &got, &err), &err);
    assert_string_equal(got.arguments[0], "/bin/rank");
    assert_string_equal(got.arguments[2], "");
    assert_null(got.arguments[3]);
    assert_string_equal(got.environment[0], "A=1");
    assert_null(got.environment[1]);
    assert_int_equal(got.order_length, 7);
    assert_memory_equal(got.order, "\0order\0", 7);
    dp_link_spawn_deinit(&got);
    dp_buf_deinit(&buf);
}

static void an_exit_travels_whole(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_link_exited sent = {.pid = 1ll << 40,
                                  .status = -3,
                                  .signal = 9,
                                  .stop = DP_LINK_STOP_KEEPER,
                                  .log_dropped = 17,
                                  .error = "why"},
                          got;
    struct dp_buf buf = {0};
    dp_link_exited_write(&sent, &buf);
    struct dp_link_frame frame = frame_of(&buf);
    assert_ok(dp_link_exited_read(&frame, &got, &err), &err);
    assert_true(got.pid == sent.pid && got.status == -3 && got.signal == 9);
    assert_int_equal(got.log_dropped, 17);
    assert_int_equal(got.stop, DP_LINK_STOP_KEEPER);
    assert_string_equal(got.error, "why");
    // Who told it to end is one of those that are known.
    dp_buf_clear(&buf);
    sent.stop = DP_LINK_STOP_COUNT;
    dp_link_exited_write(&sent, &buf);
    frame = frame_of(&buf);
    assert_refused(dp_link_exited_read(&frame, &got, &err), DP_INVALID, &err, "malformed");
    dp_buf_deinit(&buf);
}

static void read_all_ways(const struct dp_link_frame *frame)
{
    struct dp_link_hello hello;
    struct dp_link_spawn spawn;
    struct dp_link_spawned spawned;
    struct dp_link_exited exited;
    uint32_t number;
    (void)dp_link_hello_read(frame, &hello, NULL);
    (void)dp_link_spawned_read(frame, &spawned, NULL);
    (void)dp_link_exited_read(frame, &exited, NULL);
    (void)dp_link_u32_read(frame, &number, NULL);
    if (dp_link_spawn_read(frame, &spawn, NULL) == DP_OK) {
        assert_non_null(spawn.arguments[0]);
        dp_link_spawn_deinit(&spawn);
    }
}

// Under the sanitizers a read outside the payload or a leak fails the test.
static void cut_and_changed_payloads_are_refused_or_read_within_bounds(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 4711);
    char *arguments[] = {(char *)"/bin/rank", (char *)"--rank", NULL};
    char *environment[] = {(char *)"A=1", (char *)"B=2", NULL};
    struct dp_link_spawn spawn = {arguments, environment, "order", 5};
    struct dp_buf whole = {0};
    dp_link_spawn_write(&spawn, &whole);
    for (long round = 0; round < dp_fuzz_runs(20000); round++) {
        size_t length = dp_rand_below(&rand, whole.length + 1);
        // Exactly as large as it claims, so that one byte too far is caught.
        char *bytes = dp_memdup(whole.bytes, length);
        for (uint64_t flips = dp_rand_below(&rand, 4); flips > 0 && length > 0; flips--) {
            bytes[dp_rand_below(&rand, length)] = (char)dp_rand_u64(&rand);
        }
        struct dp_link_frame frame = {DP_LINK_SPAWN, 0, 0, bytes, length};
        read_all_ways(&frame);
        free(bytes);
    }
    dp_buf_deinit(&whole);
}

static void random_bytes_on_a_connection_never_do_more_than_end_it(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 12);
    for (int round = 0; round < 3000; round++) {
        struct dp_link link = {.fd = -1};
        for (int i = 0; i < 64; i++) {
            // Small numbers are often valid headers.
            uint64_t word =
                dp_rand_below(&rand, 3) == 0 ? dp_rand_u64(&rand) : dp_rand_below(&rand, 16);
            dp_buf_append(&link.in, &word, 1 + dp_rand_below(&rand, 8));
        }
        struct dp_link_frame frame = {.type = DP_LINK_HELLO};
        while (frame.type != DP_LINK_NONE && dp_link_next(&link, &frame, NULL) == DP_OK) {
            if (frame.type != DP_LINK_NONE) {
                read_all_ways(&frame);
            }
        }
        dp_link_deinit(&link);
    }
}

static void a_socket_works_below_a_path_longer_than_an_address(void **state)
{
    (void)state;
    struct dp_error err = {0};
    char base[] = "/tmp/dp-link-XXXXXX";
    assert_non_null(mkdtemp(base));
    DP_AUTO_FREE char *deep = dp_asprintf("%s/%0120d", base, 7);
    assert_int_equal(mkdir(deep, 0700), 0);
    int listener, client;
    assert_ok(dp_link_listen(deep, "s", &listener, &err), &err);
    DP_AUTO_FREE char *path = dp_asprintf("%s/s", deep);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_ok(dp_link_connect(deep, "s", &client, &err), &err);
    close(client);
    close(listener);
    // The file outlives its listener and does not hinder the next.
    assert_refused(dp_link_connect(deep, "s", &client, &err), DP_UNAVAILABLE, &err, "refused");
    assert_ok(dp_link_listen(deep, "s", &listener, &err), &err);
    close(listener);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(deep), 0);
    assert_int_equal(rmdir(base), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_arrives_as_it_was_sent),
        cmocka_unit_test(a_frame_has_twelve_bytes_of_header_in_host_order),
        cmocka_unit_test(frames_that_come_one_byte_at_a_time_are_whole),
        cmocka_unit_test(a_header_that_claims_too_much_ends_the_connection_without_memory),
        cmocka_unit_test(an_unknown_type_ends_the_connection),
        cmocka_unit_test(frames_before_the_end_are_handed_out_then_the_end),
        cmocka_unit_test(sending_to_a_peer_that_is_gone_fails_without_a_signal),
        cmocka_unit_test(a_peer_that_never_reads_costs_a_bounded_queue),
        cmocka_unit_test(a_report_over_the_limit_is_refused_by_the_sender),
        cmocka_unit_test(a_receive_that_times_out_keeps_half_a_frame),
        cmocka_unit_test(a_spawn_travels_whole),
        cmocka_unit_test(an_exit_travels_whole),
        cmocka_unit_test(cut_and_changed_payloads_are_refused_or_read_within_bounds),
        cmocka_unit_test(random_bytes_on_a_connection_never_do_more_than_end_it),
        cmocka_unit_test(a_socket_works_below_a_path_longer_than_an_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
