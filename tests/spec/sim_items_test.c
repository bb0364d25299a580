// What is slow on the sim device: the lists of [sim], read, written, and what they come to.
#include "dp/buf.h"
#include "dp/sim_items.h"
#include "spec_support.h"

#define SIM MINIMAL "[resources]\ndevice = \"sim\"\n[sim]\nforward_s = 0.01\nhop_s = 0.001\n"

static size_t read_list(const char *text, dp_sim_list list, struct dp_sim_item *ret_items)
{
    struct dp_error err = {0};
    size_t count = 0;
    assert_ok(dp_sim_items_parse(text, list, ret_items, &count, &err), &err);
    return count;
}

static const struct dp_sim_place third = {.rank = 3, .node = "n2", .slot = 1};
static const struct dp_sim_place other = {.rank = 2, .node = "n1", .slot = 1};

static void items_hold_at_their_place_and_in_their_steps(void **state)
{
    (void)state;
    struct dp_sim_item items[DP_SIM_ITEMS_MAX];
    const struct {
        const char *text;
        int64_t step;
        double here, there; // the factors of the two places
    } cases[] = {
        {"", 1, 1, 1},
        {"rank=3:1.5@200", 199, 1, 1},
        {"rank=3:1.5@200", 200, 1.5, 1},
        {"rank=3:1.5@200", 1000000, 1.5, 1},
        {"rank=3:3@100-400", 99, 1, 1},
        {"rank=3:3@100-400", 100, 3, 1},
        {"rank=3:3@100-400", 400, 3, 1},
        {"rank=3:3@100-400", 401, 1, 1},
        {"node=n2:2", 1, 2, 1},
        {"slot=n2/1:4", 1, 4, 1},
        {"slot=n2/0:4", 1, 1, 1},
        {"slot=n1/1:0.5@7-7", 7, 1, 0.5},
        {"all:1.25", 9, 1.25, 1.25},
        // What holds at once is multiplied: 2 x 1.5 x 3.
        {"node=n2:2;rank=3:1.5@5;slot=n2/1:3@5-9", 5, 9, 1},
        {"node=n2:2;rank=3:1.5@5;slot=n2/1:3@5-9", 10, 3, 1},
        // A node may be named with anything but a ';'.
        {"node=a:b@c/d:2@3", 3, 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = read_list(cases[i].text, DP_SIM_SLOW, items);
        assert_near(dp_sim_items_factor(items, count, &third, cases[i].step), cases[i].here, 1e-12);
        assert_near(dp_sim_items_factor(items, count, &other, cases[i].step), cases[i].there,
                    1e-12);
    }
    const struct dp_sim_place strange = {.rank = 0, .node = "a:b@c/d", .slot = 0};
    assert_near(
        dp_sim_items_factor(items, read_list("node=a:b@c/d:2@3", DP_SIM_SLOW, items), &strange, 3),
        2, 1e-12);
}

static void links_are_slow_in_both_directions(void **state)
{
    (void)state;
    struct dp_sim_item items[DP_SIM_ITEMS_MAX];
    const struct dp_sim_place beside = {.rank = 4, .node = "n2", .slot = 0};
    size_t count = read_list("2-3:4@100", DP_SIM_SLOW_LINK, items);
    assert_near(dp_sim_items_link_factor(items, count, &third, &other, 100), 4, 1e-12);
    assert_near(dp_sim_items_link_factor(items, count, &other, &third, 100), 4, 1e-12);
    assert_near(dp_sim_items_link_factor(items, count, &other, &third, 99), 1, 1e-12);
    assert_near(dp_sim_items_link_factor(items, count, &other, &beside, 100), 1, 1e-12);
    // Between two nodes every link of them is, and none within one.
    count = read_list("n1~n2:2", DP_SIM_SLOW_LINK, items);
    assert_near(dp_sim_items_link_factor(items, count, &beside, &other, 1), 2, 1e-12);
    assert_near(dp_sim_items_link_factor(items, count, &other, &beside, 1), 2, 1e-12);
    assert_near(dp_sim_items_link_factor(items, count, &beside, &third, 1), 1, 1e-12);
}

static void gaps_add_up(void **state)
{
    (void)state;
    struct dp_sim_item items[DP_SIM_ITEMS_MAX];
    size_t count = read_list("all:0.001;node=n2:0.004@50", DP_SIM_GAP, items);
    assert_near(dp_sim_items_gap(items, count, &third, 49), 0.001, 1e-12);
    assert_near(dp_sim_items_gap(items, count, &third, 50), 0.005, 1e-12);
    assert_near(dp_sim_items_gap(items, count, &other, 50), 0.001, 1e-12);
}

static void a_list_that_cannot_be_read_is_refused_with_the_item(void **state)
{
    (void)state;
    const struct {
        const char *line, *position, *message;
    } mistakes[] = {
        {"slow = [\"rank=3\"]\n", "job.toml:12:8: ", "\"rank=3\": there is no ':'"},
        {"slow = [\"rank=x:2\"]\n", "job.toml:12:8: ", "a place is all, rank=3, node=n2"},
        {"slow = [\"rank=99999999:2\"]\n", "job.toml:12:8: ", "a place is"},
        {"slow = [\"slot=n2:2\"]\n", "job.toml:12:8: ", "a place is"},
        {"slow = [\"node=:2\"]\n", "job.toml:12:8: ", "a place is"},
        {"slow = [\"rank=3:0\"]\n", "job.toml:12:8: ", "the factor is 0.001 to 1000"},
        {"slow = [\"rank=3:nan\"]\n", "job.toml:12:8: ", "the factor is 0.001 to 1000"},
        {"slow = [\"rank=3:2x\"]\n", "job.toml:12:8: ", "the factor is 0.001 to 1000"},
        {"slow = [\"rank=3:2@\"]\n", "job.toml:12:8: ", "what follows '@' is a step"},
        {"slow = [\"rank=3:2@9-8\"]\n", "job.toml:12:8: ", "what follows '@' is a step"},
        {"slow = [\"rank=3:2\", 5]\n", "job.toml:12:21: ", "must be a list of strings"},
        {"slow = [\"rank=3:2;rank=1:2\"]\n", "job.toml:12:9: ", "must be a list of strings"},
        {"slow = 5\n", "job.toml:12:8: ", "must be a list of strings, not an integer"},
        {"slow_link = [\"2-3-4:2\"]\n", "job.toml:12:13: ", "a link is two ranks"},
        {"slow_link = [\"rank=2:2\"]\n", "job.toml:12:13: ", "a link is two ranks"},
        {"slow_link = [\"2-2:2\"]\n", "job.toml:12:13: ", "a link is two ranks"},
        {"gap = [\"all:61\"]\n", "job.toml:12:7: ", "the gap is 0 to 60 seconds"},
        {"noise = 3\n", "job.toml:12:9: ", "at most 2"},
    };
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct dp_job_spec spec;
        struct dp_error err = {0};
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_buf_printf(&text, "%s%s", SIM, mistakes[i].line);
        assert_int_equal(parse_job(text.bytes, NULL, &spec, &err), DP_INVALID);
        if (strstr(err.message, mistakes[i].position) == NULL ||
            strstr(err.message, mistakes[i].message) == NULL) {
            fail_msg("%s\ngives %s", mistakes[i].line, err.message);
        }
    }
    struct dp_sim_item items[DP_SIM_ITEMS_MAX];
    size_t count;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf many = {0};
    for (int i = 0; i <= DP_SIM_ITEMS_MAX; i++) {
        dp_buf_puts(&many, i == 0 ? "all:2" : ";all:2");
    }
    assert_int_equal(dp_sim_items_parse(many.bytes, DP_SIM_SLOW, items, &count, &err),
                     DP_TOO_LARGE);
}

