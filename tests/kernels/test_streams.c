// Streams, events, memory and threads of the cpu device.
#include "f64_device.h"
#include "gate.h"
#include "gradient.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cpu.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

static struct dp_stream *open_stream(void)
{
    struct dp_stream *stream = NULL;
    struct dp_error err;
    assert_ok(ops->stream_open(device, &stream, &err), &err);
    return stream;
}

static struct dp_event *record(struct dp_stream *stream)
{
    struct dp_event *event = NULL;
    struct dp_error err;
    assert_ok(ops->event_record(stream, &event, &err), &err);
    return event;
}

static void finish(struct dp_stream *stream)
{
    struct dp_error err;
    assert_ok(ops->stream_sync(stream, &err), &err);
}

#define STREAMS 4
#define CELLS 6
#define WIDTH 300

// A cell, the event after which it holds what was last written, and the events of those who have
// read that since.
struct cell {
    double values[WIDTH];
    struct dp_event *written;
    struct dp_event *read[STREAMS];
};

static void forget(struct dp_event **event)
{
    ops->event_close(*event);
    *event = NULL;
}

static void wait_for(struct dp_stream *stream, struct dp_event *event)
{
    if (event != NULL) {
        ops->event_wait(stream, event);
    }
}

// to = (to + from) / 2 on stream `s`, after what it depends on.
static void step(struct dp_stream **streams, int s, struct cell *from, struct cell *to)
{
    wait_for(streams[s], from->written);
    wait_for(streams[s], to->written);
    for (int i = 0; i < STREAMS; i++) {
        wait_for(streams[s], to->read[i]);
        forget(&to->read[i]);
    }
    ops->add(streams[s], WIDTH, DP_OPERAND_ELEMENT, from->values, DP_OPERAND_ELEMENT, to->values);
    ops->scale(streams[s], WIDTH, 0.5, DP_OPERAND_ELEMENT, to->values);
    forget(&to->written);
    to->written = record(streams[s]);
    forget(&from->read[s]);
    from->read[s] = record(streams[s]);
}

static void fill_cells(struct cell *cells, struct dp_rand *rand)
{
    for (int i = 0; i < CELLS; i++) {
        fill_normal(rand, cells[i].values, WIDTH, 1);
    }
}

static void work_ordered_by_events_gives_what_one_stream_gives(void **state)
{
    (void)state;
    const long runs = dp_fuzz_runs(20);
    struct dp_stream *streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        // The device's own takes part.
        streams[i] = i == 0 ? device->stream : open_stream();
    }
    for (long run = 0; run < runs; run++) {
        DP_AUTO_FREE struct cell *cells = dp_new_array(struct cell, CELLS);
        DP_AUTO_FREE struct cell *alone = dp_new_array(struct cell, CELLS);
        struct dp_rand rand, again;
        dp_rand_init(&rand, (uint64_t)run);
        fill_cells(cells, &rand);
        dp_rand_init(&again, (uint64_t)run);
        fill_cells(alone, &again);
        for (int i = 0; i < 60; i++) {
            const int s = (int)dp_rand_below(&rand, STREAMS);
            const uint64_t from = dp_rand_below(&rand, CELLS);
            const uint64_t to = (from + 1 + dp_rand_below(&rand, CELLS - 1)) % CELLS;
            step(streams, s, &cells[from], &cells[to]);
            for (int j = 0; j < WIDTH; j++) {
                alone[to].values[j] = (alone[to].values[j] + alone[from].values[j]) * 0.5;
            }
        }
        for (int i = 0; i < STREAMS; i++) {
            finish(streams[i]);
        }
        for (int i = 0; i < CELLS; i++) {
            assert_memory_equal(cells[i].values, alone[i].values, sizeof(cells[i].values));
            forget(&cells[i].written);
            for (int j = 0; j < STREAMS; j++) {
                forget(&cells[i].read[j]);
            }
        }
    }
    for (int i = 1; i < STREAMS; i++) {
        ops->stream_close(streams[i]);
    }
}

static void an_opened_stream_works_later_with_the_arguments_of_the_call(void **state)
{
    (void)state;
    struct gate gate = GATE_CLOSED;
    struct dp_stream *stream = open_stream();
    const double a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
    double c[4] = {0}, copied[4] = {0};
    put_gate(stream, &gate);
    struct dp_gemm gemm = {
        .m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .c = c, .ldc = 2};
    ops->gemm(stream, &gemm);
    memset(&gemm, 0xff, sizeof(gemm));
    ops->copy(stream, copied, c, sizeof(c));
    struct dp_event *done = record(stream), *closed_early = record(stream);
    ops->event_wait(stream, closed_early);
    ops->event_close(closed_early);
    assert_false(ops->event_done(done));
    assert_true(copied[0] == 0 && c[0] == 0);
    open_gate(&gate);
    ops->event_wait(device->stream, done);
    assert_true(ops->event_done(done));
    const double expected[] = {19, 22, 43, 50};
    assert_memory_equal(copied, expected, sizeof(expected));
    ops->event_close(done);
    ops->stream_close(stream);
}

