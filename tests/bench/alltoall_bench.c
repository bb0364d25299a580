// alltoall_bench RANKS shm|tcp: dispatch and combine of the tokens of alltoall_tokens.h between
// processes, in seconds, beside memcpy and a plain tcp stream, as one JSON object. The middle of
// REPEATS, the slowest rank counting; "moves" are the exchange alone, "rows" also the sorting of
// rows by expert and their adding up by token at the other end.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alltoall_tokens.h"
#include "dp/alloc.h"
#include "dp/alltoall.h"
#include "dp/clock.h"

#define RANKS_MAX 8
#define MODES 2 // moves, rows

struct shared {
    pthread_barrier_t barrier;
    char addresses[RANKS_MAX][DP_ADDRESS_MAX];
    double seconds[MODES][REPEATS][RANKS_MAX];
    double memcpy_s[REPEATS][RANKS_MAX];
    uint64_t bytes[RANKS_MAX]; // put to others in one dispatch and combine
};

struct rank {
    struct shared *shared;
    struct dp_transport *transport;
    struct dp_alltoall *alltoall;
    int32_t rank, world;
    int32_t *index, *row_of;
    float *rows, *weights, *sums, *spread, *folded;
};

static void check(dp_status status, const struct dp_error *err)
{
    if (status != DP_OK) {
        fprintf(stderr, "alltoall_bench: %s\n", err->message);
        exit(1);
    }
}

static void *move_bytes(void *transport)
{
    dp_transport_progress(transport);
    return NULL;
}

static void *move_rows(void *alltoall)
{
    dp_alltoall_progress(alltoall);
    return NULL;
}

static void connect_rank(struct rank *rank, bool is_tcp)
{
    struct dp_error err;
    const char *addresses[RANKS_MAX];
    char *own = rank->shared->addresses[rank->rank];
    if (is_tcp) {
        check(dp_transport_tcp_listen("127.0.0.1", rank->rank, rank->world, 5, own,
                                      &rank->transport, &err),
              &err);
    } else {
        check(dp_transport_shm_listen(rank->rank, rank->world, 5, own, &rank->transport, &err),
              &err);
    }
    pthread_barrier_wait(&rank->shared->barrier);
    for (int32_t i = 0; i < rank->world; i++) {
        addresses[i] = rank->shared->addresses[i];
    }
    int64_t deadline_ns = dp_clock_monotonic_ns() + 30 * DP_NS_PER_S;
    check(dp_transport_connect(rank->transport, addresses, deadline_ns, &err), &err);
}

static void open_rank(struct rank *rank)
{
    struct dp_error err;
    int32_t ranks[RANKS_MAX];
    for (int32_t i = 0; i < rank->world; i++) {
        ranks[i] = i;
    }
    struct dp_alltoall_config config = {
        .transport = rank->transport,
        .ranks = ranks,
        .count = rank->world,
        .element = DP_F32,
        .experts = EXPERTS,
        .top_k = TOP_K,
        .hidden = HIDDEN,
        .tokens_max = TOKENS,
    };
    check(dp_alltoall_open(&config, 0, &rank->alltoall, &err), &err);
    size_t values = (size_t)TOKENS * HIDDEN, all = values * (size_t)rank->world;
    rank->index = dp_new_array(int32_t, (size_t)TOKENS * TOP_K);
    rank->rows = dp_alloc_aligned(values, sizeof(float));
    rank->weights = dp_alloc_aligned((size_t)TOKENS * TOP_K, sizeof(float));
    rank->sums = dp_alloc_aligned(values, sizeof(float));
    rank->folded = dp_alloc_aligned(all, sizeof(float));
    rank->spread = dp_alloc_aligned(all * TOP_K / (size_t)rank->world * 2, sizeof(float));
    rank->row_of = dp_new_array(int32_t, (size_t)rank->world * TOKENS * TOP_K);
    make_index(rank->rank, rank->index);
    for (size_t i = 0; i < values; i++) {
        rank->rows[i] = (float)(i % 1000);
    }
}

