// Windows: one suite over every transport.
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/rand.h"
#include "dp/window.h"

static dp_status put(struct dp_window *window, int32_t peer, size_t offset, const void *bytes,
                     size_t length, uint64_t note, struct dp_error *err)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    return dp_window_put(window, peer, offset, &part, 1, note, err);
}

static uint64_t key_of(int32_t from, int32_t to, uint64_t number)
{
    return dp_rand_mix((uint64_t)from * 1009 + (uint64_t)to, number);
}

static void fill(uint64_t *words, size_t count, uint64_t key)
{
    struct dp_rand rand;
    dp_rand_init(&rand, key);
    for (size_t i = 0; i < count; i++) {
        words[i] = dp_rand_u64(&rand);
    }
}

static bool is_filled(const uint64_t *words, size_t count, uint64_t key)
{
    struct dp_rand rand;
    dp_rand_init(&rand, key);
    for (size_t i = 0; i < count; i++) {
        if (words[i] != dp_rand_u64(&rand)) {
            return false;
        }
    }
    return true;
}

// Waits for all and says so to all, so that nobody closes what others still use.
static dp_status barrier(struct dp_transport *transport, uint64_t tag, struct dp_error *err)
{
    for (int32_t i = 0; i < dp_transport_world(transport); i++) {
        EXPECT_OK(dp_transport_send(transport, i, tag, NULL, 0, err));
    }
    for (int32_t i = 0; i < dp_transport_world(transport); i++) {
        EXPECT_OK(dp_transport_recv(transport, i, tag, NULL, 0, 0, err));
    }
    return DP_OK;
}

// Every rank puts into a part of its own in every window; a place is written again only after the
// receiver has said, by a note alone, that it has looked.
#define STORM_WORDS 40000u // of one part
#define STORM_PUTS 60

static size_t storm_words(uint64_t key)
{
    return dp_rand_mix(key, 1) % 8 == 0 ? dp_rand_mix(key, 2) % STORM_WORDS
                                        : dp_rand_mix(key, 2) % 64;
}