static void closing_a_stream_ends_its_work_first(void **state)
{
    (void)state;
    for (int run = 0; run < 20; run++) {
        double x[1000] = {0};
        const double one[1000] = {1};
        struct dp_stream *stream = open_stream();
        for (int i = 0; i < 50; i++) {
            ops->add(stream, 1000, DP_OPERAND_REAL, one, DP_OPERAND_REAL, x);
        }
        ops->stream_close(stream);
        assert_true(x[0] == 50 && x[999] == 0);
    }
    ops->stream_close(NULL);
}

static void *open_gate_of(void *gate)
{
    open_gate(gate);
    return NULL;
}

static void a_sync_waits_for_the_operation_that_is_at_work(void **state)
{
    (void)state;
    struct dp_stream *stream = open_stream();
    for (int i = 0; i < 50; i++) {
        struct gate gate = GATE_CLOSED;
        pthread_t opener;
        put_gate(stream, &gate);
        await_gate(&gate); // the queue is empty, and its thread stands there
        assert_int_equal(pthread_create(&opener, NULL, open_gate_of, &gate), 0);
        finish(stream);
        assert_true(gate.passed);
        pthread_join(opener, NULL);
    }
    ops->stream_close(stream);
}

static void a_stream_reports_its_first_failure_once(void **state)
{
    (void)state;
    struct dp_stream *streams[] = {device->stream, open_stream()};
    for (int i = 0; i < 2; i++) {
        const double bad[] = {NAN, NAN, 1, INFINITY};
        const struct dp_fp8 two = {1, 2, 1, 2, false}, one = {1, 1, 1, 1, false};
        uint8_t codes[2];
        float scale;
        struct dp_error err;
        ops->quantize_fp8(streams[i], &two, DP_OPERAND_REAL, bad, codes, &scale);
        ops->quantize_fp8(streams[i], &one, DP_OPERAND_REAL, bad + 3, codes, &scale);
        assert_refused(ops->stream_sync(streams[i], &err), DP_INVALID, &err, "2 of the values");
        finish(streams[i]);
        ops->quantize_fp8(streams[i], &one, DP_OPERAND_REAL, bad + 2, codes, &scale);
        finish(streams[i]);
        assert_int_equal(codes[0], 0x7e);
    }
    ops->stream_close(streams[1]);
}

static struct dp_device_memory memory_now(void)
{
    return dp_device_memory(device);
}

static void memory_is_counted_by_purpose_and_limited(void **state)
{
    (void)state;
    const struct dp_device_memory before = memory_now();
    struct dp_error err;
    void *weights = NULL, *moments = NULL, *more = NULL;
    assert_ok(ops->alloc(device, DP_MEMORY_WEIGHTS, 1000, &weights, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_MOMENTS, 500, &moments, &err), &err);
    assert_int_equal((uintptr_t)weights % 64, 0);
    memset(weights, 1, 1000);
    struct dp_device_memory now = memory_now();
    assert_int_equal(now.live - before.live, 1500);
    assert_int_equal(now.tag_live[DP_MEMORY_WEIGHTS], 1000);
    assert_int_equal(now.tag_live[DP_MEMORY_MOMENTS], 500);
    dp_device_set_limit(device, now.live + 100);
    const dp_status status = ops->alloc(device, DP_MEMORY_ACTIVATIONS, 101, &more, &err);
    assert_refused(status, DP_TOO_LARGE, &err, "101 bytes of activations do not fit");
    assert_null(more);
    const size_t absurd = SIZE_MAX - 10;
    assert_int_equal(ops->alloc(device, DP_MEMORY_WINDOWS, absurd, &more, &err), DP_TOO_LARGE);
    assert_ok(ops->alloc(device, DP_MEMORY_ACTIVATIONS, 100, &more, &err), &err);
    ops->free(device, weights);
    ops->free(device, moments);
    ops->free(device, more);
    ops->free(device, NULL);
    now = memory_now();
    assert_int_equal(now.live, before.live);
    assert_int_equal(now.tag_live[DP_MEMORY_WEIGHTS], 0);
    assert_int_equal(now.tag_peak[DP_MEMORY_WEIGHTS], 1000);
    assert_int_equal(now.peak - before.live, 1600);
    assert_int_equal(now.at_peak[DP_MEMORY_MOMENTS], 500);
    dp_device_set_limit(device, now.live);
    assert_ok(ops->alloc(device, DP_MEMORY_STAGING, 5000, &more, &err), &err);
    assert_int_equal(memory_now().peak, now.peak);
    assert_int_equal(memory_now().live, now.live);
    assert_int_equal(memory_now().tag_live[DP_MEMORY_STAGING], 5000);
    ops->free(device, more);
    dp_device_set_limit(device, 0);
    assert_int_equal(ops->alloc(device, DP_MEMORY_WINDOWS, absurd, &more, &err), DP_UNSCHEDULABLE);
    dp_device_reset_peak(device);
    assert_int_equal(memory_now().peak, before.live);
    assert_int_equal(memory_now().tag_peak[DP_MEMORY_MOMENTS], 0);
    assert_string_equal(dp_memory_tag_text(DP_MEMORY_STAGING), "staging");
}

