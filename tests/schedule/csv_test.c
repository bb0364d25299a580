// Files for and from torch.distributed.pipelining: what is written is read, what is wrong is told
// with line and column. The notation is that of _Action in PyTorch's
// torch/distributed/pipelining/schedules.py.
#include "support.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/render.h"
#include "dp/schedule_audit.h"
#include "torch_rows.h"

static dp_status read_with(const char *text, dp_schedule_letters letters,
                           struct dp_schedule_csv *ret_csv, struct dp_diags *diags,
                           struct dp_error *err)
{
    dp_diags_init(diags, "x.csv", text, strlen(text));
    return dp_schedule_read_csv(text, strlen(text), letters, ret_csv, diags, err);
}

// The text is good; its schedule, which the caller deinits.
static struct dp_schedule_csv read_good(const char *text, dp_schedule_letters letters)
{
    struct dp_schedule_csv csv;
    struct dp_diags diags;
    struct dp_error err = {0};
    assert_ok(read_with(text, letters, &csv, &diags, &err), &err);
    assert_int_equal(diags.count, 0);
    dp_diags_deinit(&diags);
    return csv;
}

// Whether the text is good.
static bool is_good(const char *text)
{
    struct dp_schedule_csv csv;
    struct dp_diags diags;
    dp_status status = read_with(text, DP_SCHEDULE_LETTERS_ANY, &csv, &diags, NULL);
    assert_true((status == DP_OK) == (diags.count == 0));
    dp_diags_deinit(&diags);
    if (status == DP_OK) {
        dp_schedule_csv_deinit(&csv);
    }
    return status == DP_OK;
}

// What is read from the text is `schedule`, whatever its name.
static void reads_back(const char *text, const struct dp_schedule *schedule, bool has_comms)
{
    struct dp_schedule_csv csv = read_good(text, DP_SCHEDULE_LETTERS_ANY);
    assert_int_equal(csv.has_comms, has_comms);
    assert_int_equal(csv.letters, DP_SCHEDULE_LETTERS_NEW);
    assert_string_equal(csv.schedule.name, "imported");
    if (dp_schedule_hash(&csv.schedule) != dp_schedule_hash(schedule)) {
        fail_msg("%s is another schedule when it is read back:\n%s", schedule->name, text);
    }
    dp_schedule_csv_deinit(&csv);
}

static struct dp_buf plain(const struct dp_schedule *schedule)
{
    struct dp_error err = {0};
    struct dp_buf text = {0};
    assert_ok(dp_render_torch_csv(schedule, &text, &err), &err);
    return text;
}

static struct dp_buf with_messages(const struct dp_schedule *schedule, bool with_waits)
{
    struct dp_error err = {0};
    struct dp_buf text = {0};
    struct dp_sim_uniform costs = {.f = 1, .b = 2, .i = 1, .w = 1, .hop.latency = 0.25};
    struct dp_sim_result result = simulate_uniform(schedule, costs);
    assert_ok(dp_render_torch_csv_comms(schedule, &result, with_waits, &text, &err), &err);
    dp_sim_result_deinit(&result);
    return text;
}

static void every_exported_schedule_reads_back_as_it_was(void **state)
{
    (void)state;
    size_t families;
    const struct dp_schedule_family *family = dp_schedule_families(&families);
    int done = 0;
    for (size_t i = 0; i < families; i++) {
        for (int32_t p = 1; p <= 6; p++) {
            struct dp_schedule schedule;
            struct dp_schedule_params params = {p, 3 * p + 1, 0};
            if (family[i].directions == 2 ||
                dp_schedule_generate(family[i].name, &params, &schedule, NULL) != DP_OK) {
                continue;
            }
            struct dp_buf text = plain(&schedule);
            reads_back(text.bytes, &schedule, false);
            dp_buf_deinit(&text);
            for (int waits = 0; waits < 2; waits++) {
                text = with_messages(&schedule, waits == 1);
                reads_back(text.bytes, &schedule, p > 1);
                dp_buf_deinit(&text);
            }
            dp_schedule_deinit(&schedule);
            done++;
        }
    }
    assert_true(done >= 45);
}

// DualPipeV of two ranks and four micro-batches, the smallest that PyTorch takes.
static void dualpipev_in_pytorchs_form_is_ours(void **state)
{
    (void)state;
    static const char text[] =
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
        "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\r\n"
        "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
        "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\r\n";
    struct dp_schedule_csv csv = read_good(text, DP_SCHEDULE_LETTERS_ANY);
    struct dp_schedule made = make_schedule("dualpipev", 2, 4);
    assert_int_equal(csv.schedule.pipeline, 2);
    assert_int_equal(csv.schedule.microbatches, 4);
    assert_int_equal(csv.schedule.stages, 4);
    assert_int_equal(dp_schedule_hash(&csv.schedule), dp_schedule_hash(&made));
    dp_schedule_deinit(&made);
    dp_schedule_csv_deinit(&csv);
}