static dp_status storm(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    size_t part = STORM_WORDS * sizeof(uint64_t);
    struct dp_window *data, *credits;
    EXPECT_OK(dp_window_open(transport, 3, (size_t)world * part, 0, &data, err));
    EXPECT_OK(dp_window_open(transport, 0, 0, 0, &credits, err));
    struct dp_transport_fault fault = {.seed = 8 + (uint64_t)self, .delay_us_max = 20};
    dp_transport_set_fault(transport, &fault);
    DP_AUTO_FREE uint64_t *words = dp_alloc(STORM_WORDS, sizeof *words);
    const unsigned char *memory = dp_window_memory(data);
    for (uint64_t n = 1; n <= STORM_PUTS; n++) {
        for (int32_t i = 1; i <= world; i++) {
            int32_t peer = (self + i) % world;
            uint64_t key = key_of(self, peer, n);
            size_t count = storm_words(key);
            fill(words, count, key);
            EXPECT_OK(dp_window_wait(credits, peer, n - 1, 0, NULL, err));
            EXPECT_OK(put(data, peer, (size_t)self * part, words, count * 8, key, err));
        }
        for (int32_t peer = 0; peer < world; peer++) {
            uint64_t note = 0, key = key_of(peer, self, n);
            EXPECT_OK(dp_window_wait(data, peer, n, 0, &note, err));
            EXPECT(note == key);
            const void *from = memory + (size_t)peer * part;
            EXPECT(is_filled(from, storm_words(key), key));
            EXPECT_OK(dp_window_put(credits, peer, 0, NULL, 0, n, err));
        }
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(data);
    dp_window_close(credits);
    return DP_OK;
}

static void storms_of_puts_land_whole_and_in_order(void **state)
{
    cluster_run(cluster_kind_of(state), 4, storm, NULL);
    cluster_run(cluster_kind_of(state), 1, storm, NULL);
}

// Without credits: the count rises only when the bytes are there. Each put goes to its own place.
#define TRAIN_PUTS 200u
#define TRAIN_WORDS 3000u

static dp_status train(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    size_t bytes = TRAIN_WORDS * sizeof(uint64_t);
    EXPECT_OK(dp_window_open(transport, 1, TRAIN_PUTS * bytes, 0, &window, err));
    EXPECT(dp_window_bytes(window) == TRAIN_PUTS * bytes);
    if (dp_transport_rank(transport) == 0) {
        DP_AUTO_FREE uint64_t *words = dp_alloc(TRAIN_WORDS, sizeof *words);
        for (uint64_t n = 0; n < TRAIN_PUTS; n++) {
            fill(words, TRAIN_WORDS, n);
            struct iovec parts[3] = {{words, 8}, {NULL, 0}, {words + 1, bytes - 8}};
            EXPECT_OK(dp_window_put(window, 1, n * bytes, parts, 3, ~n, err));
        }
        uint64_t sent[2];
        dp_window_put_bytes(transport, sent);
        EXPECT(sent[0] == 0 && sent[1] == TRAIN_PUTS * bytes);
    } else {
        const unsigned char *memory = dp_window_memory(window);
        EXPECT((uintptr_t)memory % 64 == 0);
        for (uint64_t seen = 0; seen < TRAIN_PUTS;) {
            uint64_t note;
            EXPECT_OK(dp_window_wait(window, 0, seen + 1, 0, &note, err));
            EXPECT(note == ~seen);
            uint64_t landed = dp_window_landed(window, 0);
            EXPECT(landed > seen && landed <= TRAIN_PUTS);
            for (; seen < landed; seen++) {
                const void *from = memory + seen * bytes;
                EXPECT(is_filled(from, TRAIN_WORDS, seen));
            }
        }
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    return DP_OK;
}

static void a_count_never_rises_before_the_bytes_are_there(void **state)
{
    for (int i = 0; i < 3; i++) {
        cluster_run(cluster_kind_of(state), 2, train, NULL);
    }
}

#define BIG_BYTES (64u << 20)

static dp_status big(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), peer = 1 - self;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 1, BIG_BYTES + 64, 0, &window, err));
    DP_AUTO_FREE unsigned char *bytes = dp_alloc(BIG_BYTES, 1);
    unsigned char *memory = dp_window_memory(window);
    EXPECT(memory[0] == 0 && memory[BIG_BYTES / 2] == 0 && memory[BIG_BYTES + 63] == 0);
    EXPECT_OK(barrier(transport, 2, err));
    memset(bytes, self + 1, BIG_BYTES);
    EXPECT_OK(put(window, peer, 64, bytes, BIG_BYTES, 9, err));
    EXPECT_OK(dp_window_wait(window, peer, 1, 0, NULL, err));
    EXPECT(memory[63] == 0 && memory[64] == peer + 1 && memory[BIG_BYTES + 63] == peer + 1);
    EXPECT(memcmp(memory + 64, memory + 65, BIG_BYTES - 1) == 0);
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    return DP_OK;
}

static void puts_of_64_mebibytes_cross_each_other(void **state)
{
    cluster_run(cluster_kind_of(state), 2, big, NULL);
}

static dp_status beyond(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 7, 100, 0, &window, err));
    char bytes[101] = {1};
    int32_t self = dp_transport_rank(transport);
    struct dp_error got = {0};
    for (int32_t peer = 0; peer < 2; peer++) {
        EXPECT_REFUSED(put(window, peer, 0, bytes, 101, 1, &got), DP_TOO_LARGE, &got,
                       "beyond the 100 bytes of window 7");
        EXPECT_REFUSED(put(window, peer, 100, bytes, 1, 1, &got), DP_TOO_LARGE, &got, "window 7");
        EXPECT_REFUSED(put(window, peer, SIZE_MAX, bytes, 2, 1, &got), DP_TOO_LARGE, &got,
                       "window 7");
        EXPECT_REFUSED(put(window, peer, 101, NULL, 0, 1, &got), DP_TOO_LARGE, &got, "window 7");
        struct iovec wraps[2] = {{bytes, SIZE_MAX - 3}, {bytes, 8}};
        EXPECT_REFUSED(dp_window_put(window, peer, 1, wraps, 2, 1, &got), DP_TOO_LARGE, &got,
                       "window 7");
        EXPECT_OK(put(window, peer, 100, NULL, 0, 5, err)); // the end itself is inside
        EXPECT_OK(put(window, peer, (size_t)(99 - self), bytes, 1, 6, err));
    }
    for (int32_t peer = 0; peer < 2; peer++) {
        uint64_t note;
        EXPECT_OK(dp_window_wait(window, peer, 1, 0, &note, err));
        EXPECT(note == 5); // what was refused has not been counted
        EXPECT_OK(dp_window_wait(window, peer, 2, 0, &note, err));
        EXPECT(note == 6 && ((char *)dp_window_memory(window))[99 - peer] == 1);
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    struct dp_window *none;
    EXPECT_REFUSED(dp_window_open(transport, DP_WINDOWS_MAX, 1, 0, &none, &got), DP_TOO_LARGE, &got,
                   "ids are below");
    EXPECT_REFUSED(dp_window_open(transport, 1, DP_WINDOW_BYTES_MAX + 1, 0, &none, &got),
                   DP_TOO_LARGE, &got, "sizes up to");
    return DP_OK;
}

