#include <pthread.h>

#include "dp/exec_meter.h"
#include "dp_test.h"

#define RECORDS 200000

static void *write_records(void *argument)
{
    struct dp_exec_meter *meter = argument;
    for (int64_t i = 0; i < RECORDS; i++) {
        struct dp_exec_record record = {.span = {.step = i, .start_ns = 2 * i, .end_ns = 3 * i},
                                        .idle_ns = i};
        dp_exec_meter_push(meter, &record);
    }
    return NULL;
}

static void records_arrive_whole_and_in_order_or_are_counted_as_dropped(void **state)
{
    (void)state;
    struct dp_exec_meter *meter = dp_exec_meter_new(100);
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_records, meter), 0);
    uint64_t seen = 0;
    int64_t newest = -1;
    while (newest != RECORDS - 1 && seen + dp_exec_meter_dropped(meter) < RECORDS) {
        struct dp_exec_record records[17];
        size_t count = dp_exec_meter_pop(meter, records, 17);
        for (size_t i = 0; i < count; i++) {
            assert_true(records[i].span.step > newest);
            newest = records[i].span.step;
            assert_true(records[i].span.start_ns == 2 * newest);
            assert_true(records[i].span.end_ns == 3 * newest && records[i].idle_ns == newest);
        }
        seen += count;
    }
    pthread_join(writer, NULL);
    struct dp_exec_record rest[128];
    seen += dp_exec_meter_pop(meter, rest, 128);
    assert_int_equal(seen + dp_exec_meter_dropped(meter), RECORDS);
    dp_exec_meter_free(meter);
}

static void a_full_meter_keeps_the_oldest(void **state)
{
    (void)state;
    struct dp_exec_meter *meter = dp_exec_meter_new(4);
    for (int64_t i = 0; i < 6; i++) {
        struct dp_exec_record record = {.span = {.step = i}};
        dp_exec_meter_push(meter, &record);
    }
    struct dp_exec_record records[8];
    assert_int_equal(dp_exec_meter_pop(meter, records, 8), 4);
    assert_int_equal(records[3].span.step, 3);
    assert_int_equal(dp_exec_meter_dropped(meter), 2);
    dp_exec_meter_free(meter);
}

static void levels_are_those_that_were_set_last(void **state)
{
    (void)state;
    struct dp_exec_meter *meter = dp_exec_meter_new(1);
    struct dp_exec_levels levels = {3, 5, 1000, UINT64_C(1) << 40, 9};
    dp_exec_meter_set_levels(meter, &levels);
    struct dp_exec_levels got;
    dp_exec_meter_levels(meter, &got);
    assert_memory_equal(&got, &levels, sizeof(got));
    dp_exec_meter_free(meter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_arrive_whole_and_in_order_or_are_counted_as_dropped),
        cmocka_unit_test(a_full_meter_keeps_the_oldest),
        cmocka_unit_test(levels_are_those_that_were_set_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
