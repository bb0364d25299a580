// Ranks that are processes, and die or stand still as processes do.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/rand.h"
#include "dp/transport_ops.h"

#define WORLD 3
#define DEADLINE_NS (300 * DP_NS_PER_S)

typedef enum process_kind { PROCESS_TCP, PROCESS_SHM, PROCESS_AUTO, PROCESS_KINDS } process_kind;

// One rank's process as the parent sees it.
struct process {
    pid_t pid;
    int to, from; // pipes
    char address[DP_ADDRESS_MAX];
};

// What a rank has to say to the parent, and wait for from it.
struct ends {
    int from, to;
};

typedef dp_status (*process_rank)(struct dp_transport *transport, const struct ends *ends,
                                  struct dp_error *err);

static bool read_all(int fd, void *bytes, size_t length)
{
    for (size_t got = 0; got < length;) {
        ssize_t part = read(fd, (char *)bytes + got, length - got);
        if (part <= 0) {
            return false;
        }
        got += (size_t)part;
    }
    return true;
}

static dp_status say(const struct ends *ends, char word, struct dp_error *err)
{
    EXPECT(write(ends->to, &word, 1) == 1);
    return DP_OK;
}

static dp_status hear(const struct ends *ends, struct dp_error *err)
{
    char word;
    EXPECT(read_all(ends->from, &word, 1));
    return DP_OK;
}

static void *run_mover(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

static dp_status connect_rank(process_kind kind, int32_t rank, const struct ends *ends,
                              struct dp_transport **ret_transport, struct dp_error *err)
{
    char address[DP_ADDRESS_MAX] = {0}, table[WORLD][DP_ADDRESS_MAX];
    const char *addresses[WORLD];
    if (kind == PROCESS_TCP) {
        EXPECT_OK(
            dp_transport_tcp_listen("127.0.0.1", rank, WORLD, 5, address, ret_transport, err));
    } else if (kind == PROCESS_SHM) {
        EXPECT_OK(dp_transport_shm_listen(rank, WORLD, 5, address, ret_transport, err));
    } else {
        struct dp_transport_config config = {
            .host = "127.0.0.1", .rank = rank, .world = WORLD, .token = 5};
        EXPECT_OK(dp_transport_open(&config, address, ret_transport, err));
    }
    EXPECT(write(ends->to, address, sizeof address) == sizeof address);
    EXPECT(read_all(ends->from, table, sizeof table));
    for (int32_t i = 0; i < WORLD; i++) {
        addresses[i] = table[i];
    }
    return dp_transport_connect(*ret_transport, addresses, dp_clock_monotonic_ns() + DEADLINE_NS,
                                err);
}

static dp_status live(process_kind kind, int32_t rank, const struct ends *ends, process_rank run,
                      struct dp_error *err)
{
    struct dp_transport *transport = NULL;
    EXPECT_OK(connect_rank(kind, rank, ends, &transport, err));
    pthread_t mover;
    pthread_create(&mover, NULL, run_mover, transport);
    dp_status status = run(transport, ends, err);
    bool is_well = status == DP_OK;
    dp_status closed = dp_transport_close(
        transport, dp_clock_monotonic_ns() + (is_well ? DEADLINE_NS : 0), is_well ? err : NULL);
    pthread_join(mover, NULL);
    dp_transport_free(transport);
    return is_well ? closed : status;
}

static void start(struct process *process, process_kind kind, int32_t rank, process_rank run)
{
    int down[2], up[2];
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        close(down[1]);
        close(up[0]);
        alarm(400); // should the parent be gone
        struct ends ends = {.from = down[0], .to = up[1]};
        struct dp_error err = {0};
        dp_status status = live(kind, rank, &ends, run, &err);
        if (status != DP_OK) {
            fprintf(stderr, "rank %d: %s: %s\n", rank, dp_status_name(status), err.message);
        }
        _exit(status == DP_OK ? 0 : 1);
    }
    close(down[0]);
    close(up[1]);
    process->to = down[1];
    process->from = up[0];
}

