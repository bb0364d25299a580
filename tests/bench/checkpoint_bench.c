// Checkpoints of a rank beside dd, which writes the same files to the same file system and waits
// for the disk as well. They take turns; the least of each counts. Prints a row of
// build/bench.json.
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "moe_trainer.h"

#define ROUNDS 8
#define GOAL 0.8

extern char **environ;

static void run(char *const *arguments)
{
    pid_t child;
    int status;
    DP_CHECK(posix_spawnp(&child, arguments[0], NULL, NULL, arguments, environ) == 0);
    DP_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static double seconds_of_dd(const char *root, int64_t step)
{
    static const char *const kinds[] = {"model", "optimizer"};
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        DP_AUTO_FREE char *in = dp_asprintf("if=%s/step-%lld/%s-00001-of-00001.safetensors", root,
                                            (long long)step, kinds[i]);
        DP_AUTO_FREE char *out = dp_asprintf("of=%s/%s-copy", root, kinds[i]);
        char *const arguments[] = {"dd", in, out, "bs=1M", "conv=fsync", "status=none", NULL};
        int64_t begin = dp_clock_monotonic_ns();
        run(arguments);
        seconds += 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
        unlink(out + sizeof("of=") - 1);
    }
    return seconds;
}

static void remove_all(const char *path)
{
    char *const arguments[] = {"rm", "-r", (char *)(uintptr_t)path, NULL};
    run(arguments);
}

static double seconds_of_checkpoint(struct moe_trainer *moe, const char *root, uint64_t *ret_bytes)
{
    struct dp_error err;
    int64_t begin = dp_clock_monotonic_ns();
    if (dp_trainer_checkpoint(moe->trainer, root, ret_bytes, &err) != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
}

int main(void)
{
    dp_alloc_keep_freed(); // as dp-rank does
    const char *parent = getenv("TMPDIR");
    DP_AUTO_FREE char *root = dp_asprintf("%s/dpbXXXXXX", parent != NULL ? parent : "/tmp");
    DP_CHECK(mkdtemp(root) != NULL);
    struct moe_trainer moe;
    moe_trainer_open(&moe, 1, NULL);
    double ours = INFINITY, theirs = INFINITY;
    uint64_t bytes = 0;
    for (int round = 1; round <= ROUNDS; round++) {
        moe_trainer_step(&moe);
        ours = fmin(ours, seconds_of_checkpoint(&moe, root, &bytes));
        theirs = fmin(theirs, seconds_of_dd(root, round));
        DP_AUTO_FREE char *done = dp_asprintf("%s/step-%d", root, round);
        remove_all(done);
    }
    moe_trainer_close(&moe);
    remove_all(root);
    printf("{\"name\": \"a rank's checkpoint\", \"value\": %.4g, \"unit\": \"MB/s\", \"peer\": "
           "\"dd conv=fsync of its files: %.4g MB/s\", \"ratio\": %.4f, "
           "\"goal\": \"at least %g\", \"met\": %s}\n",
           (double)bytes / ours * 1e-6, (double)bytes / theirs * 1e-6, theirs / ours, GOAL,
           theirs / ours >= GOAL ? "true" : "false");
    return 0;
}