// The same file in the letters before PyTorch 2.6: B for I, BW for B.
static void old_letters_are_told_from_new_ones(void **state)
{
    (void)state;
    static const char *const names[] = {"zb-h1", "zb-v", "interleaved", "zb-h2"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_schedule schedule = make_schedule(names[i], 4, 9);
        struct dp_buf text = plain(&schedule);
        struct dp_buf old = {0};
        bool split = false;
        for (size_t c = 0; c < text.length; c++) {
            char letter[3] = {text.bytes[c]};
            split = split || letter[0] == 'W';
            dp_buf_puts(&old, letter[0] == 'I' ? "B" : letter[0] == 'B' ? "BW" : letter);
        }
        struct dp_schedule_csv csv = read_good(old.bytes, DP_SCHEDULE_LETTERS_ANY);
        assert_int_equal(csv.letters, DP_SCHEDULE_LETTERS_OLD);
        assert_int_equal(dp_schedule_hash(&csv.schedule), dp_schedule_hash(&schedule));
        dp_schedule_csv_deinit(&csv);
        csv = read_good(old.bytes, DP_SCHEDULE_LETTERS_OLD);
        assert_int_equal(dp_schedule_hash(&csv.schedule), dp_schedule_hash(&schedule));
        dp_schedule_csv_deinit(&csv);
        struct dp_diags diags;
        assert_int_equal(read_with(old.bytes, DP_SCHEDULE_LETTERS_NEW, &csv, &diags, NULL),
                         DP_INVALID);
        dp_diags_deinit(&diags);
        if (split) {
            assert_int_equal(read_with(text.bytes, DP_SCHEDULE_LETTERS_OLD, &csv, &diags, NULL),
                             DP_INVALID);
            dp_diags_deinit(&diags);
        }
        dp_buf_deinit(&old);
        dp_buf_deinit(&text);
        dp_schedule_deinit(&schedule);
    }
}

static void idle_slots_blanks_quotes_and_any_line_end_are_read(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    static const char *const forms[] = {
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1",
        "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1,,\n",
        " 0F0 ,0F1\t, 0B0,0B1 \n1F0,1B0 ,1F1,  ,1B1\r\n",
        "\"0F0\",\"0F1\",\"\",\"0B0\",\"0B1\"\n\"1F0\" ,1B0,1F1,\" 1B1 \"\n",
        "\xef\xbb\xbf"
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\n \r\n",
        "00F00,0F1,0B0,0B1\n1F0,1B0,1F1,01B001\n",
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        reads_back(forms[i], &schedule, false);
    }
    dp_schedule_deinit(&schedule);
    assert_true(is_good("0F0,(0F1;0B0)OVERLAP_F_B,0B1"));
    assert_true(is_good("0F0,( 0F1 ; 0B0 )OVERLAP_F_B,0B1"));
    // What a rank does for sharded parameters is no part of the order.
    assert_true(is_good("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"));
}

struct bad {
    const char *text;
    int line, column;
    const char *message; // a part of it
};

// The first problem is where and what the row says; all problems are `count`.
static void told(const struct bad *bad, size_t count)
{
    struct dp_schedule_csv csv;
    struct dp_diags diags;
    struct dp_error err = {0};
    dp_status status = read_with(bad->text, DP_SCHEDULE_LETTERS_ANY, &csv, &diags, &err);
    assert_int_equal(status, DP_INVALID);
    assert_true(diags.count > 0);
    const struct dp_diag *first = &diags.items[0];
    if (first->line != bad->line || first->column != bad->column ||
        strstr(first->message, bad->message) == NULL || diags.count + diags.dropped != count) {
        struct dp_buf text = {0};
        dp_diags_render(&diags, &text);
        print_error("%s", text.bytes);
        dp_buf_deinit(&text);
        fail_msg("not %zu, first %d:%d %s", count, bad->line, bad->column, bad->message);
    }
    char place[32];
    snprintf(place, sizeof(place), "x.csv:%d:%d: ", bad->line, bad->column);
    assert_non_null(strstr(err.message, place));
    dp_diags_deinit(&diags);
}

static void told_each(const struct bad *bad, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        told(&bad[i], 1);
    }
}
#define TOLD_EACH(table) told_each(table, sizeof(table) / sizeof((table)[0]))

