// The verbs transport on fake devices: choices, registrations, credits, and single accidents.
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/rand.h"
#include "dp/window.h"
#include "verbs_region.h"
#include "verbs_world.h"

extern char **environ;

#define ROCE2(...)                                                                                 \
    {                                                                                              \
        {__VA_ARGS__}, DP_GID_ROCE_V2                                                              \
    }
#define ROCE1(...)                                                                                 \
    {                                                                                              \
        {__VA_ARGS__}, DP_GID_ROCE_V1                                                              \
    }
#define IB(...)                                                                                    \
    {                                                                                              \
        {__VA_ARGS__}, DP_GID_IB                                                                   \
    }
#define V4(a, b, c, d) [10] = 0xff, 0xff, a, b, c, d
#define LOCAL 0xfe, 0x80, [15] = 1
#define ULA 0xfd, 0x12, [15] = 7
#define NONE                                                                                       \
    {                                                                                              \
        {0}, DP_GID_UNREADABLE                                                                     \
    }

// Tables as they are found, and the entry that works there.
static void the_gid_that_peers_can_reach_is_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        bool is_ethernet;
        int count, chosen;
        struct dp_gid gids[6];
    } cases[] = {
        {"software RoCE: empty entries cannot be read",
         true,
         6,
         1,
         {ROCE2(LOCAL), ROCE2(V4(10, 0, 0, 1)), NONE, NONE, NONE, NONE}},
        {"each address as version 1 and 2",
         true,
         4,
         3,
         {ROCE1(LOCAL), ROCE2(LOCAL), ROCE1(V4(10, 1, 2, 3)), ROCE2(V4(10, 1, 2, 3))}},
        {"version 2 of IPv6 before version 1 of IPv4",
         true,
         2,
         1,
         {ROCE1(V4(10, 1, 2, 3)), ROCE2(ULA)}},
        {"IPv6 alone, private", true, 3, 2, {ROCE1(LOCAL), ROCE2(LOCAL), ROCE2(ULA)}},
        {"the first cannot be read in this container",
         true,
         3,
         2,
         {NONE, NONE, ROCE2(V4(192, 168, 0, 9))}},
        {"IPv4 that nobody gave is link-local",
         true,
         3,
         2,
         {ROCE2(LOCAL), ROCE2(V4(169, 254, 7, 7)), ROCE2(ULA)}},
        {"link-local is better than nothing", true, 2, 1, {NONE, ROCE2(LOCAL)}},
        {"readable, but all zero", true, 2, -1, {ROCE2(0), ROCE2(0)}},
        {"the lowest of equals",
         true,
         3,
         1,
         {ROCE2(LOCAL), ROCE2(V4(10, 0, 0, 1)), ROCE2(V4(10, 0, 0, 2))}},
        {"nothing can be read", true, 2, -1, {NONE, NONE}},
        {"no table", true, 0, -1, {NONE}},
        {"InfiniBand", false, 2, 0, {IB(LOCAL), IB(0)}},
        {"InfiniBand with a routable subnet",
         false,
         2,
         1,
         {IB(LOCAL), IB(0xfe, 0x80, 0, 0, 0x12, 0x34)}},
        {"InfiniBand of one entry", false, 1, 0, {IB(LOCAL)}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int chosen = dp_verbs_choose_gid(cases[i].is_ethernet, cases[i].gids, cases[i].count);
        if (chosen != cases[i].chosen) {
            fail_msg("%s: %d", cases[i].what, chosen);
        }
    }
}

