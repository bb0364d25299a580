// The keeper as a process: what its ranks find, what it remembers, and that nothing outlives it.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/link.h"
#include "dp/rand.h"
#include "dp/sealed.h"
#include "dp_test.h"
#include "harness.h"

struct keeper {
    char *directory;
    pid_t pid;
    struct dp_link link;
};

static pid_t start_process(const char *directory, const char *lease_ms, const char *log_bytes)
{
    char *arguments[] = {
        (char *)DP_KEEPER, (char *)"--directory", (char *)directory, (char *)"--lease-ms",
        (char *)lease_ms,  (char *)"--log-bytes", (char *)log_bytes, NULL,
    };
    char *environment[] = {(char *)"DP_LOG=error", NULL};
    return harness_start(arguments, environment);
}

static bool try_connect(void *context)
{
    struct keeper *keeper = context;
    int fd;
    if (dp_link_connect(keeper->directory, "keeper.sock", &fd, NULL) != DP_OK) {
        return false;
    }
    dp_link_init(&keeper->link, fd, DP_LINK_OUT_BYTES_MAX);
    return true;
}

static void send_frame(struct keeper *keeper, const struct dp_link_frame *frame)
{
    struct dp_error err = {0};
    assert_ok(dp_link_send(&keeper->link, frame, HARNESS_DEADLINE_MS, &err), &err);
}

static void connect_agent(struct keeper *keeper)
{
    harness_until(try_connect, keeper, "the keeper listens");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    struct dp_link_hello hello = {.protocol = DP_LINK_PROTOCOL, .pid = getpid()};
    dp_link_hello_write(&hello, &payload);
    send_frame(keeper, &(struct dp_link_frame){.type = DP_LINK_HELLO,
                                               .payload = payload.bytes,
                                               .length = payload.length});
}

static struct dp_link_frame next_frame(struct keeper *keeper)
{
    struct dp_error err = {0};
    struct dp_link_frame frame;
    assert_ok(dp_link_recv(&keeper->link, HARNESS_DEADLINE_MS, &frame, &err), &err);
    return frame;
}

// Skips what comes before.
static struct dp_link_frame await(struct keeper *keeper, dp_link_type type, uint32_t rank)
{
    for (;;) {
        struct dp_link_frame frame = next_frame(keeper);
        if (frame.type == type && frame.rank == rank) {
            return frame;
        }
    }
}

static struct dp_link_exited await_exit(struct keeper *keeper, uint32_t rank)
{
    struct dp_error err = {0};
    struct dp_link_exited exited;
    struct dp_link_frame frame = await(keeper, DP_LINK_EXITED, rank);
    assert_ok(dp_link_exited_read(&frame, &exited, &err), &err);
    return exited;
}

static struct keeper keeper_open_with(const char *lease_ms, const char *log_bytes)
{
    struct keeper keeper = {.directory = harness_directory()};
    keeper.pid = start_process(keeper.directory, lease_ms, log_bytes);
    connect_agent(&keeper);
    (void)await(&keeper, DP_LINK_SYNCED, 0);
    return keeper;
}

static struct keeper keeper_open(void)
{
    return keeper_open_with("60000", "1000000");
}

static void send_plain(struct keeper *keeper, dp_link_type type)
{
    send_frame(keeper, &(struct dp_link_frame){.type = type});
}

static void keeper_discard(struct keeper *keeper)
{
    dp_link_deinit(&keeper->link);
    harness_remove(keeper->directory);
    free(keeper->directory);
}