static void a_put_beyond_the_window_is_refused_and_changes_nothing(void **state)
{
    cluster_run(cluster_kind_of(state), 2, beyond, NULL);
}

static dp_status disagree(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport);
    struct dp_window *window, *again;
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_window_open(transport, 1, 64 + (size_t)self, 0, &window, &got), DP_CONFLICT,
                   &got, self == 0 ? "rank 1 opens it with 65 bytes" : "rank 0 opens it with 64");
    EXPECT_OK(dp_window_open(transport, 1, 64, 0, &window, err));
    EXPECT_REFUSED(dp_window_open(transport, 1, 64, 0, &again, &got), DP_CONFLICT, &got,
                   "window 1 is open already");
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    dp_window_close(NULL);
    return DP_OK;
}

static void ranks_that_open_different_windows_are_told(void **state)
{
    cluster_run(cluster_kind_of(state), 2, disagree, NULL);
}

static dp_status reopened(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t peer = 1 - dp_transport_rank(transport);
    for (uint64_t round = 0; round < 20; round++) {
        struct dp_window *window;
        EXPECT_OK(dp_window_open(transport, 4, 4096, 0, &window, err));
        unsigned char *memory = dp_window_memory(window);
        uint64_t note;
        unsigned char byte = (unsigned char)(round + 1);
        EXPECT_OK(put(window, peer, 0, &byte, 1, round, err));
        EXPECT_OK(dp_window_wait(window, peer, 1, 0, &note, err));
        EXPECT(note == round && memory[0] == byte && memory[1] == 0);
        memory[1] = byte; // the next one does not have it
        // What the peer makes of this second one is left open: it may have closed already.
        EXPECT_OK(put(window, peer, 4095, &byte, 1, round, err));
        dp_window_close(window);
    }
    return barrier(transport, 1, err);
}

static void a_window_that_is_opened_again_is_new_and_late_puts_do_no_harm(void **state)
{
    cluster_run(cluster_kind_of(state), 2, reopened, NULL);
}

// Nobody waits for the others, who may still be about to take its window.
static dp_status hasty(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    for (int round = 0; round < 30; round++) {
        struct dp_window *window;
        EXPECT_OK(dp_window_open(transport, 4, 64, 0, &window, err));
        dp_window_close(window);
    }
    return barrier(transport, 1, err);
}

static void a_window_may_be_closed_as_soon_as_it_is_open(void **state)
{
    cluster_run(cluster_kind_of(state), 4, hasty, NULL);
}

static dp_status noted(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    uint64_t puts = 3 * DP_WINDOW_NOTES_MAX, note;
    EXPECT_OK(dp_window_open(transport, 0, 0, 0, &window, err));
    if (dp_transport_rank(transport) == 0) {
        for (uint64_t n = 1; n <= puts; n++) {
            EXPECT_OK(dp_window_put(window, 1, 0, NULL, 0, n * n, err));
        }
    } else {
        EXPECT_OK(dp_window_wait(window, 0, puts, 0, &note, err));
        for (uint64_t n = puts - DP_WINDOW_NOTES_MAX + 1; n <= puts; n++) {
            EXPECT_OK(dp_window_wait(window, 0, n, 0, &note, err));
            EXPECT(note == n * n);
        }
        struct dp_error got = {0};
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, 0, &note, &got), DP_INTERNAL, &got,
                       "the note of put 1 of rank 0 is gone");
        EXPECT_OK(dp_window_wait(window, 0, 1, 0, NULL, err));
        EXPECT_OK(dp_window_wait(window, 0, 0, 0, &note, err));
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    return DP_OK;
}