// Rows by expert, and for each row and slot where it stands; -1 = another rank's expert.
static void unfold(struct rank *rank, const struct dp_arrivals *arrivals)
{
    int32_t next[EXPERTS] = {0};
    for (int32_t e = 1; e < EXPERTS / rank->world; e++) {
        next[e] = next[e - 1] + arrivals->counts[e - 1];
    }
    for (int64_t i = 0; i < arrivals->tokens * TOP_K; i++) {
        int32_t expert = arrivals->expert[i];
        rank->row_of[i] = expert < 0 ? -1 : next[expert]++;
        if (expert >= 0) {
            memcpy(rank->spread + (size_t)rank->row_of[i] * HIDDEN,
                   (const float *)arrivals->rows + i / TOP_K * HIDDEN, HIDDEN * sizeof(float));
        }
    }
}

static void fold(struct rank *rank, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        float *to = rank->folded + t * HIDDEN;
        memset(to, 0, HIDDEN * sizeof(float));
        for (int32_t k = 0; k < TOP_K; k++) {
            int32_t row = rank->row_of[t * TOP_K + k];
            const float *from = rank->spread + (size_t)(row < 0 ? 0 : row) * HIDDEN;
            for (int32_t c = 0; c < HIDDEN && row >= 0; c++) {
                to[c] += from[c];
            }
        }
    }
}

static double exchange(struct rank *rank, bool with_rows)
{
    const struct dp_exchanger *calls = dp_alltoall_exchanger(rank->alltoall);
    struct dp_routing *routing;
    struct dp_arrivals arrivals;
    struct dp_error err;
    struct dp_load load = {.rows = rank->rows, .weights = rank->weights};
    pthread_barrier_wait(&rank->shared->barrier);
    double begin_s = now_s();
    check(calls->route(calls->context, 1, TOKENS, rank->index, &routing, &err), &err);
    check(calls->begin(routing, DP_MOVE_DISPATCH, &load, &err), &err);
    check(calls->arrive(routing, DP_MOVE_DISPATCH, &arrivals, &err), &err);
    if (with_rows) {
        unfold(rank, &arrivals);
    } else {
        // What the experts' side gives back: here, as it came.
        rank->row_of[0] = (int32_t)arrivals.tokens;
    }
    int64_t tokens = arrivals.tokens;
    calls->finish(routing, DP_MOVE_DISPATCH);
    if (with_rows) {
        fold(rank, tokens);
    }
    load = (struct dp_load){.rows = rank->folded};
    check(calls->begin(routing, DP_MOVE_COMBINE, &load, &err), &err);
    check(calls->collect(routing, DP_MOVE_COMBINE, rank->sums, NULL, &err), &err);
    double taken_s = now_s() - begin_s;
    // Every expert gave its token back as it was.
    for (int32_t t = 0; t < TOKENS && with_rows; t += 97) {
        if (rank->sums[t * HIDDEN + t % HIDDEN] != TOP_K * rank->rows[t * HIDDEN + t % HIDDEN]) {
            fprintf(stderr, "alltoall_bench: token %d came back wrong\n", t);
            exit(1);
        }
    }
    calls->release(routing);
    return taken_s;
}

// As many bytes as leave this rank, copied once, by all ranks at a time.
static double copy(struct rank *rank, uint64_t bytes)
{
    pthread_barrier_wait(&rank->shared->barrier);
    double begin_s = now_s();
    size_t chunk = (size_t)TOKENS * HIDDEN * sizeof(float);
    for (uint64_t at = 0; at < bytes; at += chunk) {
        memcpy(rank->sums, rank->rows, bytes - at < chunk ? bytes - at : chunk);
    }
    return now_s() - begin_s;
}