static void start_all(struct process *processes, process_kind kind, process_rank run)
{
    char table[WORLD][DP_ADDRESS_MAX];
    for (int32_t i = 0; i < WORLD; i++) {
        start(&processes[i], kind, i, run);
    }
    for (int32_t i = 0; i < WORLD; i++) {
        assert_true(read_all(processes[i].from, processes[i].address, DP_ADDRESS_MAX));
        memcpy(table[i], processes[i].address, DP_ADDRESS_MAX);
    }
    for (int32_t i = 0; i < WORLD; i++) {
        assert_int_equal(write(processes[i].to, table, sizeof table), sizeof table);
    }
}

static void await_word(const struct process *process, char wanted)
{
    char word = 0;
    assert_true(read_all(process->from, &word, 1));
    assert_int_equal(word, wanted);
}

static void tell(const struct process *process)
{
    assert_int_equal(write(process->to, "g", 1), 1);
}

// The status as waitpid has it.
static int finish(struct process *process)
{
    int status = -1;
    assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
    close(process->to);
    close(process->from);
    return status;
}

// Of ours: other programs have files there too.
static int count_shared_files(void)
{
    DIR *directory = opendir("/dev/shm");
    int count = 0;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        count += strstr(entry->d_name, "dp-") != NULL;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

// Whether the kernel still has a local socket of a rank's address.
static bool has_socket(const char *address)
{
    const char *slash = strstr(address, "shm=");
    slash = strchr(slash != NULL ? slash : address, '/');
    if (slash == NULL || strlen(slash) < 17) {
        return false;
    }
    FILE *file = fopen("/proc/net/unix", "r");
    assert_non_null(file);
    char line[512], name[17] = {0};
    memcpy(name, slash + 1, 16);
    bool found = false;
    while (fgets(line, sizeof line, file) != NULL) {
        found |= strstr(line, name) != NULL;
    }
    fclose(file);
    return found;
}

static dp_status barrier(struct dp_transport *transport, uint64_t tag, struct dp_error *err)
{
    for (int32_t i = 0; i < WORLD; i++) {
        EXPECT_OK(dp_transport_send(transport, i, tag, NULL, 0, err));
    }
    for (int32_t i = 0; i < WORLD; i++) {
        EXPECT_OK(dp_transport_recv(transport, i, tag, NULL, 0, 0, err));
    }
    return DP_OK;
}

static dp_status put_number(struct dp_window *window, int32_t peer, uint64_t number,
                            const uint64_t *words, size_t length, struct dp_error *err)
{
    struct iovec parts[2] = {{&number, 8}, {(void *)(uintptr_t)words, length}};
    size_t self = (size_t)dp_transport_rank(window->transport);
    return dp_window_put(window, peer, self * (8 + length), parts, 2, number, err);
}

#define WORDS 5000u

static dp_status exchange(struct dp_transport *transport, const struct ends *ends,
                          struct dp_error *err)
{
    (void)ends;
    int32_t self = dp_transport_rank(transport);
    struct dp_window *window;
    size_t length = WORDS * sizeof(uint64_t);
    EXPECT_OK(dp_window_open(transport, 1, WORLD * (8 + length), 0, &window, err));
    DP_AUTO_FREE uint64_t *words = dp_alloc(WORDS, sizeof *words);
    for (uint64_t n = 1; n <= 50; n++) {
        for (uint32_t i = 0; i < WORDS; i++) {
            words[i] = dp_rand_mix((uint64_t)self, n * WORDS + i);
        }
        for (int32_t peer = 0; peer < WORLD; peer++) {
            EXPECT_OK(put_number(window, peer, n, words, length, err));
        }
        for (int32_t peer = 0; peer < WORLD; peer++) {
            uint64_t note, first;
            EXPECT_OK(dp_window_wait(window, peer, n, 0, &note, err));
            const unsigned char *part =
                (unsigned char *)dp_window_memory(window) + (size_t)peer * (8 + length);
            memcpy(&first, part, 8);
            memcpy(words, part + 8, length);
            EXPECT(note == n && first == n);
            for (uint32_t i = 0; i < WORDS; i++) {
                EXPECT(words[i] == dp_rand_mix((uint64_t)peer, n * WORDS + i));
            }
        }
        EXPECT_OK(barrier(transport, n, err)); // all have looked
    }
    dp_window_close(window);
    return DP_OK;
}

static process_kind kind_of(void **state)
{
    return *(process_kind *)*state;
}

static void processes_exchange_puts_and_messages(void **state)
{
    struct process processes[WORLD];
    int files = count_shared_files();
    start_all(processes, kind_of(state), exchange);
    for (int32_t i = 0; i < WORLD; i++) {
        assert_int_equal(finish(&processes[i]), 0);
        assert_false(has_socket(processes[i].address));
    }
    assert_true(count_shared_files() <= files);
}

// Rank 2 puts without end and is killed; both others are to tell which rank it was.
#define BIG_BYTES (4u << 20)

static dp_status watch_one_die(struct dp_transport *transport, const struct ends *ends,
                               struct dp_error *err)
{
    int32_t self = dp_transport_rank(transport);
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 1, WORLD * (8 + (size_t)BIG_BYTES), 0, &window, err));
    DP_AUTO_FREE uint64_t *words = dp_alloc(1, BIG_BYTES);
    for (uint64_t n = 1; self == 2; n++) {
        EXPECT_OK(put_number(window, 0, n, words, BIG_BYTES, err));
        EXPECT_OK(dp_window_put(window, 1, 0, NULL, 0, n, err));
    }
    EXPECT_OK(dp_window_wait(window, 2, 3, 0, NULL, err));
    EXPECT_OK(say(ends, 'r', err));
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_window_wait(window, 2, UINT64_MAX, 0, NULL, &got), DP_UNAVAILABLE, &got,
                   "of rank 2 will not come");
    EXPECT_REFUSED(dp_transport_recv(transport, 2, 1, NULL, 0, 0, &got), DP_UNAVAILABLE, &got,
                   "rank 2");
    EXPECT_REFUSED(put_number(window, 2, 1, words, 8, &got), DP_UNAVAILABLE, &got, "rank 2");
    // The others go on, and nothing is dialled again behind their backs.
    int32_t other = 1 - self;
    for (uint64_t n = 1; n <= 20; n++) {
        EXPECT_OK(put_number(window, other, n, words, 80, err));
        EXPECT_OK(dp_window_wait(window, other, n, 0, NULL, err));
        EXPECT_OK(dp_transport_send(transport, other, n, NULL, 0, err));
        EXPECT_OK(dp_transport_recv(transport, other, n, NULL, 0, 0, err));
    }
    EXPECT_REFUSED(dp_transport_send(transport, 2, 1, NULL, 0, &got), DP_UNAVAILABLE, &got,
                   "rank 2");
    dp_window_close(window);
    return DP_OK;
}