static void the_last_notes_are_kept_and_older_ones_are_not_made_up(void **state)
{
    cluster_run(cluster_kind_of(state), 2, noted, NULL);
}

static dp_status late(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 2, 8, 0, &window, err));
    if (dp_transport_rank(transport) == 1) {
        struct dp_error got = {0};
        int64_t deadline_ns = dp_clock_monotonic_ns() + 20 * DP_NS_PER_MS;
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, deadline_ns, NULL, &got), DP_TIMEOUT, &got,
                       "window 2: put 1 of rank 0 did not land");
        EXPECT(dp_clock_monotonic_ns() >= deadline_ns);
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, 1, NULL, &got), DP_TIMEOUT, &got, "window 2");
        uint64_t seen = 0;
        EXPECT_OK(dp_window_wait_any(transport, &seen, 1, err)); // a poll
        deadline_ns = dp_clock_monotonic_ns() + 10 * DP_NS_PER_MS;
        EXPECT_OK(dp_window_wait_any(transport, &seen, deadline_ns, err));
        dp_transport_set_blocked_ms(transport, 20);
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, 0, NULL, &got), DP_TIMEOUT, &got, "window 2");
        dp_transport_set_blocked_ms(transport, 60000);
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    return DP_OK;
}

static void a_put_that_does_not_come_ends_in_a_timeout_naming_rank_and_window(void **state)
{
    cluster_run(cluster_kind_of(state), 2, late, NULL);
}

// One thread serves two windows and all peers.
static dp_status serve(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    struct dp_window *windows[2];
    for (uint32_t w = 0; w < 2; w++) {
        EXPECT_OK(dp_window_open(transport, w, 8, 0, &windows[w], err));
    }
    const uint64_t rounds = 200;
    for (uint64_t n = 0; n < rounds && self != 0; n++) {
        EXPECT_OK(dp_window_put(windows[n % 2], 0, 0, NULL, 0, n, err));
    }
    uint64_t seen = 0, total = 0;
    while (self == 0 && total < rounds * (uint64_t)(world - 1)) {
        EXPECT_OK(dp_window_wait_any(transport, &seen, 0, err));
        total = 0;
        for (int32_t peer = 1; peer < world; peer++) {
            total += dp_window_landed(windows[0], peer) + dp_window_landed(windows[1], peer);
        }
    }
    if (self == 0) {
        EXPECT_OK(dp_window_put(windows[0], 0, 0, NULL, 0, 1, err)); // its own wakes it as well
        EXPECT_OK(dp_window_wait_any(transport, &seen, 0, err));
        EXPECT(dp_window_landed(windows[0], 0) == 1);
    }
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(windows[0]);
    dp_window_close(windows[1]);
    return DP_OK;
}

static void one_thread_waits_for_all_peers_and_windows(void **state)
{
    cluster_run(cluster_kind_of(state), 4, serve, NULL);
}

static dp_status mapped(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), peer = 1 - self;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 1, 1 << 20, 0, &window, err));
    EXPECT(dp_window_map(window, self) == dp_window_memory(window));
    uint64_t *there = dp_window_map(window, peer);
    bool shares = dp_transport_peer_attributes(transport, peer)->shares_node;
    EXPECT((there != NULL) == shares);
    size_t words = (1 << 20) / sizeof(uint64_t);
    if (there != NULL) {
        fill(there, words, (uint64_t)self);
    } else {
        DP_AUTO_FREE uint64_t *bytes = dp_alloc(words, sizeof *bytes);
        fill(bytes, words, (uint64_t)self);
        EXPECT_OK(put(window, peer, 0, bytes, 1 << 20, 0, err));
    }
    EXPECT_OK(dp_window_put(window, peer, 0, NULL, 0, 1, err));
    EXPECT_OK(dp_window_wait(window, peer, there != NULL ? 1 : 2, 0, NULL, err));
    const void *here = dp_window_memory(window);
    EXPECT(is_filled(here, words, (uint64_t)peer));
    EXPECT_OK(barrier(transport, 1, err));
    dp_window_close(window);
    return DP_OK;
}