static void keeper_close(struct keeper *keeper)
{
    send_plain(keeper, DP_LINK_SHUTDOWN);
    int status = harness_wait(keeper->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    keeper_discard(keeper);
}

static void send_spawn(struct keeper *keeper, uint32_t rank, const char *program,
                       const char *script)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf payload = {0};
    DP_AUTO_FREE char *number = dp_asprintf("%u", rank);
    DP_AUTO_FREE char *variable = dp_asprintf("DP_FAKE_RANK=%s", script);
    char *arguments[] = {
        (char *)program, (char *)"--control-fd", (char *)"3", (char *)"--rank", number, NULL};
    char *environment[] = {variable, NULL};
    struct dp_link_spawn spawn = {arguments, environment, "order", 5};
    dp_link_spawn_write(&spawn, &payload);
    send_frame(keeper, &(struct dp_link_frame){.type = DP_LINK_SPAWN,
                                               .rank = rank,
                                               .payload = payload.bytes,
                                               .length = payload.length});
}

static pid_t spawn_rank(struct keeper *keeper, uint32_t rank, const char *script)
{
    struct dp_error err = {0};
    struct dp_link_spawned spawned;
    send_spawn(keeper, rank, DP_FAKE_RANK, script);
    struct dp_link_frame frame = await(keeper, DP_LINK_SPAWNED, rank);
    assert_ok(dp_link_spawned_read(&frame, &spawned, &err), &err);
    return (pid_t)spawned.pid;
}

static void stop_rank(struct keeper *keeper, uint32_t rank, uint32_t grace_ms)
{
    send_frame(keeper, &(struct dp_link_frame){.type = DP_LINK_STOP,
                                               .rank = rank,
                                               .payload = &grace_ms,
                                               .length = sizeof grace_ms});
}

struct log_wait {
    const char *directory;
    uint32_t rank;
    const char *text;
    struct dp_buf log;
};

static bool log_contains(void *context)
{
    struct log_wait *wait = context;
    dp_buf_clear(&wait->log);
    harness_rank_log(wait->directory, wait->rank, &wait->log);
    return wait->log.length > 0 && strstr(wait->log.bytes, wait->text) != NULL;
}

static struct dp_buf await_log(const struct keeper *keeper, uint32_t rank, const char *text)
{
    struct log_wait wait = {keeper->directory, rank, text, {0}};
    harness_until(log_contains, &wait, text);
    return wait.log;
}

static void a_rank_starts_with_clean_signals_descriptors_and_session(void **state)
{
    (void)state;
    // All that a careless starter could hand down.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    (void)signal(SIGUSR1, SIG_IGN);
    (void)signal(SIGTSTP, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN);
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit most = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &most), 0);
    int leaked = open("/dev/null", O_RDONLY); // NOLINT: without O_CLOEXEC on purpose
    // As far up as there may be some, so that nobody can count his way there in time.
    int high = fcntl(leaked, F_DUPFD, most.rlim_cur < (1 << 20) ? (int)most.rlim_cur - 1 : 1 << 20);
    assert_true(high > leaked);
    struct keeper keeper = {.directory = harness_directory()};
    keeper.pid = start_process(keeper.directory, "60000", "100000");
    (void)signal(SIGUSR1, SIG_DFL);
    (void)signal(SIGTSTP, SIG_DFL);
    (void)signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(leaked);
    close(high);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    connect_agent(&keeper);
    pid_t pid = spawn_rank(&keeper, 0, "state exit=0");
    (void)await_exit(&keeper, 0);
    struct dp_buf log = await_log(&keeper, 0, "session");
    assert_non_null(strstr(log.bytes, "SigBlk:\t0000000000000000"));
    assert_non_null(strstr(log.bytes, "SigIgn:\t0000000000000000"));
    assert_non_null(strstr(log.bytes, "fds: 0 1 2 3\n"));
    DP_AUTO_FREE char *session =
        dp_asprintf("session %d group %d pid %d\n", (int)pid, (int)pid, (int)pid);
    assert_non_null(strstr(log.bytes, session));
    dp_buf_deinit(&log);
    keeper_close(&keeper);
}