static void refuse(const struct fake_device *devices, int count,
                   const struct dp_verbs_config *config, dp_status wanted, const char *part)
{
    struct dp_error err = {0};
    struct dp_transport *end;
    char address[DP_ADDRESS_MAX];
    struct dp_verbs_config own = config != NULL ? *config : (struct dp_verbs_config){0};
    own.library = &fake_verbs_library;
    fake_verbs_start(NULL, devices, count);
    assert_refused(dp_transport_verbs_listen("127.0.0.1", 0, 2, 1, &own, address, &end, &err),
                   wanted, &err, part);
    struct fake_verbs_counts counts;
    fake_verbs_stop(&counts);
    assert_int_equal(counts.violations, 0);
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    refuse(NULL, 0, NULL, DP_UNAVAILABLE, "no RDMA device");
    refuse(NULL, 2, &(struct dp_verbs_config){.device = "mlx5_9"}, DP_UNAVAILABLE,
           "no RDMA device mlx5_9 among its 2");
    struct fake_device down = {.is_down = true};
    refuse(&down, 1, NULL, DP_UNAVAILABLE, "no active port");
    struct fake_device bare = {.gids = {{{0}, DP_GID_ROCE_V2}}};
    refuse(&bare, 1, NULL, DP_UNAVAILABLE, "needs an address");
    refuse(NULL, 1, &(struct dp_verbs_config){.gid_index = 4}, DP_UNAVAILABLE, "GID 3 of fake0");
    refuse(NULL, 1, &(struct dp_verbs_config){.depth = 12}, DP_INVALID, "power of two");
    refuse(NULL, 1, &(struct dp_verbs_config){.slot_bytes = 9000, .staging_bytes = 9000},
           DP_INVALID, "four times");
}

// Whoever asks for verbs alone where there are none has made a mistake; no peer is lost.
static void verbs_that_a_job_asks_for_in_vain_are_told_with_the_key(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_transport *end;
    char address[DP_ADDRESS_MAX];
    const struct dp_verbs_config verbs = {.library = &fake_verbs_library};
    struct dp_transport_config config = {
        .host = "127.0.0.1", .world = 2, .token = 1, .kind = DP_TRANSPORT_VERBS, .verbs = &verbs};
    struct fake_verbs_counts counts;
    fake_verbs_start(NULL, NULL, 0);
    assert_refused(dp_transport_open(&config, address, &end, &err), DP_UNSUPPORTED, &err,
                   "no RDMA device");
    assert_non_null(strstr(err.message, "[parallel] transport = \"verbs\""));
    assert_non_null(strstr(err.message, "set it to auto or tcp"));
    config.kind = DP_TRANSPORT_AUTO;
    assert_ok(dp_transport_open(&config, address, &end, &err), &err);
    dp_transport_free(end);
    fake_verbs_stop(&counts);
}

// As a process of its own, since the library is loaded once.
static int without_library(void)
{
    const struct dp_verbs_library *library;
    struct dp_error err = {0};
    dp_status status = dp_verbs_library(&library, &err);
    bool is_said = strstr(err.message, "libibverbs.so.1") != NULL &&
                   strstr(err.message, "ibverbs-providers") != NULL;
    return status == DP_UNAVAILABLE && is_said ? 0 : 1;
}

static void a_missing_library_is_said_with_its_package(void **state)
{
    (void)state;
    char directory[] = "/tmp/dp-verbs-XXXXXX", file[64], variable[64];
    assert_non_null(mkdtemp(directory));
    snprintf(file, sizeof file, "%s/libibverbs.so.1", directory);
    snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%s", directory);
    FILE *nothing = fopen(file, "w"); // found first, and not a library
    assert_non_null(nothing);
    fclose(nothing);
    char *argv[] = {"test_verbs", "--without-library", NULL};
    char *environment[] = {variable, NULL};
    pid_t pid;
    int ended = -1;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environment), 0);
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    unlink(file);
    rmdir(directory);
    assert_int_equal(ended, 0);
}