static void what_a_stream_keeps_for_operations_counts_as_scratch(void **state)
{
    (void)state;
    const struct dp_device_memory before = memory_now();
    struct dp_stream *stream = open_stream();
    DP_AUTO_FREE double *matrix = dp_new_array(double, 64 * 300);
    DP_AUTO_FREE uint8_t *codes = dp_new_array(uint8_t, 64 * 300);
    float scales[64];
    const struct dp_fp8 fp8 = {64, 300, 1, 300, false};
    ops->quantize_fp8(stream, &fp8, DP_OPERAND_REAL, matrix, codes, scales);
    finish(stream);
    const struct dp_device_memory now = memory_now();
    assert_true(now.tag_live[DP_MEMORY_SCRATCH] > before.tag_live[DP_MEMORY_SCRATCH]);
    assert_int_equal(now.live - before.live,
                     now.tag_live[DP_MEMORY_SCRATCH] - before.tag_live[DP_MEMORY_SCRATCH]);
    ops->stream_close(stream);
    stream = open_stream();
    assert_int_equal(memory_now().live, before.live);
    dp_device_set_limit(device, before.live + 1);
    ops->quantize_fp8(stream, &fp8, DP_OPERAND_REAL, matrix, codes, scales);
    struct dp_error err;
    assert_refused(ops->stream_sync(stream, &err), DP_TOO_LARGE, &err, "of scratch");
    dp_device_set_limit(device, 0);
    ops->stream_close(stream);
}

struct marks {
    atomic_int *seen;
    atomic_int ranges, by_caller;
    int64_t shortest;
    int64_t fails_at; // an item, or -1
    pthread_mutex_t lock;
};

static void mark(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    struct marks *marks = context;
    // By other threads too, which cannot fail the test.
    atomic_fetch_add(&marks->by_caller, stream == device->stream);
    // Scratch memory is the range's own while it runs.
    int64_t *own = dp_stream_scratch(stream, (size_t)(end - begin) * sizeof(int64_t));
    for (int64_t i = begin; i < end; i++) {
        own[i - begin] = i;
    }
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&marks->seen[own[i - begin]], 1);
        if (i == marks->fails_at) {
            dp_stream_fail(stream, DP_INVALID, "item %lld", (long long)i);
        }
    }
    atomic_fetch_add(&marks->ranges, 1);
    pthread_mutex_lock(&marks->lock);
    marks->shortest = end - begin < marks->shortest ? end - begin : marks->shortest;
    pthread_mutex_unlock(&marks->lock);
}

static void threads_do_every_item_once_in_ranges_that_are_worth_it(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads++) {
        struct dp_error err;
        assert_ok(dp_device_set_threads(device, threads, &err), &err);
        for (int64_t count = 0; count < 40; count++) {
            for (int64_t grain = 1; grain < 30; grain += 4) {
                atomic_int seen[40] = {0};
                struct marks marks = {.seen = seen,
                                      .shortest = INT64_MAX,
                                      .fails_at = count - 1,
                                      .lock = PTHREAD_MUTEX_INITIALIZER};
                dp_cpu_parallel(device->stream, count, grain, mark, &marks);
                for (int64_t i = 0; i < 40; i++) {
                    assert_int_equal(atomic_load(&seen[i]), i < count ? 1 : 0);
                }
                assert_int_equal(atomic_load(&marks.by_caller), 0);
                const int64_t most = count / grain < threads ? count / grain : threads;
                assert_int_equal(atomic_load(&marks.ranges),
                                 count == 0 ? 0 : (most < 1 ? 1 : most));
                assert_true(count < grain || marks.shortest >= grain);
                const dp_status status = ops->stream_sync(device->stream, &err);
                assert_int_equal(status, count > 0 ? DP_INVALID : DP_OK);
            }
        }
    }
    assert_int_equal(dp_device_set_threads(device, 1, NULL), DP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_ordered_by_events_gives_what_one_stream_gives),
        cmocka_unit_test(an_opened_stream_works_later_with_the_arguments_of_the_call),
        cmocka_unit_test(closing_a_stream_ends_its_work_first),
        cmocka_unit_test(a_sync_waits_for_the_operation_that_is_at_work),
        cmocka_unit_test(a_stream_reports_its_first_failure_once),
        cmocka_unit_test(memory_is_counted_by_purpose_and_limited),
        cmocka_unit_test(what_a_stream_keeps_for_operations_counts_as_scratch),
        cmocka_unit_test(threads_do_every_item_once_in_ranges_that_are_worth_it),
    };
    return cmocka_run_group_tests(tests, f64_device_open, f64_device_close);
}
