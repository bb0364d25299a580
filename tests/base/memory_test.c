// Host memory and arenas.

#include "dp_test.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/cleanup.h"

static void memory_comes_zeroed_and_aligned(void **state)
{
    (void)state;
    for (size_t size = 0; size < 300; size += 37) {
        DP_AUTO_FREE unsigned char *memory = dp_alloc_aligned(size, 1);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t i = 0; i < size; i++) {
            assert_int_equal(memory[i], 0);
        }
    }
    DP_AUTO_FREE int *none = dp_new_array(int, 0);
    assert_non_null(none);
}

static void text_that_does_not_fit_is_cut_and_reported(void **state)
{
    (void)state;
    char buffer[4];
    assert_true(DP_COPY_TEXT(buffer, "abc"));
    assert_string_equal(buffer, "abc");
    assert_false(DP_COPY_TEXT(buffer, "abcd"));
    assert_string_equal(buffer, "abc");
    assert_true(DP_COPY_TEXT(buffer, ""));
    assert_string_equal(buffer, "");
}

static void a_stolen_pointer_leaves_null_behind(void **state)
{
    (void)state;
    char *owned = dp_strdup("x");
    char *taken = dp_steal(owned);
    assert_null(owned);
    assert_string_equal(taken, "x");
    free(taken);
}

static void an_arena_hands_out_distinct_zeroed_memory(void **state)
{
    (void)state;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena;
    dp_arena_init(&arena, 0);
    unsigned char *pieces[200];
    for (size_t i = 0; i < 200; i++) {
        pieces[i] = dp_arena_alloc(&arena, i + 1);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t j = 0; j <= i; j++) {
            assert_int_equal(pieces[i][j], 0);
        }
        memset(pieces[i], (int)i, i + 1);
    }
    for (size_t i = 0; i < 200; i++) {
        assert_int_equal(pieces[i][i], i & 0xff);
        assert_int_equal(pieces[i][0], i & 0xff);
    }
    assert_string_equal(dp_arena_printf(&arena, "%d-%s", 7, "x"), "7-x");
    assert_string_equal(dp_arena_strdup(&arena, "copy"), "copy");
}

static void an_arena_refuses_to_pass_its_limit(void **state)
{
    (void)state;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena;
    dp_arena_init(&arena, 64);
    assert_non_null(dp_arena_alloc(&arena, 48));
    assert_null(dp_arena_alloc(&arena, 17));
    assert_null(dp_arena_alloc(&arena, SIZE_MAX));
    assert_null(dp_arena_strdup(&arena, "seventeen letters"));
    assert_non_null(dp_arena_alloc(&arena, 16));
    assert_null(dp_arena_alloc(&arena, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_zeroed_and_aligned),
        cmocka_unit_test(text_that_does_not_fit_is_cut_and_reported),
        cmocka_unit_test(a_stolen_pointer_leaves_null_behind),
        cmocka_unit_test(an_arena_hands_out_distinct_zeroed_memory),
        cmocka_unit_test(an_arena_refuses_to_pass_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
