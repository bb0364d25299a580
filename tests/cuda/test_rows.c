// Moves of rows and the order of slots: the cpu's bits.
#include "twin.h"

static const int64_t rows_of[] = {0, 1, 16, 17, 100}, cols_of[] = {1, 16, 17, 100, 256};

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))
#define ELEMENT DP_OPERAND_ELEMENT
#define REAL DP_OPERAND_REAL

// `count` places among `rows`, all different, with holes of -1.
static int some_places(struct twin *t, int64_t count, int64_t rows)
{
    int32_t *place = dp_new_array(int32_t, (size_t)rows + 1);
    for (int64_t i = 0; i < rows; i++) {
        place[i] = (int32_t)i;
    }
    for (int64_t i = 0; i + 1 < rows; i++) {
        const int64_t k = i + (int64_t)dp_rand_below(&t->rand, (uint64_t)(rows - i));
        const int32_t kept = place[i];
        place[i] = place[k];
        place[k] = kept;
    }
    for (int64_t i = 0; i < count; i++) {
        place[i] = dp_rand_below(&t->rand, 5) == 0 ? -1 : place[i];
    }
    const int buffer = twin_bytes(t, (size_t)count * sizeof(int32_t), place);
    free(place);
    return buffer;
}

struct moves {
    struct dp_rows out, back;
    int32_t repeat;
    int index, from, rows, sums, added;
};

static void run(struct twin *t, const struct moves *m, int side)
{
    const struct dp_device_ops *ops = t->device[side]->ops;
    struct dp_stream *stream = t->device[side]->stream;
    const int32_t *index = t->at[m->index][side];
    ops->spread_rows(stream, &m->out, m->repeat, index, t->at[m->from][side], t->at[m->rows][side]);
    ops->collect_rows(stream, &m->back, m->repeat, false, index, t->at[m->rows][side],
                      t->at[m->sums][side]);
    ops->collect_rows(stream, &m->back, m->repeat, true, index, t->at[m->rows][side],
                      t->at[m->sums][side]);
}

static void compare(int64_t tokens, int64_t cols, uint64_t seed)
{
    struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
    const int32_t repeat = 1 + (int32_t)(seed % 4);
    const dp_operand kind = seed % 3 == 0 ? REAL : ELEMENT, sums = seed % 5 == 0 ? ELEMENT : REAL;
    struct moves m = {.repeat = repeat,
                      .out = {tokens * repeat, cols, ELEMENT, kind},
                      .back = {tokens, cols, kind, sums}};
    m.index = some_places(&t, tokens * repeat, tokens * repeat);
    m.from = twin_values(&t, ELEMENT, tokens * cols, 1);
    m.rows = twin_values(&t, kind, tokens * repeat * cols, 0);
    m.sums = twin_values(&t, sums, tokens * cols, 0);
    for (int schedule = 0; schedule < twin_schedules(); schedule++) {
        twin_schedule(&t, seed, schedule);
        run(&t, &m, CPU);
        run(&t, &m, GPU);
        twin_sync(&t);
        twin_same_bits(&t, m.rows);
        twin_same_bits(&t, m.sums);
    }
    twin_close(&t);
}

static void rows_of_all_sizes_move_as_on_the_cpu(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int64_t r = 0; r < COUNT(rows_of); r++) {
        for (int64_t c = 0; c < COUNT(cols_of); c++) {
            compare(rows_of[r], cols_of[c], seed++);
        }
    }
}

static void rows_that_repeat_add_up_in_their_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        const dp_operand to_kind = seed % 3 == 0 ? ELEMENT : REAL;
        const struct dp_rows rows = {seed == 6 ? 0 : 60, 70, ELEMENT, to_kind};
        int32_t index[60];
        for (int i = 0; i < 60; i++) {
            index[i] = (int32_t)dp_rand_below(&t.rand, 6) - 1;
        }
        const int places = twin_bytes(&t, sizeof(index), index);
        const int from = twin_values(&t, ELEMENT, 60 * 70, 1);
        const int to = twin_values(&t, to_kind, 5 * 70, 1);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                t.device[side]->ops->add_rows(t.device[side]->stream, &rows, t.at[places][side],
                                              t.at[from][side], t.at[to][side]);
            }
            twin_sync(&t);
            twin_same_bits(&t, to);
        }
        twin_close(&t);
    }
}