static void the_directory_is_private(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    struct stat info;
    assert_int_equal(stat(keeper.directory, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    keeper_close(&keeper);
}

static void a_socket_left_behind_does_not_block_the_next_keeper(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    DP_AUTO_FREE char *path = dp_asprintf("%s/keeper.sock", keeper.directory);
    assert_int_equal(kill(keeper.pid, SIGKILL), 0);
    (void)harness_wait(keeper.pid);
    dp_link_deinit(&keeper.link);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    keeper.pid = start_process(keeper.directory, "60000", "100000");
    connect_agent(&keeper);
    (void)await(&keeper, DP_LINK_SYNCED, 0);
    (void)spawn_rank(&keeper, 0, "exit=3");
    assert_int_equal(await_exit(&keeper, 0).status, 3);
    keeper_close(&keeper);
}

static void how_a_rank_ended_is_told(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t pid = spawn_rank(&keeper, 0, "exit=3");
    struct dp_link_exited exited = await_exit(&keeper, 0);
    assert_int_equal(exited.pid, pid);
    assert_int_equal(exited.status, 3);
    assert_int_equal(exited.signal, 0);
    (void)spawn_rank(&keeper, 1, "crash");
    exited = await_exit(&keeper, 1);
    assert_int_equal(exited.signal, SIGSEGV);
    assert_int_equal(exited.stop, DP_LINK_STOP_NONE);
    (void)spawn_rank(&keeper, 2, "sleep");
    stop_rank(&keeper, 2, 20000);
    exited = await_exit(&keeper, 2);
    assert_int_equal(exited.signal, SIGTERM);
    assert_int_equal(exited.stop, DP_LINK_STOP_ORDERED);
    keeper_close(&keeper);
}

static void the_last_words_of_a_rank_come_before_its_end(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    send_spawn(&keeper, 0, DP_FAKE_RANK, "ready steps=200 finish crash");
    int steps = 0;
    bool finished = false;
    struct dp_link_frame frame;
    do {
        frame = next_frame(&keeper);
        steps += frame.type == DP_LINK_REPORT && frame.slot == DP_LINK_SLOT_STEP;
        finished =
            finished || (frame.type == DP_LINK_REPORT && frame.slot == DP_LINK_SLOT_FINISHED);
    } while (frame.type != DP_LINK_EXITED);
    assert_int_equal(steps, 200);
    assert_true(finished);
    keeper_close(&keeper);
}

static void a_program_that_is_not_there_is_told_with_its_name(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    send_spawn(&keeper, 4, "/nonexistent/rank", "exit=0");
    struct dp_link_exited exited = await_exit(&keeper, 4);
    assert_int_equal(exited.pid, 0);
    assert_non_null(strstr(exited.error, "/nonexistent/rank"));
    assert_non_null(strstr(exited.error, "No such file"));
    keeper_close(&keeper);
}

static uint64_t bytes_of_logs(const char *directory)
{
    uint64_t total = 0;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        struct stat info;
        if (strncmp(entry->d_name, "rank-", 5) == 0) {
            assert_int_equal(fstatat(dirfd(listing), entry->d_name, &info, 0), 0);
            total += (uint64_t)info.st_size;
        }
    }
    closedir(listing);
    return total;
}

static void a_rank_that_floods_its_output_fills_no_disk(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open_with("60000", "65536");
    (void)spawn_rank(&keeper, 0, "flood=32768 print=end exit=0");
    struct dp_link_exited exited = await_exit(&keeper, 0);
    assert_int_equal(exited.status, 0);
    assert_true(bytes_of_logs(keeper.directory) <= 65536);
    // 32 MiB and five bytes were written.
    assert_true(exited.log_dropped >= (32u << 20) + 5 - 65536);
    keeper_close(&keeper);
}

static void a_stopped_rank_gets_its_grace_and_no_more(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    (void)spawn_rank(&keeper, 0, "print=up sleep");
    pid_t stubborn = spawn_rank(&keeper, 1, "ignore-term print=up sleep");
    struct dp_buf log = await_log(&keeper, 1, "up");
    dp_buf_deinit(&log);
    stop_rank(&keeper, 0, 20000);
    assert_int_equal(await_exit(&keeper, 0).signal, SIGTERM);
    assert_true(harness_exists(stubborn));
    stop_rank(&keeper, 1, 20);
    assert_int_equal(await_exit(&keeper, 1).signal, SIGKILL);
    keeper_close(&keeper);
}

static void a_rank_that_was_stopped_with_a_signal_still_ends_politely(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t pid = spawn_rank(&keeper, 0, "handle-term print=up sleep");
    struct dp_buf log = await_log(&keeper, 0, "up");
    dp_buf_deinit(&log);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    stop_rank(&keeper, DP_LINK_ALL_RANKS, 20000);
    assert_int_equal(await_exit(&keeper, 0).status, 77);
    keeper_close(&keeper);
}

static void an_agent_that_comes_back_is_told_everything_again(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t pid = spawn_rank(&keeper, 0, "ready steps=600 sample print=up sleep");
    struct dp_buf log = await_log(&keeper, 0, "up");
    dp_buf_deinit(&log);
    (void)spawn_rank(&keeper, 1, "finish exit=7");
    (void)await_exit(&keeper, 1);
    dp_link_deinit(&keeper.link);
    connect_agent(&keeper);
    unsigned by_slot[DP_LINK_SLOT_COUNT] = {0};
    bool exited = false;
    struct dp_link_frame frame;
    assert_int_equal(next_frame(&keeper).type, DP_LINK_HELLO);
    for (frame = next_frame(&keeper); frame.type != DP_LINK_SYNCED; frame = next_frame(&keeper)) {
        if (frame.type == DP_LINK_SPAWNED && frame.rank == 0) {
            struct dp_error err = {0};
            struct dp_link_spawned spawned;
            assert_ok(dp_link_spawned_read(&frame, &spawned, &err), &err);
            assert_int_equal(spawned.pid, pid);
        }
        by_slot[frame.slot] += frame.type == DP_LINK_REPORT;
        exited = exited || (frame.type == DP_LINK_EXITED && frame.rank == 1);
    }
    assert_int_equal(by_slot[DP_LINK_SLOT_STEP], 512);
    assert_int_equal(by_slot[DP_LINK_SLOT_READY], 1);
    assert_int_equal(by_slot[DP_LINK_SLOT_UTILISATION], 1);
    assert_int_equal(by_slot[DP_LINK_SLOT_FINISHED], 1);
    assert_true(exited);
    keeper_close(&keeper);
}

static void a_newer_agent_takes_the_place_of_the_older(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    struct keeper newer = {.directory = keeper.directory, .pid = keeper.pid};
    connect_agent(&newer);
    (void)await(&newer, DP_LINK_SYNCED, 0);
    struct dp_link_frame frame;
    struct dp_error err = {0};
    assert_refused(dp_link_recv(&keeper.link, HARNESS_DEADLINE_MS, &frame, &err), DP_UNAVAILABLE,
                   &err, "closed");
    dp_link_deinit(&keeper.link);
    keeper_close(&newer);
}

static void what_an_agent_ordered_before_it_died_is_done(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    for (uint32_t rank = 0; rank < 3; rank++) {
        (void)spawn_rank(&keeper, rank, "sleep");
    }
    // The keeper finds the orders, the end of their sender and its successor all at once.
    assert_int_equal(kill(keeper.pid, SIGSTOP), 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        send_frame(&keeper,
                   &(struct dp_link_frame){DP_LINK_ORDER, DP_LINK_ORDER_START, rank, "start", 5});
    }
    dp_link_deinit(&keeper.link);
    connect_agent(&keeper);
    assert_int_equal(kill(keeper.pid, SIGCONT), 0);
    int started = 0;
    struct dp_link_frame frame;
    for (frame = next_frame(&keeper); frame.type != DP_LINK_SYNCED; frame = next_frame(&keeper)) {
        struct dp_error err = {0};
        struct dp_link_spawned spawned;
        if (frame.type == DP_LINK_SPAWNED) {
            assert_ok(dp_link_spawned_read(&frame, &spawned, &err), &err);
            started += spawned.started;
        }
    }
    assert_int_equal(started, 3);
    keeper_close(&keeper);
}

static void the_start_is_passed_on_once(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    // The first order is part of the spawn; a second start would let it say "twice".
    (void)spawn_rank(&keeper, 0, "start start print=once start print=twice sleep");
    struct dp_link_frame start = {DP_LINK_ORDER, DP_LINK_ORDER_START, 0, "start", 5};
    struct dp_link_frame other = {DP_LINK_ORDER, DP_LINK_ORDER_OTHER, 0, "other", 5};
    send_frame(&keeper, &start);
    send_frame(&keeper, &start);
    struct dp_buf log = await_log(&keeper, 0, "once");
    dp_buf_deinit(&log);
    // The keeper handles frames in order, so after the echo it has seen the second start.
    send_plain(&keeper, DP_LINK_PING);
    (void)await(&keeper, DP_LINK_PING, 0);
    log = await_log(&keeper, 0, "once");
    assert_null(strstr(log.bytes, "twice"));
    dp_buf_deinit(&log);
    send_frame(&keeper, &other);
    log = await_log(&keeper, 0, "twice");
    dp_buf_deinit(&log);
    keeper_close(&keeper);
}

// Reads a number after `word` in the rank's output.
static pid_t number_in_log(const struct keeper *keeper, uint32_t rank, const char *word)
{
    struct dp_buf log = await_log(keeper, rank, word);
    pid_t pid = (pid_t)atoi(strstr(log.bytes, word) + strlen(word));
    dp_buf_deinit(&log);
    assert_true(pid > 0);
    return pid;
}

static void what_a_rank_left_behind_ends_with_the_keeper(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    (void)spawn_rank(&keeper, 0, "grandchild sleep");
    pid_t grandchild = number_in_log(&keeper, 0, "grandchild ");
    assert_true(harness_exists(grandchild));
    send_plain(&keeper, DP_LINK_SHUTDOWN);
    assert_int_equal(await_exit(&keeper, 0).signal, SIGKILL);
    assert_int_equal(harness_wait(keeper.pid), 0);
    harness_wait_gone(grandchild);
    keeper_discard(&keeper);
}

static void a_keeper_that_is_killed_takes_its_ranks_along(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t ranks[4];
    for (uint32_t i = 0; i < 4; i++) {
        ranks[i] = spawn_rank(&keeper, i, "ignore-term sleep");
    }
    assert_int_equal(kill(keeper.pid, SIGKILL), 0);
    (void)harness_wait(keeper.pid);
    for (uint32_t i = 0; i < 4; i++) {
        harness_wait_gone(ranks[i]);
    }
    keeper_discard(&keeper);
}

// The levels file holds the frames that an agent would have been sent.
static void read_levels(const struct keeper *keeper, struct dp_link *ret_link)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/keeper.levels", keeper->directory);
    *ret_link = (struct dp_link){.fd = -1};
    assert_ok(dp_sealed_read(path, DP_LINK_LEVELS_KIND, 1 << 24, &ret_link->in, &err), &err);
}