static void cells_that_are_no_actions_are_told(void **state)
{
    (void)state;
    static const struct bad table[] = {
        {"", 1, 1, "the file is empty"},
        {"0F0,0B0\n1F0,1X0\n", 2, 5, "\"1X0\" is no action: its kind is unknown"},
        {"0F0,0f1", 1, 5, "its kind is unknown"},
        {"0F0,F1", 1, 5, "\"F1\" is no action: the number of its stage is missing"},
        {"0F0, 0F", 1, 6, "the number of its micro-batch is missing"},
        {"0F0,0F-1", 1, 5, "the number of its micro-batch is missing"},
        {"0F0,0F1x,0B0", 1, 8, "\"x\" stands behind the action"},
        {"0F0,0F1 ;0F2", 1, 8, "\" ;0F2\" stands behind"},
        {"0F0,0UNSHARD1", 1, 13, "\"1\" stands behind"},
        {"0F0,0OVERLAP_F_B", 1, 5, "its kind is unknown"},
        {"0F0,1024F0", 1, 5, "stage numbers go from 0 to 1023"},
        {"0F0,0F65536", 1, 7, "micro-batch numbers go from 0 to 65535"},
        {"0F0,0F99999999999999999999999999999999", 1, 7, "micro-batch numbers go from 0"},
        {"0F0,(0F1;0B0)", 1, 5, "has no OVERLAP_F_B"},
        {"0F0,(0F1;0B0)OVERLAP_F_Bx", 1, 25, "\"x\" stands behind"},
        {"0F0,(0F1;0B0OVERLAP_F_B", 1, 5, "has no closing bracket"},
        {"0F0,(0B0;0F1)OVERLAP_F_B", 1, 5, "one forward with one backward"},
        {"0F0,(0F1;0W0)OVERLAP_F_B", 1, 5, "one forward with one backward"},
        {"0F0,(0F1;0B0;0B1)OVERLAP_F_B", 1, 5, "one forward with one backward"},
        {"0F0,(0F1)OVERLAP_F_B", 1, 9, "the number of its stage is missing"},
        {"0F0,(0F1; 0Q0)OVERLAP_F_B", 1, 11, "\"0Q0\" is no action"},
        {"0F0,((0F1;0B0)OVERLAP_F_B;0B0)OVERLAP_F_B", 1, 26, "stands behind"},
        {"0F0,\"0F1,0B0", 1, 5, "the quotes are not closed"},
        {"0F0,\"0F1\"x,0B0", 1, 5, "behind the closing quotes"},
        {"0F0, \"0F1\"", 1, 6, "the number of its stage is missing"},
        {"\xef\xbb\xbf"
         "0F0,0X0",
         1, 5, "its kind is unknown"},
        {"\xef\xbb\xbf\r\n \n", 1, 1, "the file is empty"},
        {"0F0,0B0\n\n1F0,1B0", 2, 1, "rank 1 has no actions"},
        {"0F0,0B0\n,,\n1F0,1B0", 2, 1, "rank 1 has no actions"},
        {"0F0,0B0\n,\n \n", 2, 1, "rank 1 has no actions"},
    };
    TOLD_EACH(table);
}

static void columns_count_characters_and_not_bytes(void **state)
{
    (void)state;
    struct dp_schedule_csv csv;
    struct dp_diags diags;
    assert_int_equal(read_with("0F0,\xc3\xa4,0F1x,\"\xc3\xa4\",0B0y", DP_SCHEDULE_LETTERS_ANY, &csv,
                               &diags, NULL),
                     DP_INVALID);
    static const int columns[] = {5, 10, 13, 19};
    assert_int_equal(diags.count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(diags.items[i].column, columns[i]);
    }
    dp_diags_deinit(&diags);
}

static void more_rows_than_ranks_can_be_are_refused(void **state)
{
    (void)state;
    struct dp_buf text = {0};
    for (int row = 0; row < 300; row++) {
        dp_buf_printf(&text, "%dF0,%dB0\n", row, row);
    }
    told(&(struct bad){text.bytes, 257, 1, "256"}, 1);
    dp_buf_deinit(&text);
}

static void what_the_numbers_leave_out_is_told_where_the_largest_is(void **state)
{
    (void)state;
    static const struct bad table[] = {
        {"0F0,0B0\n2F0,2B0", 2, 1, "stage 2 is here, but nothing is done of stage 1"},
        {"0F0,0F9,0B0,0B9", 1, 5, "micro-batch 9 is here, but nothing is done of micro-batch 1"},
        {"0F1,0B1", 1, 1, "nothing is done of micro-batch 0"},
        {"0F0,0B0\n0SEND_F0", 2, 1, "rank 1 has no F, B, I or W"},
    };
    TOLD_EACH(table);
}