static void heads_are_copied_and_summed_as_on_the_cpu(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct twin t = twin_open(seed % 2 == 0 ? DP_F32 : DP_BF16, seed);
        const struct dp_heads copied = {17, 9, 3, 40, 12, 33, seed == 1 ? 0 : 10};
        const struct dp_heads summed = {17, 9, 3, 40, 12, 9, 0};
        const int from = twin_values(&t, ELEMENT, 17 * 40, 1);
        const int copies = twin_values(&t, ELEMENT, 17 * 33, 0);
        const int sums = twin_values(&t, ELEMENT, 17 * 9, 0);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, seed, schedule);
            for (int side = 0; side < 2; side++) {
                const struct dp_device_ops *ops = t.device[side]->ops;
                struct dp_stream *stream = t.device[side]->stream;
                if (seed != 1) {
                    ops->copy_heads(stream, &copied, t.at[from][side], t.at[copies][side]);
                }
                ops->sum_heads(stream, &summed, t.at[from][side], t.at[sums][side]);
            }
            twin_sync(&t);
            twin_same_bits(&t, copies);
            twin_same_bits(&t, sums);
        }
        twin_close(&t);
    }
}

static void slots_are_sorted_as_on_the_cpu(void **state)
{
    (void)state;
    static const int64_t slots_of[] = {0, 1, 16, 17, 100, 700};
    for (int64_t n = 0; n < COUNT(slots_of); n++) {
        const int64_t slots = slots_of[n];
        struct twin t = twin_open(DP_F32, (uint64_t)n);
        const int32_t experts = n % 2 == 0 ? 5 : 40;
        int32_t index[700];
        for (int64_t i = 0; i < slots; i++) {
            index[i] = (int32_t)dp_rand_below(&t.rand, (uint64_t)experts + 1) - 1;
        }
        const int given = twin_bytes(&t, (size_t)slots * sizeof(int32_t), index);
        const int counts = twin_bytes(&t, (size_t)experts * sizeof(int32_t), NULL);
        const int rows = twin_bytes(&t, (size_t)slots * sizeof(int32_t), NULL);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, (uint64_t)n + 1, schedule);
            for (int side = 0; side < 2; side++) {
                t.device[side]->ops->sort_slots(t.device[side]->stream, slots, experts,
                                                t.at[given][side], t.at[counts][side],
                                                t.at[rows][side]);
            }
            twin_sync(&t);
            twin_same_bits(&t, counts);
            twin_same_bits(&t, rows);
        }
        twin_close(&t);
    }
}

// An offset in 32 bits would wrap, in values or in units of 16 bytes. Untouched pages cost nothing.
static void find_far_row(int64_t cols, int32_t far)
{
    struct dp_error err;
    struct dp_device *device = emulated_device_open(DP_BF16);
    const struct dp_device_ops *ops = device->ops;
    const size_t bytes = (size_t)cols * 2;
    emulated_device_schedule(3, true);
    void *wide, *from, *back, *index;
    assert_ok(ops->alloc(device, DP_MEMORY_SCRATCH, ((size_t)far + 1) * bytes, &wide, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_SCRATCH, bytes, &from, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_SCRATCH, bytes, &back, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_SCRATCH, sizeof(far), &index, &err), &err);
    ops->copy(device->stream, index, &far, sizeof(far));
    ops->fill(device->stream, from, 0x3f, bytes);
    const struct dp_rows one = {1, cols, ELEMENT, ELEMENT};
    ops->spread_rows(device->stream, &one, 1, index, from, wide);
    ops->collect_rows(device->stream, &one, 1, false, index, wide, back);
    ops->add_rows(device->stream, &one, index, from, wide);
    assert_ok(ops->stream_sync(device->stream, &err), &err);
    assert_memory_equal(back, from, bytes);
    ops->free(device, wide);
    ops->free(device, from);
    ops->free(device, back);
    ops->free(device, index);
    emulated_device_close(device);
}

static void rows_past_two_to_the_31st_value_are_found(void **state)
{
    (void)state;
    find_far_row(64, 270000000); // moved by 16 bytes: eight of them a row
    find_far_row(63, 40000000);  // moved by value
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_all_sizes_move_as_on_the_cpu),
        cmocka_unit_test(rows_that_repeat_add_up_in_their_order),
        cmocka_unit_test(heads_are_copied_and_summed_as_on_the_cpu),
        cmocka_unit_test(slots_are_sorted_as_on_the_cpu),
        cmocka_unit_test(rows_past_two_to_the_31st_value_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