static void run_rank(struct shared *shared, int32_t number, int32_t world, bool is_tcp)
{
    struct rank rank = {.shared = shared, .rank = number, .world = world};
    pthread_t bytes_mover, rows_mover;
    connect_rank(&rank, is_tcp);
    pthread_create(&bytes_mover, NULL, move_bytes, rank.transport);
    open_rank(&rank);
    pthread_create(&rows_mover, NULL, move_rows, rank.alltoall);
    for (int mode = 0; mode < MODES; mode++) {
        for (int i = -WARM; i < REPEATS; i++) {
            double taken_s = exchange(&rank, mode == 1);
            if (i >= 0) {
                shared->seconds[mode][i][number] = taken_s;
            }
        }
    }
    struct dp_alltoall_stats stats;
    dp_alltoall_stats(rank.alltoall, &stats, NULL);
    shared->bytes[number] =
        (stats.scale_up_bytes + stats.scale_out_bytes) / (MODES * (WARM + REPEATS));
    for (int i = 0; i < REPEATS; i++) {
        shared->memcpy_s[i][number] = copy(&rank, shared->bytes[number]);
    }
    (void)dp_alltoall_close(rank.alltoall, dp_clock_monotonic_ns() + 10 * DP_NS_PER_S, NULL);
    pthread_join(rows_mover, NULL);
    dp_alltoall_free(rank.alltoall);
    (void)dp_transport_close(rank.transport, dp_clock_monotonic_ns() + 10 * DP_NS_PER_S, NULL);
    pthread_join(bytes_mover, NULL);
    dp_transport_free(rank.transport);
    exit(0);
}

static double middle(double (*seconds)[RANKS_MAX], int32_t world)
{
    double slowest[REPEATS] = {0};
    for (int i = 0; i < REPEATS; i++) {
        for (int32_t r = 0; r < world; r++) {
            slowest[i] = seconds[i][r] > slowest[i] ? seconds[i][r] : slowest[i];
        }
    }
    qsort(slowest, REPEATS, sizeof slowest[0], compare_doubles);
    return slowest[REPEATS / 2];
}

// Bytes per second of one plain stream over loopback, written and read in large pieces.
static double stream_rate(void)
{
    size_t bytes = 512u << 20, piece = 1u << 20;
    char *buffer = dp_alloc(piece, 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        exit(1);
    }
    if (fork() == 0) {
        int out = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(out, (struct sockaddr *)&address, sizeof address) != 0) {
            _exit(1);
        }
        for (size_t at = 0; at < bytes;) {
            ssize_t sent = send(out, buffer, piece, 0);
            at += sent > 0 ? (size_t)sent : bytes;
        }
        _exit(0);
    }
    int in = accept(listener, NULL, NULL);
    double begin_s = now_s();
    size_t at = 0;
    for (ssize_t got = 1; got > 0; at += (size_t)got) {
        got = recv(in, buffer, piece, 0);
        got = got < 0 ? 0 : got;
    }
    double taken_s = now_s() - begin_s;
    wait(NULL);
    close(in);
    close(listener);
    free(buffer);
    return (double)at / taken_s;
}

int main(int argc, char **argv)
{
    int32_t world = argc == 3 ? (int32_t)strtol(argv[1], NULL, 10) : 0;
    if (world < 2 || world > RANKS_MAX) {
        fprintf(stderr, "usage: alltoall_bench RANKS shm|tcp\n");
        return 2;
    }
    bool is_tcp = strcmp(argv[2], "tcp") == 0;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)world);
    for (int32_t r = 0; r < world; r++) {
        if (fork() == 0) {
            run_rank(shared, r, world, is_tcp);
        }
    }
    int failed = 0;
    for (int32_t r = 0; r < world; r++) {
        int status = 0;
        wait(&status);
        failed += status != 0;
    }
    uint64_t bytes = 0;
    for (int32_t r = 0; r < world; r++) {
        bytes += shared->bytes[r];
    }
    printf("{\"moves_s\": %.9f, \"rows_s\": %.9f, \"memcpy_s\": %.9f, \"bytes\": %llu, "
           "\"stream_bytes_per_s\": %.0f}\n",
           middle(shared->seconds[0], world), middle(shared->seconds[1], world),
           middle(shared->memcpy_s, world), (unsigned long long)bytes, is_tcp ? stream_rate() : 0);
    return failed == 0 ? 0 : 1;
}