static void a_link_that_takes_no_time_cannot_be_slow(void **state)
{
    (void)state;
    struct dp_job_spec spec;
    struct dp_error err = {0};
    assert_int_equal(parse_job(MINIMAL "[sim]\nslow_link = [\"0-1:2\"]\n", NULL, &spec, &err),
                     DP_INVALID);
    assert_non_null(strstr(err.message, "set hop_s"));
}

static void lists_are_written_as_they_are_read_and_set_as_text(void **state)
{
    (void)state;
    struct dp_job_spec spec, again;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(parse_job(SIM "slow = [\"rank=3:1.5@200\", \"node=a\\\"b:2\"]\nnoise = 0.05\n"
                            "noise_file = \"f\"\ngap = \"all:0.001\"\n",
                        "/base", &spec, &err),
              &err);
    assert_string_equal(spec.sim.slow, "rank=3:1.5@200;node=a\"b:2");
    assert_string_equal(spec.sim.noise_file, "/base/f");
    dp_job_spec_write(&spec, &text);
    assert_non_null(strstr(text.bytes, "slow = [\"rank=3:1.5@200\", \"node=a\\\"b:2\"]\n"));
    assert_null(strstr(text.bytes, "slow_link"));
    assert_ok(parse_job(text.bytes, NULL, &again, &err), &err);
    assert_memory_equal(&again, &spec, sizeof(spec));
    assert_ok(dp_job_spec_set(&spec, "sim.slow=rank=0:2;rank=1:3", &err), &err);
    assert_string_equal(spec.sim.slow, "rank=0:2;rank=1:3");
    assert_ok(dp_job_spec_check(&spec, &err), &err);
    assert_ok(dp_job_spec_set(&spec, "sim.slow=rank=0", &err), &err);
    assert_int_equal(dp_job_spec_check(&spec, &err), DP_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_hold_at_their_place_and_in_their_steps),
        cmocka_unit_test(links_are_slow_in_both_directions),
        cmocka_unit_test(gaps_add_up),
        cmocka_unit_test(a_list_that_cannot_be_read_is_refused_with_the_item),
        cmocka_unit_test(a_link_that_takes_no_time_cannot_be_slow),
        cmocka_unit_test(lists_are_written_as_they_are_read_and_set_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