static void registrations_are_shared_split_and_kept_until_they_are_trimmed(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct fake_device device = {.max_mr_size = 2 * page + 100};
    fake_verbs_start(NULL, &device, 1);
    const struct dp_verbs_library *library = &fake_verbs_library;
    int count;
    struct ibv_device **list = library->get_device_list(&count);
    struct ibv_context *context = library->open_device(list[0]);
    library->free_device_list(list);
    struct ibv_pd *pd = library->alloc_pd(context);
    struct verbs_regions regions;
    struct dp_error err = {0};
    dp_verbs_regions_init(&regions, library, pd, device.max_mr_size);
    unsigned char *memory = aligned_alloc(page, 8 * page);
    struct verbs_region *whole, *part, *again, *other;
    assert_ok(dp_verbs_region_get(&regions, memory + 10, 5 * page - 20, &whole, &err), &err);
    assert_ptr_equal(whole->start, memory);
    assert_int_equal(whole->bytes, 5 * page);
    assert_int_equal(whole->pieces, 3); // of two pages each, by what the device takes
    assert_ok(dp_verbs_region_get(&regions, memory + page, 3, &part, &err), &err);
    assert_ptr_equal(part, whole);
    assert_ok(dp_verbs_region_get(&regions, memory + 4 * page, page + 1, &other, &err), &err);
    assert_ptr_not_equal(other, whole); // reaches beyond
    size_t reach;
    assert_ptr_equal(dp_verbs_region_mr(whole, memory + 2 * page - 1, &reach), whole->mrs[0]);
    assert_int_equal(reach, 1);
    assert_ptr_equal(dp_verbs_region_mr(whole, memory + 2 * page, &reach), whole->mrs[1]);
    assert_int_equal(reach, 2 * page);
    assert_ptr_equal(dp_verbs_region_mr(whole, memory + 4 * page + 5, &reach), whole->mrs[2]);
    assert_int_equal(reach, page - 5);
    dp_verbs_region_put(&regions, whole);
    dp_verbs_regions_trim(&regions);
    assert_ptr_equal(dp_verbs_region_find(&regions, memory, page), whole); // still used by part
    dp_verbs_region_put(&regions, whole);
    dp_verbs_region_put(&regions, part);
    assert_null(dp_verbs_region_find(&regions, memory, page)); // used by nobody
    assert_ok(dp_verbs_region_get(&regions, memory, page, &again, &err), &err);
    assert_ptr_equal(again, whole); // but not yet given back
    dp_verbs_region_put(&regions, again);
    dp_verbs_regions_trim(&regions);
    assert_ptr_equal(regions.first, other);
    assert_null(other->next);
    dp_verbs_regions_deinit(&regions);
    library->dealloc_pd(pd);
    library->close_device(context);
    struct fake_verbs_counts counts;
    fake_verbs_stop(&counts);
    assert_int_equal(counts.violations, 0);
    free(memory);
}

struct stats {
    struct dp_verbs_stats of[4];
};

#define CHAT 300

static dp_status chat(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct stats *stats = context;
    int32_t self = dp_transport_rank(transport), other = 1 - self;
    static const size_t length = 5000;
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(1, length);
    for (uint64_t i = 0; i < CHAT; i++) {
        verbs_fill(bytes, length, (uint64_t)self * 1000 + i);
        EXPECT_OK(dp_transport_send(transport, other, 1, bytes, length, err));
    }
    for (uint64_t i = 0; i < CHAT; i++) {
        EXPECT_OK(dp_transport_recv(transport, other, 1, bytes, length, 0, err));
        EXPECT(verbs_is_filled(bytes, length, (uint64_t)other * 1000 + i));
    }
    dp_verbs_stats(transport, &stats->of[self]);
    return DP_OK;
}

static void the_smaller_mtu_is_agreed_on(void **state)
{
    (void)state;
    static const enum ibv_mtu mtus[][2] = {
        {IBV_MTU_4096, IBV_MTU_512}, {IBV_MTU_256, IBV_MTU_1024}, {IBV_MTU_2048, IBV_MTU_2048}};
    static const uint32_t agreed[] = {512, 256, 2048};
    for (size_t i = 0; i < 3; i++) {
        struct fake_device devices[2] = {{.mtu = mtus[i][0]}, {.mtu = mtus[i][1]}};
        struct dp_transport *ends[2];
        struct stats stats;
        verbs_world_open(2, NULL, devices, NULL, ends);
        cluster_run_on(ends, 2, chat, &stats, NULL, NULL);
        assert_int_equal(stats.of[0].mtu, agreed[i]);
        assert_int_equal(stats.of[1].mtu, agreed[i]);
    }
}