static void without_an_agent_the_ranks_end_and_their_ends_are_written_down(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open_with("300", "100000");
    pid_t polite = spawn_rank(&keeper, 0, "sleep");
    pid_t stubborn = spawn_rank(&keeper, 1, "ignore-term sleep");
    dp_link_deinit(&keeper.link);
    int status = harness_wait(keeper.pid);
    assert_int_equal(status, 0);
    assert_false(harness_exists(polite));
    assert_false(harness_exists(stubborn));
    struct dp_link levels;
    struct dp_error err = {0};
    struct dp_link_frame frame;
    int32_t signals[2] = {0};
    read_levels(&keeper, &levels);
    do {
        assert_ok(dp_link_next(&levels, &frame, &err), &err);
        if (frame.type == DP_LINK_EXITED) {
            struct dp_link_exited exited;
            assert_ok(dp_link_exited_read(&frame, &exited, &err), &err);
            signals[frame.rank] = exited.signal;
            assert_int_equal(exited.stop, DP_LINK_STOP_KEEPER);
        }
    } while (frame.type != DP_LINK_NONE);
    assert_int_equal(signals[0], SIGTERM);
    assert_int_equal(signals[1], SIGKILL);
    dp_link_deinit(&levels);
    keeper_discard(&keeper);
}