// After nccl #279: peers notice by themselves.
static void a_peer_killed_in_the_middle_of_a_put_is_named_at_once(void **state)
{
    struct process processes[WORLD];
    int files = count_shared_files();
    start_all(processes, kind_of(state), watch_one_die);
    await_word(&processes[0], 'r');
    await_word(&processes[1], 'r');
    assert_int_equal(kill(processes[2].pid, SIGKILL), 0);
    int status = finish(&processes[2]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_false(has_socket(processes[2].address));
    assert_int_equal(finish(&processes[0]), 0);
    assert_int_equal(finish(&processes[1]), 0);
    assert_true(count_shared_files() <= files);
}

static void *send_until_it_fails(void *argument)
{
    struct dp_transport *transport = argument;
    DP_AUTO_FREE char *bytes = dp_alloc(1, BIG_BYTES);
    struct dp_error err = {0};
    dp_status status = DP_OK;
    while (status == DP_OK) {
        status = dp_transport_send(transport, 2, 8, bytes, BIG_BYTES, &err);
    }
    bool is_late = status == DP_TIMEOUT && strstr(err.message, "rank 2 took nothing") != NULL;
    return is_late ? NULL : transport;
}

// Rank 2 stands still: its connections are open, and nobody reads from them.
static dp_status watch_one_stop(struct dp_transport *transport, const struct ends *ends,
                                struct dp_error *err)
{
    int32_t self = dp_transport_rank(transport), other = 1 - self;
    struct dp_window *window;
    EXPECT_OK(dp_window_open(transport, 1, 4096, 0, &window, err));
    EXPECT_OK(barrier(transport, 1, err));
    EXPECT_OK(say(ends, 'r', err));
    EXPECT_OK(hear(ends, err)); // rank 2 never does
    dp_transport_set_blocked_ms(transport, 3000);
    pthread_t sender;
    pthread_create(&sender, NULL, send_until_it_fails, transport);
    struct dp_error got = {0};
    int64_t soon_ns = dp_clock_monotonic_ns() + 50 * DP_NS_PER_MS;
    EXPECT_REFUSED(dp_window_wait(window, 2, 1, soon_ns, NULL, &got), DP_TIMEOUT, &got,
                   "put 1 of rank 2 did not land");
    // Those that run are not held up by it, while a thread is stuck in sending to it.
    for (uint64_t n = 1; n <= 200; n++) {
        EXPECT_OK(dp_window_put(window, other, 0, NULL, 0, n, err));
        EXPECT_OK(dp_window_wait(window, other, n, 0, NULL, err));
        EXPECT_OK(dp_transport_send(transport, other, n, NULL, 0, err));
        EXPECT_OK(dp_transport_recv(transport, other, n, NULL, 0, 0, err));
    }
    void *failed = transport;
    pthread_join(sender, &failed);
    EXPECT(failed == NULL);
    EXPECT_REFUSED(dp_transport_recv(transport, 2, 1, NULL, 0, 0, &got), DP_TIMEOUT, &got,
                   "nothing came from rank 2");
    dp_transport_set_blocked_ms(transport, DP_TRANSPORT_BLOCKED_MS_MAX);
    EXPECT_OK(dp_transport_send(transport, other, 300, NULL, 0, err));
    EXPECT_OK(dp_transport_recv(transport, other, 300, NULL, 0, 0, err));
    dp_window_close(window);
    EXPECT_OK(say(ends, 'd', err));
    return hear(ends, err);
}

static void a_peer_that_stands_still_is_found_by_the_deadline_and_stalls_nobody_else(void **state)
{
    struct process processes[WORLD];
    start_all(processes, kind_of(state), watch_one_stop);
    for (int32_t i = 0; i < WORLD; i++) {
        await_word(&processes[i], 'r');
    }
    int status;
    assert_int_equal(kill(processes[2].pid, SIGSTOP), 0);
    assert_int_equal(waitpid(processes[2].pid, &status, WUNTRACED), processes[2].pid);
    tell(&processes[0]);
    tell(&processes[1]);
    await_word(&processes[0], 'd');
    await_word(&processes[1], 'd');
    assert_int_equal(kill(processes[2].pid, SIGKILL), 0);
    finish(&processes[2]);
    tell(&processes[0]);
    tell(&processes[1]);
    assert_int_equal(finish(&processes[0]), 0);
    assert_int_equal(finish(&processes[1]), 0);
}

// Rank 2 writes nonsense wherever the mapping of its peer's window lets it.
static dp_status bear_nonsense(struct dp_transport *transport, const struct ends *ends,
                               struct dp_error *err)
{
    (void)ends;
    int32_t self = dp_transport_rank(transport);
    struct dp_window *window;
    uint64_t note = 0;
    EXPECT_OK(dp_window_open(transport, 1, 64, 0, &window, err));
    EXPECT_OK(barrier(transport, 1, err));
    const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 8, 1ull << 63, 12345678901};
    for (uint64_t i = 0; i < 4; i++) {
        if (self == 2) {
            char *memory = dp_window_map(window, 0);
            void *region = memory - dp_window_memory_offset(WORLD);
            struct dp_window_lane *lane = (struct dp_window_lane *)region + 2;
            atomic_store(&lane->landed, counts[i]);
        }
        EXPECT_OK(barrier(transport, 2 + 2 * i, err));
        if (self == 0) {
            EXPECT(dp_window_landed(window, 2) == counts[i]);
            EXPECT_OK(dp_window_wait(window, 2, counts[i], 0, &note, err));
            struct dp_error got = {0};
            EXPECT_REFUSED(dp_window_wait(window, 2, 1, 0, &note, &got), DP_INTERNAL, &got, "gone");
        }
        EXPECT_OK(barrier(transport, 3 + 2 * i, err));
    }
    dp_window_close(window);
    return DP_OK;
}