static void links_come_up_over_infiniband_and_without_inline_data(void **state)
{
    (void)state;
    struct fake_device devices[2] = {{.is_infiniband = true}, {.is_infiniband = true}};
    struct dp_transport *ends[2];
    struct stats stats;
    verbs_world_open(2, NULL, devices, NULL, ends);
    cluster_run_on(ends, 2, chat, &stats, NULL, NULL);
    struct fake_device plain[2] = {{.inline_max = 1}, {.inline_max = 33}};
    verbs_world_open(2, NULL, plain, NULL, ends);
    cluster_run_on(ends, 2, chat, &stats, NULL, NULL);
}

// Receivers are never asked for more than they have posted, and few requests have completions.
static void senders_keep_to_their_credits_and_ask_for_few_completions(void **state)
{
    (void)state;
    struct fake_faults faults = {.seed = 3, .delay_us_max = 200};
    struct dp_verbs_config config = {.depth = 4, .slot_bytes = 512, .staging_bytes = 8192};
    struct dp_transport *ends[2];
    struct stats stats;
    verbs_world_open(2, &faults, NULL, &config, ends);
    cluster_run_on(ends, 2, chat, &stats, NULL, NULL);
    struct fake_verbs_counts counts;
    fake_verbs_counts(&counts);
    assert_int_equal(counts.not_ready, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stats.of[i].in_flight_peak, 4);
        assert_int_equal(stats.of[i].reconnects, 0);
        // Ten pieces each; grants come at most every second piece.
        assert_true(stats.of[i].requests >= CHAT * 10);
        assert_true(stats.of[i].grants <= CHAT * 10 / 2);
    }
    struct dp_verbs_config deep = {.depth = 64};
    verbs_world_open(2, NULL, NULL, &deep, ends);
    cluster_run_on(ends, 2, chat, &stats, NULL, NULL);
    assert_true(stats.of[0].signalled * 4 < stats.of[0].requests);
}

static void *move_bytes(void *transport)
{
    dp_transport_progress(transport);
    return NULL;
}

// Two ends, of which the second reads nothing: four pieces go out to it.
static pthread_t open_deaf(struct dp_transport *ends[2])
{
    struct dp_verbs_config config = {.depth = 4, .slot_bytes = 1024};
    pthread_t mover;
    verbs_world_open(2, NULL, NULL, &config, ends);
    dp_transport_set_blocked_ms(ends[0], 50);
    assert_int_equal(pthread_create(&mover, NULL, move_bytes, ends[0]), 0);
    return mover;
}

static void close_both(struct dp_transport *ends[2], const pthread_t movers[2])
{
    int64_t deadline_ns = dp_clock_monotonic_ns() + 20 * DP_NS_PER_S;
    dp_transport_abort(ends[0], DP_JOB_CANCELLED, "over");
    for (int i = 0; i < 2; i++) {
        struct dp_error err = {0};
        assert_ok(dp_transport_close(ends[i], deadline_ns, &err), &err);
        pthread_join(movers[i], NULL);
        dp_transport_free(ends[i]);
    }
    struct fake_verbs_counts counts;
    fake_verbs_stop(&counts);
    assert_int_equal(counts.violations, 0);
}

static void a_message_of_which_nothing_has_left_leaves_the_link_as_it_is(void **state)
{
    (void)state;
    struct dp_transport *ends[2];
    struct dp_error err = {0};
    unsigned char sent[4096], got[4096];
    pthread_t movers[2] = {open_deaf(ends)};
    verbs_fill(sent, sizeof sent, 1);
    assert_ok(dp_transport_send(ends[0], 1, 7, sent, 4096, &err), &err);
    assert_refused(dp_transport_send(ends[0], 1, 8, sent, 2048, &err), DP_TIMEOUT, &err,
                   "took nothing");
    dp_transport_set_blocked_ms(ends[0], 60000);
    assert_int_equal(pthread_create(&movers[1], NULL, move_bytes, ends[1]), 0);
    assert_ok(dp_transport_recv(ends[1], 0, 7, got, 4096, 0, &err), &err);
    assert_ok(dp_transport_send(ends[0], 1, 9, sent, 3000, &err), &err);
    assert_ok(dp_transport_recv(ends[1], 0, 9, got, 3000, 0, &err), &err);
    assert_true(verbs_is_filled(got, 3000, 1));
    close_both(ends, movers);
}