static void a_stage_on_two_ranks_is_told_with_both_places(void **state)
{
    (void)state;
    static const struct bad table[] = {
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1,0B1", 2, 17,
         "stage 0 is on rank 1 here, and on rank 0 from 1:1 on"},
        {"1F0,0F0,0F1,0B0,0B1\n 1F0,1F1,1B0,1B1", 1, 1,
         "stage 1 is on rank 0 here, and on rank 1 from 2:2 on"},
    };
    TOLD_EACH(table);
    // Both directions of a bidirectional schedule.
    told(&(struct bad){"0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1", 2, 1, "stage 0 is on rank 1 here"}, 2);
}

static void letters_of_both_ages_in_one_file_are_told(void **state)
{
    (void)state;
    static const struct bad table[] = {
        {"0F0,0I0,0W0,0F1,0BW1", 1, 17, "0BW1 is in the old letters"},
        {"0F0,(0F1;0B0)OVERLAP_F_B,0BW1", 1, 26, "0BW1 is in the old letters"},
    };
    TOLD_EACH(table);
}

// The order of one file, in the notation of the file.
static void problems_of_the_order_are_told_at_their_cells(void **state)
{
    (void)state;
    static const struct bad table[] = {
        {"0F0,0F0,0B0", 1, 5, "rank 0: 0F0 runs a second time"},
        {"0F0,,0I0,0W0,0W0", 1, 14, "0W0 repeats weight gradients"},
        {"0F0,0W0,0I0", 1, 5, "0W0 comes before its I"},
        {"0B0,0F0", 1, 1, "0B0 comes before its F"},
        {"0F0,0I0", 1, 5, "micro-batch 0 has no W at stage 0"},
        {"0F0,0F1,0B0", 1, 9, "micro-batch 1 has no B or I at stage 0"},
        {"0F0,0F1,0BW0,0BW1,0B0,0W0", 1, 19, "0B0 is a second backward"},
        {"0F0,0F1,0BW0,0B1", 1, 14, "micro-batch 1 has no W"},
        {"0F0,(0F1;0B1)OVERLAP_F_B,0B0", 1, 5, "0B1 needs 0F1 of the same pair"},
        {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", 1, 5,
         "rank 0 at 1:5 (0B0) waits for 1B0 of rank 1 at 2:5 (1F1), which waits for 0F1 of rank 0"},
    };
    TOLD_EACH(table);
}