static void nonsense_in_a_peers_counts_leads_nowhere(void **state)
{
    struct process processes[WORLD];
    start_all(processes, kind_of(state), bear_nonsense);
    for (int32_t i = 0; i < WORLD; i++) {
        assert_int_equal(finish(&processes[i]), 0);
    }
}

static void addresses_of_elsewhere_are_refused_with_what_to_do(void **state)
{
    (void)state;
    char address[DP_ADDRESS_MAX];
    struct dp_error err = {0};
    struct dp_transport *transport;
    assert_ok(dp_transport_shm_listen(0, 2, 1, address, &transport, &err), &err);
    const char *table[2] = {address, "0123456789abcdef/0123456789abcdef"};
    assert_refused(dp_transport_connect(transport, table, 1, &err), DP_UNSUPPORTED, &err,
                   "another node");
    table[1] = "0123456789abcdef";
    assert_refused(dp_transport_connect(transport, table, 1, &err), DP_INVALID, &err, "rank 1");
    dp_transport_free(transport);
    struct dp_transport_config config = {.kind = DP_TRANSPORT_SHM, .rank = 0, .world = 2};
    assert_ok(dp_transport_open(&config, address, &transport, &err), &err);
    table[1] = "1;tcp=127.0.0.1:1;shm=0123456789abcdef/0123456789abcdef";
    assert_refused(dp_transport_connect(transport, table, 1, &err), DP_UNSUPPORTED, &err,
                   "set [parallel] transport to auto or tcp");
    table[1] = "127.0.0.1:1";
    assert_refused(dp_transport_connect(transport, table, 1, &err), DP_CONFLICT, &err,
                   "the address of rank 1, \"127.0.0.1:1\", is of another version");
    dp_transport_free(transport);
}

#define EACH(test)                                                                                 \
    {#test " [tcp]", test, NULL, NULL, &kinds[PROCESS_TCP]},                                       \
        {#test " [shm]", test, NULL, NULL, &kinds[PROCESS_SHM]},                                   \
    {                                                                                              \
#test " [auto]", test, NULL, NULL, &kinds[PROCESS_AUTO]                                    \
    }

int main(void)
{
    static process_kind kinds[PROCESS_KINDS] = {PROCESS_TCP, PROCESS_SHM, PROCESS_AUTO};
    const struct CMUnitTest tests[] = {
        EACH(processes_exchange_puts_and_messages),
        EACH(a_peer_killed_in_the_middle_of_a_put_is_named_at_once),
        EACH(a_peer_that_stands_still_is_found_by_the_deadline_and_stalls_nobody_else),
        {"nonsense_in_a_peers_counts_leads_nowhere [shm]", nonsense_in_a_peers_counts_leads_nowhere,
         NULL, NULL, &kinds[PROCESS_SHM]},
        cmocka_unit_test(addresses_of_elsewhere_are_refused_with_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