static void where_a_peer_is_mapped_stores_are_seen_with_the_next_put(void **state)
{
    cluster_run(cluster_kind_of(state), 2, mapped, NULL);
}

static dp_status one_dies(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport);
    struct dp_window *window;
    uint64_t word = 42, note = 0, seen = 0;
    struct dp_error got = {0};
    EXPECT_OK(dp_window_open(transport, 1, 8, 0, &window, err));
    EXPECT_OK(barrier(transport, 1, err));
    if (self == 2) {
        dp_status status = put(window, 0, 0, &word, 8, 7, err);
        dp_window_close(window);
        return status != DP_OK ? status : dp_fail(err, DP_INTERRUPTED, "dies");
    }
    if (self == 0) {
        dp_status status = dp_window_wait(window, 2, 2, 0, NULL, &got);
        EXPECT_REFUSED(status, DP_UNAVAILABLE, &got,
                       "window 1: put 2 of rank 2 will not come, 1 have landed");
        EXPECT_OK(dp_window_wait(window, 2, 1, 0, &note, err)); // what it put stays
        EXPECT(note == 7 && *(uint64_t *)dp_window_memory(window) == 42);
        EXPECT_REFUSED(put(window, 2, 0, &word, 8, 1, &got), DP_UNAVAILABLE, &got, "rank 2");
    } else {
        dp_status status = DP_OK;
        while (status != DP_UNAVAILABLE) { // who serves many finds out, too
            EXPECT_OK(dp_window_wait_any(transport, &seen, 0, err));
            status = dp_window_wait(window, 2, 1, 1, NULL, &got);
        }
    }
    EXPECT_OK(dp_transport_send(transport, 1 - self, 2, NULL, 0, err));
    EXPECT_OK(dp_transport_recv(transport, 1 - self, 2, NULL, 0, 0, err));
    dp_window_close(window);
    return DP_OK;
}

static void a_dead_peer_ends_waiting_and_what_it_put_stays(void **state)
{
    struct dp_transport *ends[3];
    dp_status statuses[3];
    struct dp_error errors[3];
    cluster_open(cluster_kind_of(state), 3, ends);
    cluster_run_on(ends, 3, one_dies, NULL, statuses, errors);
    assert_ok(statuses[0], &errors[0]);
    assert_ok(statuses[1], &errors[1]);
    assert_string_equal(errors[2].message, "dies");
}

struct waiter {
    struct dp_transport *transport;
    struct dp_window *window; // NULL = waits for any
    dp_status status;
    struct dp_error err;
    pthread_t thread;
};

static void *wait_for_it(void *argument)
{
    struct waiter *waiter = argument;
    uint64_t seen = 0;
    do {
        waiter->status = waiter->window != NULL
                             ? dp_window_wait(waiter->window, 1, 1, 0, NULL, &waiter->err)
                             : dp_window_wait_any(waiter->transport, &seen, 0, &waiter->err);
    } while (waiter->status == DP_OK);
    return NULL;
}

static dp_status aborted(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 1, 8, 0, &window, err));
    EXPECT_OK(barrier(transport, 1, err));
    struct waiter waiters[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        waiters[i].transport = transport;
        waiters[i].window = i % 2 == 0 ? window : NULL;
        pthread_create(&waiters[i].thread, NULL, wait_for_it, &waiters[i]);
    }
    if (dp_transport_rank(transport) == 0) {
        dp_transport_abort(transport, DP_JOB_CANCELLED, "cancelled by test");
    } else {
        struct dp_error got = {0};
        EXPECT_REFUSED(dp_window_wait(window, 0, 1, 0, NULL, &got), DP_UNAVAILABLE, &got, "rank 0");
        dp_transport_abort(transport, DP_JOB_CANCELLED, "cancelled by test");
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(waiters[i].thread, NULL);
        EXPECT_REFUSED(waiters[i].status, DP_JOB_CANCELLED, &waiters[i].err, "cancelled by test");
    }
    struct dp_error got = {0};
    for (int32_t peer = 0; peer < 2; peer++) {
        EXPECT_REFUSED(put(window, peer, 0, NULL, 0, 1, &got), DP_JOB_CANCELLED, &got, "by test");
    }
    dp_window_close(window);
    return DP_OK;
}

