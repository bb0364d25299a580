// The tokens of alltoall_tokens.h carried by MPI as mixture-of-experts code commonly does it: one
// row for each token and expert. Prints seconds for each form, the slowest rank counting, the
// middle of REPEATS:
//   slots   MPI_Alltoallv of what there is, counts told by MPI_Alltoall before
//   padded  MPI_Alltoall of as many rows for every expert as the fullest one of any rank has, as
//           with a capacity (GShard, arXiv 2006.16668) that drops nothing
// "moves" are the packing, both exchanges and the adding up by token; "rows" also what brings the
// received rows into the order of experts and back.
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "alltoall_tokens.h"

#define ROW (HIDDEN * sizeof(float))

static int rank, world, own; // own = experts of a rank
static int32_t index_of[TOKENS * TOP_K], counts[EXPERTS], told[EXPERTS], place[TOKENS * TOP_K];
static float *rows, *out, *in, *sorted, *sums;

static void copy_row(float *to, const float *from)
{
    memcpy(to, from, ROW);
}

// place = the row of each token and expert in what is sent; starts[e] = where expert e's begin.
static void pack(const int *starts)
{
    int next[EXPERTS];
    memcpy(next, starts, sizeof next);
    for (int i = 0; i < TOKENS * TOP_K; i++) {
        place[i] = next[index_of[i]]++;
        copy_row(out + (size_t)place[i] * HIDDEN, rows + (size_t)(i / TOP_K) * HIDDEN);
    }
}

static void add_up(void)
{
    for (int t = 0; t < TOKENS; t++) {
        float *to = sums + (size_t)t * HIDDEN;
        memset(to, 0, ROW);
        for (int k = 0; k < TOP_K; k++) {
            const float *from = out + (size_t)place[t * TOP_K + k] * HIDDEN;
            for (int c = 0; c < HIDDEN; c++) {
                to[c] += from[c];
            }
        }
    }
}

// Received blocks stand by source, then expert; experts want theirs together. `step` is the rows of
// a padded block, 0 when blocks are as long as told.
static void sort_blocks(int step, int is_back)
{
    size_t at = 0;
    for (int e = 0; e < own; e++) {
        for (int s = 0; s < world; s++) {
            size_t from = 0;
            int block = s * own + e;
            for (int b = 0; b < block; b++) {
                from += (size_t)(step > 0 ? step : told[b]);
            }
            size_t bytes = (size_t)told[block] * ROW;
            if (is_back) {
                memcpy(in + from * HIDDEN, sorted + at * HIDDEN, bytes);
            } else {
                memcpy(sorted + at * HIDDEN, in + from * HIDDEN, bytes);
            }
            at += (size_t)told[block];
        }
    }
}

static void count(void)
{
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < TOKENS * TOP_K; i++) {
        counts[index_of[i]]++;
    }
    MPI_Alltoall(counts, own, MPI_INT32_T, told, own, MPI_INT32_T, MPI_COMM_WORLD);
}

static double by_slots(int with_rows)
{
    int starts[EXPERTS] = {0}, send[64], send_at[64], recv[64], recv_at[64];
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_s();
    count();
    for (int e = 1; e < EXPERTS; e++) {
        starts[e] = starts[e - 1] + counts[e - 1];
    }
    pack(starts);
    for (int r = 0, at = 0; r < world; r++) {
        send[r] = recv[r] = 0;
        for (int e = 0; e < own; e++) {
            send[r] += counts[r * own + e] * HIDDEN;
            recv[r] += told[r * own + e] * HIDDEN;
        }
        send_at[r] = starts[r * own] * HIDDEN;
        recv_at[r] = at;
        at += recv[r];
    }
    MPI_Alltoallv(out, send, send_at, MPI_FLOAT, in, recv, recv_at, MPI_FLOAT, MPI_COMM_WORLD);
    if (with_rows) {
        sort_blocks(0, 0);
        sort_blocks(0, 1);
    }
    MPI_Alltoallv(in, recv, recv_at, MPI_FLOAT, out, send, send_at, MPI_FLOAT, MPI_COMM_WORLD);
    add_up();
    return now_s() - begin;
}

static double padded(int with_rows)
{
    int starts[EXPERTS], capacity = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_s();
    count();
    for (int e = 0; e < EXPERTS; e++) {
        capacity = counts[e] > capacity ? counts[e] : capacity;
    }
    MPI_Allreduce(MPI_IN_PLACE, &capacity, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    for (int e = 0; e < EXPERTS; e++) {
        starts[e] = e * capacity;
    }
    pack(starts);
    int part = own * capacity * HIDDEN;
    MPI_Alltoall(out, part, MPI_FLOAT, in, part, MPI_FLOAT, MPI_COMM_WORLD);
    if (with_rows) {
        sort_blocks(capacity, 0);
        sort_blocks(capacity, 1);
    }
    MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    add_up();
    return now_s() - begin;
}

static double middle(double (*form)(int), int with_rows)
{
    double seconds[REPEATS];
    for (int i = -WARM; i < REPEATS; i++) {
        double taken = form(with_rows);
        MPI_Allreduce(MPI_IN_PLACE, &taken, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) {
            seconds[i] = taken;
        }
    }
    for (int t = 0; t < TOKENS; t += 97) {
        size_t at = (size_t)t * HIDDEN + (size_t)t % HIDDEN;
        if (sums[at] != TOP_K * rows[at]) {
            fprintf(stderr, "mpi_alltoall: token %d came back wrong\n", t);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    qsort(seconds, REPEATS, sizeof seconds[0], compare_doubles);
    return seconds[REPEATS / 2];
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    own = EXPERTS / world;
    // Room for twice the mean, which the fullest expert of such routings stays far below.
    size_t room = (size_t)TOKENS * TOP_K * 2 * ROW;
    rows = malloc(TOKENS * ROW);
    sums = malloc(TOKENS * ROW);
    out = malloc(room);
    in = malloc(room);
    sorted = malloc(room);
    for (size_t i = 0; i < (size_t)TOKENS * HIDDEN; i++) {
        rows[i] = (float)(i % 1000);
    }
    make_index(rank, index_of);
    double slots[2], pads[2];
    for (int with_rows = 0; with_rows < 2; with_rows++) {
        slots[with_rows] = middle(by_slots, with_rows);
        pads[with_rows] = middle(padded, with_rows);
    }
    if (rank == 0) {
        printf("{\"slots_moves_s\": %.9f, \"slots_rows_s\": %.9f, \"padded_moves_s\": %.9f, "
               "\"padded_rows_s\": %.9f}\n",
               slots[0], slots[1], pads[0], pads[1]);
    }
    MPI_Finalize();
    return 0;
}