static void a_message_that_lacks_its_last_piece_ends_the_link(void **state)
{
    (void)state;
    struct dp_transport *ends[2];
    struct dp_error err = {0};
    unsigned char sent[5 * 1024] = {0};
    pthread_t movers[2] = {open_deaf(ends)};
    assert_refused(dp_transport_send(ends[0], 1, 7, sent, sizeof sent, &err), DP_TIMEOUT, &err,
                   "took nothing");
    assert_refused(dp_transport_send(ends[0], 1, 8, sent, 1, &err), DP_UNAVAILABLE, &err,
                   "a message to it could not be sent to its end");
    assert_int_equal(pthread_create(&movers[1], NULL, move_bytes, ends[1]), 0);
    close_both(ends, movers);
}

struct crowd {
    struct dp_transport *transport;
    uint64_t tag;
    dp_status status;
};

static void *talk(void *argument)
{
    struct crowd *crowd = argument;
    unsigned char bytes[900];
    for (uint64_t i = 0; i < 150 && crowd->status == DP_OK; i++) {
        verbs_fill(bytes, sizeof bytes, crowd->tag * 1000 + i);
        crowd->status =
            dp_transport_send(crowd->transport, 1, crowd->tag, bytes, sizeof bytes, NULL);
    }
    return NULL;
}

static dp_status crowded(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    unsigned char bytes[900];
    if (dp_transport_rank(transport) == 1) {
        for (uint64_t tag = 0; tag < 4; tag++) {
            for (uint64_t i = 0; i < 150; i++) {
                EXPECT_OK(dp_transport_recv(transport, 0, tag, bytes, sizeof bytes, 0, err));
                EXPECT(verbs_is_filled(bytes, sizeof bytes, tag * 1000 + i));
            }
        }
        return DP_OK;
    }
    struct crowd crowds[4];
    pthread_t threads[4];
    for (uint64_t tag = 0; tag < 4; tag++) {
        crowds[tag] = (struct crowd){.transport = transport, .tag = tag};
        pthread_create(&threads[tag], NULL, talk, &crowds[tag]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < 4; i++) {
        EXPECT(crowds[i].status == DP_OK);
    }
    return DP_OK;
}

// The fake counts a second poster as a violation, which fails the test.
static void threads_that_send_at_once_never_post_to_a_queue_pair_together(void **state)
{
    (void)state;
    struct dp_transport *ends[2];
    struct dp_verbs_config config = {.depth = 8, .slot_bytes = 256, .staging_bytes = 4096};
    verbs_world_open(2, NULL, NULL, &config, ends);
    cluster_run_on(ends, 2, crowded, NULL, NULL, NULL);
}

// Windows of more pages than a registration may have are written across its pieces.
#define WIDE 70000

static dp_status wide(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), other = 1 - self;
    struct dp_window *window;
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_window_open(transport, 9, 4u << 20, 0, &window, &got), DP_TOO_LARGE, &got,
                   "registers 32768 bytes in one piece");
    EXPECT_OK(dp_window_open(transport, 1, 2 * (size_t)WIDE, 0, &window, err));
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(1, WIDE);
    verbs_fill(bytes, WIDE, (uint64_t)self);
    struct iovec copied = {.iov_base = bytes, .iov_len = WIDE};
    EXPECT_OK(dp_window_put(window, other, 123, &copied, 1, 1, err));
    EXPECT_OK(dp_window_wait(window, other, 1, 0, NULL, err));
    unsigned char *memory = dp_window_memory(window);
    EXPECT(verbs_is_filled(memory + 123, WIDE, (uint64_t)other));
    // And on from there, in place.
    struct iovec in_place = {.iov_base = memory + 123, .iov_len = WIDE - 200};
    EXPECT_OK(dp_window_put(window, other, WIDE + 200, &in_place, 1, 2, err));
    EXPECT_OK(dp_window_wait(window, other, 2, 0, NULL, err));
    EXPECT(verbs_is_filled(memory + WIDE + 200, WIDE - 200, (uint64_t)self));
    struct dp_verbs_stats stats;
    dp_verbs_stats(transport, &stats);
    EXPECT(stats.zero_copy == 1);
    EXPECT_OK(dp_transport_send(transport, other, 1, NULL, 0, err));
    EXPECT_OK(dp_transport_recv(transport, other, 1, NULL, 0, 0, err));
    dp_window_close(window);
    return DP_OK;
}