// Two ranks, one micro-batch, with what the cases below break.
static void problems_of_messages_are_told_at_their_cells(void **state)
{
    (void)state;
    assert_true(is_good("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"));
    assert_true(is_good("0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"));
    static const struct bad table[] = {
        {"0F0,0SEND_F0,0RECV_B0,0B0,\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 27, "an empty cell"},
        {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 1,
         "rank 0: 0F0 makes what nobody sends: 0SEND_F0 is not there"},
        {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", 2, 1,
         "rank 1: 1F0 needs 1RECV_F0, which is not there"},
        {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 1,
         "0SEND_F0 comes before what it sends is made by 0F0 (1:10)"},
        {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 18,
         "0RECV_B0 comes too late for 0B0 (1:14)"},
        {"0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 14,
         "0SEND_F0 is there a second time, after 0SEND_F0 (1:5)"},
        {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1RECV_F0,1F0,1B0,1SEND_B0", 2, 10,
         "1RECV_F0 is there a second time"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,1SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 27,
         "1SEND_B0 is on the wrong rank: rank 1 has stage 1"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 27,
         "0SEND_B0 has no other end: there is no stage -1"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,7SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 27,
         "of no such stage; stages are 0 to 1"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_F3\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 27,
         "of no such micro-batch; micro-batches are 0 to 0"},
        {"0F0,0SEND_F0,1F0,1B0,0B0", 1, 5, "0SEND_F0 is not needed: stage 1 is on this rank"},
        {"0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 5,
         "0WAIT_SEND_F0 waits for what is not sent before it"},
        {"1UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 1, 1,
         "1UNSHARD is on the wrong rank"},
        {"0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1",
         2, 1,
         "rank 1: 1RECV_F0 stands where the next message of rank 0 to rank 1 is 0SEND_F1 (1:9)"},
        {"0F0,0SEND_F0,0F1,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n"
         "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1",
         1, 18,
         "rank 0 at 1:18 (0RECV_B0) waits for rank 1 at 2:18 (1RECV_F1), which waits for rank 0"},
    };
    TOLD_EACH(table);
}

// Whatever a rank does too early, too late, twice or not at all among its messages: the strict run
// of all rows finds the same.
static void changed_messages_are_told_exactly_when_they_do_harm(void **state)
{
    (void)state;
    static const char *const names[] = {"1f1b", "interleaved", "zb-h1",
                                        "zb-v", "dualpipev",   "hanayo"};
    struct dp_rand rand;
    dp_rand_init(&rand, 3);
    long harmful = 0, harmless = 0;
    for (long run = 0; run < dp_fuzz_runs(3000); run++) {
        int32_t p = 2 + (int32_t)dp_rand_below(&rand, 3);
        int32_t m = 2 * p + (int32_t)dp_rand_below(&rand, 4);
        size_t family = dp_rand_below(&rand, sizeof(names) / sizeof(names[0]));
        struct dp_schedule schedule = make_schedule(names[family], p, m);
        struct dp_buf text = with_messages(&schedule, run % 4 == 0);
        struct torch_rows rows;
        torch_rows_split(text.bytes, &rows);
        bool moved = torch_rows_change(&rows, &rand);
        struct dp_buf changed = {0};
        torch_rows_join(&rows, &changed);
        bool good = torch_rows_run(&rows);
        if (is_good(changed.bytes) != good) {
            fail_msg("it is %s:\n%s", good ? "good" : "wrong", changed.bytes);
        }
        assert_true(moved || !good);
        harmful += !good;
        harmless += good;
        torch_rows_deinit(&rows);
        dp_buf_deinit(&changed);
        dp_buf_deinit(&text);
        dp_schedule_deinit(&schedule);
    }
    assert_true(harmful > 0 && harmless > 0);
}

// Whatever a byte becomes, the file is read or refused, and what is read is valid.
static void files_with_other_bytes_do_no_harm(void **state)
{
    (void)state;
    static const char bytes[] = "0123456789FBIWSENDRCV_();,\n\r \"UX\xc3";
    struct dp_schedule schedule = make_schedule("dualpipev", 2, 4);
    struct dp_buf texts[2] = {plain(&schedule), with_messages(&schedule, true)};
    struct dp_rand rand;
    dp_rand_init(&rand, 17);
    for (long run = 0; run < dp_fuzz_runs(4000); run++) {
        const struct dp_buf *text = &texts[run % 2];
        struct dp_buf changed = {0};
        dp_buf_append(&changed, text->bytes, text->length);
        for (uint64_t n = 1 + dp_rand_below(&rand, 3); n > 0; n--) {
            changed.bytes[dp_rand_below(&rand, changed.length)] =
                bytes[dp_rand_below(&rand, sizeof(bytes) - 1)];
        }
        size_t length =
            dp_rand_below(&rand, 4) > 0 ? changed.length : dp_rand_below(&rand, changed.length);
        struct dp_schedule_csv csv;
        struct dp_diags diags;
        dp_diags_init(&diags, "x.csv", changed.bytes, length);
        if (dp_schedule_read_csv(changed.bytes, length, DP_SCHEDULE_LETTERS_ANY, &csv, &diags,
                                 NULL) == DP_OK) {
            assert_int_equal(dp_schedule_validate(&csv.schedule, NULL), DP_OK);
            dp_schedule_csv_deinit(&csv);
        } else {
            assert_true(diags.count > 0);
            for (size_t i = 0; i < diags.count; i++) {
                assert_true(diags.items[i].line >= 1 && diags.items[i].column >= 1);
            }
        }
        dp_diags_deinit(&diags);
        dp_buf_deinit(&changed);
    }
    dp_buf_deinit(&texts[0]);
    dp_buf_deinit(&texts[1]);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_exported_schedule_reads_back_as_it_was),
        cmocka_unit_test(dualpipev_in_pytorchs_form_is_ours),
        cmocka_unit_test(old_letters_are_told_from_new_ones),
        cmocka_unit_test(idle_slots_blanks_quotes_and_any_line_end_are_read),
        cmocka_unit_test(cells_that_are_no_actions_are_told),
        cmocka_unit_test(columns_count_characters_and_not_bytes),
        cmocka_unit_test(more_rows_than_ranks_can_be_are_refused),
        cmocka_unit_test(what_the_numbers_leave_out_is_told_where_the_largest_is),
        cmocka_unit_test(a_stage_on_two_ranks_is_told_with_both_places),
        cmocka_unit_test(letters_of_both_ages_in_one_file_are_told),
        cmocka_unit_test(problems_of_the_order_are_told_at_their_cells),
        cmocka_unit_test(problems_of_messages_are_told_at_their_cells),
        cmocka_unit_test(changed_messages_are_told_exactly_when_they_do_harm),
        cmocka_unit_test(files_with_other_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