static void an_abort_wakes_everyone(void **state)
{
    for (int i = 0; i < 10; i++) {
        cluster_run(cluster_kind_of(state), 2, aborted, NULL);
    }
}

static int count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    int count = 0;
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

// Of a sanitizer's allocator, where there is one: it keeps freed memory resident for long.
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t allocated_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes != NULL
               ? __sanitizer_get_current_allocated_bytes()
               : mallinfo2().uordblks;
}

static int count_windows_mapped(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    assert_non_null(file);
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        count += strstr(line, "memfd:dp-") != NULL;
    }
    fclose(file);
    return count;
}

// Rounds like those of an all-to-all: a message, a put and a credit to everybody.
static dp_status rounds(struct dp_transport *transport, void *context, struct dp_error *err)
{
    int count = *(int *)context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    struct dp_window *window;
    uint64_t words[64] = {0};
    EXPECT_OK(dp_window_open(transport, 1, (size_t)world * sizeof words, 0, &window, err));
    for (uint64_t n = 1; n <= (uint64_t)count; n++) {
        for (int32_t peer = 0; peer < world; peer++) {
            words[0] = n;
            EXPECT_OK(put(window, peer, (size_t)self * sizeof words, words, sizeof words, n, err));
        }
        for (int32_t peer = 0; peer < world; peer++) {
            uint64_t note;
            EXPECT_OK(dp_window_wait(window, peer, n, 0, &note, err));
            EXPECT(note == n);
        }
        EXPECT_OK(barrier(transport, n % 16, err));
    }
    dp_window_close(window);
    return DP_OK;
}

// After nccl #1753, #1534, #604 and #864: growth per call and per communicator.
static void neither_memory_nor_descriptors_grow_over_rounds_and_openings(void **state)
{
    int few = 100, many = (int)dp_fuzz_runs(2000);
    cluster_run(cluster_kind_of(state), 2, rounds, &few);
    cluster_run(cluster_kind_of(state), 2, reopened, NULL);
    // A test that failed before this one may have left some.
    int fds = count_fds(), mapped = count_windows_mapped();
    size_t before = allocated_bytes();
    cluster_run(cluster_kind_of(state), 2, rounds, &many);
    for (int i = 0; i < 5; i++) {
        cluster_run(cluster_kind_of(state), 2, reopened, NULL);
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_windows_mapped(), mapped);
    // One byte in each round would be seen.
    assert_true(allocated_bytes() < before + 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLUSTER_EACH(storms_of_puts_land_whole_and_in_order),
        CLUSTER_EACH(a_count_never_rises_before_the_bytes_are_there),
        CLUSTER_EACH(puts_of_64_mebibytes_cross_each_other),
        CLUSTER_EACH(a_put_beyond_the_window_is_refused_and_changes_nothing),
        CLUSTER_EACH(ranks_that_open_different_windows_are_told),
        CLUSTER_EACH(a_window_that_is_opened_again_is_new_and_late_puts_do_no_harm),
        CLUSTER_EACH(a_window_may_be_closed_as_soon_as_it_is_open),
        CLUSTER_EACH(the_last_notes_are_kept_and_older_ones_are_not_made_up),
        CLUSTER_EACH(a_put_that_does_not_come_ends_in_a_timeout_naming_rank_and_window),
        CLUSTER_EACH(one_thread_waits_for_all_peers_and_windows),
        CLUSTER_EACH(where_a_peer_is_mapped_stores_are_seen_with_the_next_put),
        CLUSTER_EACH(a_dead_peer_ends_waiting_and_what_it_put_stays),
        CLUSTER_EACH(an_abort_wakes_everyone),
        CLUSTER_EACH(neither_memory_nor_descriptors_grow_over_rounds_and_openings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