static void puts_cross_the_pieces_of_a_registration(void **state)
{
    (void)state;
    struct fake_device devices[2] = {{.max_mr_size = 32768}, {.max_mr_size = 33000}};
    struct dp_verbs_config config = {.depth = 4, .slot_bytes = 256, .staging_bytes = 8192};
    struct dp_transport *ends[2];
    verbs_world_open(2, NULL, devices, &config, ends);
    cluster_run_on(ends, 2, wide, NULL, NULL, NULL);
}

static dp_status wrong_key(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    struct dp_error got = {0};
    EXPECT_OK(dp_window_open(transport, 1, 4096, 0, &window, err));
    if (dp_transport_rank(transport) == 0) {
        char text[64] = "astray";
        struct iovec part = {.iov_base = text, .iov_len = sizeof text};
        EXPECT_OK(dp_window_put(window, 1, 0, &part, 1, 0, err)); // on its way
        EXPECT_REFUSED(dp_transport_recv(transport, 1, 1, text, 1, 0, &got), DP_UNAVAILABLE, &got,
                       "rank 1");
        EXPECT(strstr(got.message, "remote access error") != NULL);
    } else {
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, 0, NULL, &got), DP_UNAVAILABLE, &got,
                       "remote access error");
        EXPECT(dp_window_landed(window, 0) == 0 && ((char *)dp_window_memory(window))[0] == 0);
    }
    dp_window_close(window);
    return DP_OK;
}

static void a_wrong_key_ends_the_link_at_once_and_is_named_on_both_sides(void **state)
{
    (void)state;
    struct fake_faults faults = {.bad_key_after = 1};
    struct dp_transport *ends[2];
    verbs_world_open(2, &faults, NULL, NULL, ends);
    cluster_run_on(ends, 2, wrong_key, NULL, NULL, NULL);
    assert_int_equal(fake_verbs_queues_made(), 4); // no second try
}

static dp_status cut_off(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_error got = {0};
    int32_t other = 1 - dp_transport_rank(transport);
    char word = 1;
    if (dp_transport_rank(transport) == 0) {
        EXPECT_OK(dp_transport_send(transport, 1, 1, &word, 1, err));
        EXPECT_OK(dp_transport_recv(transport, 1, 1, &word, 1, 0, err));
        fake_verbs_unplug(1, true);
        EXPECT_OK(dp_transport_send(transport, 1, 2, &word, 1, err));
    } else {
        EXPECT_OK(dp_transport_recv(transport, 0, 1, &word, 1, 0, err));
        EXPECT_OK(dp_transport_send(transport, 0, 1, &word, 1, err));
    }
    EXPECT_REFUSED(dp_transport_recv(transport, other, 3, &word, 1, 0, &got), DP_UNAVAILABLE, &got,
                   "6 times at the same place: transport retry counter exceeded");
    return DP_OK;
}

// The tcp connection stands, the fabric does not: each try is later than the one before.
static void a_way_that_stays_blocked_is_tried_a_few_times_ever_more_slowly(void **state)
{
    (void)state;
    struct dp_verbs_config config = {.backoff_ms = 10, .attempts_max = 5};
    struct dp_transport *ends[2];
    verbs_world_open(2, NULL, NULL, &config, ends);
    cluster_run_on(ends, 2, cut_off, NULL, NULL, NULL);
    int64_t times[64];
    int made = fake_verbs_made_at(times, 64);
    // Two queue pairs on both sides, for the first and five more tries; one more when the first
    // failure hid how far it had come.
    assert_true(made == 4 * 6 || made == 4 * 7);
    for (int try = 1; try <= 5; try++) {
        const int64_t *first = &times[made - 4 * 6 + 4 * try];
        assert_true(first[0] - first[-1] >= (10ll << (try - 1)) * DP_NS_PER_MS);
    }
}