static void bytes_that_are_no_frames_cost_the_connection_alone(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t rank = spawn_rank(&keeper, 0, "sleep");
    struct dp_rand rand;
    dp_rand_init(&rand, 99);
    for (int i = 0; i < 50; i++) {
        struct keeper stranger = {.directory = keeper.directory};
        harness_until(try_connect, &stranger, "the keeper listens");
        unsigned char noise[256];
        for (size_t at = 0; at < sizeof noise; at++) {
            noise[at] = (unsigned char)dp_rand_below(&rand, i % 2 == 0 ? 256 : 12);
        }
        (void)!write(stranger.link.fd, noise, sizeof noise);
        dp_link_deinit(&stranger.link);
    }
    dp_link_deinit(&keeper.link);
    connect_agent(&keeper);
    (void)await(&keeper, DP_LINK_SYNCED, 0);
    assert_true(harness_exists(rank));
    keeper_close(&keeper);
}

static void a_second_keeper_in_a_directory_says_so_and_exits(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    int status = harness_wait(start_process(keeper.directory, "1000", "1000"));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 6);
    send_plain(&keeper, DP_LINK_PING);
    (void)await(&keeper, DP_LINK_PING, 0);
    keeper_close(&keeper);
}

static void a_keeper_told_to_end_ends_its_ranks_first(void **state)
{
    (void)state;
    struct keeper keeper = keeper_open();
    pid_t rank = spawn_rank(&keeper, 0, "sleep");
    assert_int_equal(kill(keeper.pid, SIGTERM), 0);
    assert_int_equal(await_exit(&keeper, 0).signal, SIGTERM);
    assert_int_equal(harness_wait(keeper.pid), 0);
    assert_false(harness_exists(rank));
    keeper_discard(&keeper);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_starts_with_clean_signals_descriptors_and_session),
        cmocka_unit_test(the_directory_is_private),
        cmocka_unit_test(a_socket_left_behind_does_not_block_the_next_keeper),
        cmocka_unit_test(how_a_rank_ended_is_told),
        cmocka_unit_test(the_last_words_of_a_rank_come_before_its_end),
        cmocka_unit_test(a_program_that_is_not_there_is_told_with_its_name),
        cmocka_unit_test(a_rank_that_floods_its_output_fills_no_disk),
        cmocka_unit_test(a_stopped_rank_gets_its_grace_and_no_more),
        cmocka_unit_test(a_rank_that_was_stopped_with_a_signal_still_ends_politely),
        cmocka_unit_test(an_agent_that_comes_back_is_told_everything_again),
        cmocka_unit_test(a_newer_agent_takes_the_place_of_the_older),
        cmocka_unit_test(what_an_agent_ordered_before_it_died_is_done),
        cmocka_unit_test(the_start_is_passed_on_once),
        cmocka_unit_test(what_a_rank_left_behind_ends_with_the_keeper),
        cmocka_unit_test(a_keeper_that_is_killed_takes_its_ranks_along),
        cmocka_unit_test(without_an_agent_the_ranks_end_and_their_ends_are_written_down),
        cmocka_unit_test(bytes_that_are_no_frames_cost_the_connection_alone),
        cmocka_unit_test(a_second_keeper_in_a_directory_says_so_and_exits),
        cmocka_unit_test(a_keeper_told_to_end_ends_its_ranks_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