static dp_status alarmed(struct dp_transport *transport, void *context, struct dp_error *err)
{
    enum ibv_event_type type = *(enum ibv_event_type *)context;
    struct dp_error got = {0};
    int32_t self = dp_transport_rank(transport), other = 1 - self;
    char word = 1;
    if (self == 0) {
        fake_verbs_raise(0, type);
    }
    if (type == IBV_EVENT_DEVICE_FATAL) {
        EXPECT_REFUSED(dp_transport_recv(transport, other, 3, &word, 1, 0, &got), DP_UNAVAILABLE,
                       &got, "the device failed");
        return DP_OK;
    }
    struct dp_verbs_stats stats;
    do {
        EXPECT_OK(dp_transport_send(transport, other, 1, &word, 1, err));
        EXPECT_OK(dp_transport_recv(transport, other, 1, &word, 1, 0, err));
        dp_verbs_stats(transport, &stats);
        word = self == 0 && stats.reconnects == 0;
        EXPECT_OK(dp_transport_send(transport, other, 2, &word, 1, err));
        EXPECT_OK(dp_transport_recv(transport, other, 2, &word, 1, 0, err));
    } while (self == 0 ? stats.reconnects == 0 : word != 0);
    return DP_OK;
}

static void events_of_the_device_are_acted_on(void **state)
{
    (void)state;
    static enum ibv_event_type types[] = {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE,
                                          IBV_EVENT_LID_CHANGE};
    for (size_t i = 0; i < 3; i++) {
        struct dp_verbs_config config = {.backoff_ms = 1};
        struct dp_transport *ends[2];
        verbs_world_open(2, NULL, NULL, &config, ends);
        cluster_run_on(ends, 2, alarmed, &types[i], NULL, NULL);
    }
}

static void ends_of_another_size_do_not_connect(void **state)
{
    (void)state;
    fake_verbs_start(NULL, NULL, 2);
    char texts[2][DP_ADDRESS_MAX];
    const char *addresses[2] = {texts[0], texts[1]};
    struct dp_transport *ends[2];
    struct dp_error err = {0}, errors[2] = {0};
    dp_status statuses[2];
    for (int32_t i = 0; i < 2; i++) {
        struct dp_verbs_config config = {.library = &fake_verbs_library,
                                         .device = i == 0 ? "fake0" : "fake1",
                                         .depth = i == 0 ? 8 : 16};
        assert_ok(
            dp_transport_verbs_listen("127.0.0.1", i, 2, 5, &config, texts[i], &ends[i], &err),
            &err);
    }
    cluster_connect(2, ends, addresses, statuses, errors);
    for (int i = 0; i < 2; i++) {
        assert_refused(statuses[i], DP_UNAVAILABLE, &errors[i], "another version or configuration");
        dp_transport_free(ends[i]);
    }
    struct fake_verbs_counts counts;
    fake_verbs_stop(&counts);
    assert_int_equal(counts.violations, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--without-library") == 0) {
        return without_library();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gid_that_peers_can_reach_is_chosen),
        cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(verbs_that_a_job_asks_for_in_vain_are_told_with_the_key),
        cmocka_unit_test(a_missing_library_is_said_with_its_package),
        cmocka_unit_test(registrations_are_shared_split_and_kept_until_they_are_trimmed),
        cmocka_unit_test(the_smaller_mtu_is_agreed_on),
        cmocka_unit_test(links_come_up_over_infiniband_and_without_inline_data),
        cmocka_unit_test(senders_keep_to_their_credits_and_ask_for_few_completions),
        cmocka_unit_test(a_message_of_which_nothing_has_left_leaves_the_link_as_it_is),
        cmocka_unit_test(a_message_that_lacks_its_last_piece_ends_the_link),
        cmocka_unit_test(threads_that_send_at_once_never_post_to_a_queue_pair_together),
        cmocka_unit_test(puts_cross_the_pieces_of_a_registration),
        cmocka_unit_test(a_wrong_key_ends_the_link_at_once_and_is_named_on_both_sides),
        cmocka_unit_test(a_way_that_stays_blocked_is_tried_a_few_times_ever_more_slowly),
        cmocka_unit_test(events_of_the_device_are_acted_on),
        cmocka_unit_test(ends_of_another_size_do_not_connect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
