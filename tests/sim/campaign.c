#include "campaign.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/check.h"

// What a worker leaves for whoever started it.
struct shared {
    struct sim_tally tally;
    uint64_t seed; // at hand
    bool failed, done;
    char rule[32];
};

static struct sim world; // of this process
static struct shared *mine;

static void print_trace(FILE *out)
{
    uint64_t first = world.traced > SIM_TRACE_LINES ? world.traced - SIM_TRACE_LINES : 0;
    for (uint64_t i = first; i < world.traced; i++) {
        fprintf(out, "  %s\n", world.trace[i % SIM_TRACE_LINES]);
    }
}

// A check inside of a core failed: what is known is told before the process ends.
static void on_abort(int signal_number)
{
    (void)signal_number;
    fprintf(stderr, "seed %" PRIu64 "/%u, event %" PRIu64 ": the process was aborted\n", world.seed,
            world.streams, world.events);
    print_trace(stderr);
    if (mine != NULL) {
        mine->failed = true;
        (void)snprintf(mine->rule, sizeof(mine->rule), "abort");
    }
    _exit(3);
}

static bool run_world(uint64_t seed, uint64_t masked, struct sim_tally *tally)
{
    sim_init(&world, seed, masked, tally);
    bool passed = sim_run(&world);
    sim_deinit(&world);
    return passed;
}

static struct shared *share(size_t count)
{
    void *memory = mmap(NULL, count * sizeof(struct shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

// In a process of its own, since a world can end it; `quiet` keeps what that would say to itself.
static bool try_apart(uint64_t seed, uint64_t masked, bool quiet, bool tracing,
                      struct shared *shared)
{
    memset(shared, 0, sizeof(*shared));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        mine = shared;
        (void)signal(SIGABRT, on_abort);
        if (quiet && freopen("/dev/null", "w", stderr) == NULL) {
            _exit(4);
        }
        world.tracing = tracing;
        shared->failed = !run_world(seed, masked, &shared->tally);
        if (shared->failed) {
            char name[32];
            (void)snprintf(shared->rule, sizeof(shared->rule), "%s", world.rule);
            fprintf(stderr, "seed %s, event %" PRIu64 ", %.4f s: rule \"%s\" is broken: %s\n",
                    sim_seed_text(seed, name), world.events, (double)world.now_ns / 1e9, world.rule,
                    world.text);
            print_trace(stderr);
        }
        shared->done = true;
        fflush(NULL);
        _exit(shared->failed ? 3 : 0);
    }
    int status = 0;
    (void)waitpid(child, &status, 0);
    if (status != 0) {
        shared->failed = true;
    }
    return !shared->failed;
}

// Leaves out every fault without which it fails all the same.
static uint64_t shrink(uint64_t seed, uint32_t faults, const char *rule)
{
    struct shared *shared = share(1);
    uint64_t masked = 0;
    for (uint32_t i = 0; i < faults; i++) {
        uint64_t tried = masked | UINT64_C(1) << i;
        if (!try_apart(seed, tried, true, false, shared) && strcmp(shared->rule, rule) == 0) {
            masked = tried;
        }
    }
    (void)munmap(shared, sizeof(*shared));
    return masked;
}

static void explain(uint64_t seed)
{
    struct shared *shared = share(1);
    struct sim_tally tally = {0};
    (void)try_apart(seed, 0, true, false, shared);
    char rule[sizeof(shared->rule)];
    memcpy(rule, shared->rule, sizeof(rule));
    sim_init(&world, seed, 0, &tally);
    uint32_t faults = world.faults_count;
    uint64_t masked = shrink(seed, faults, rule);
    (void)try_apart(seed, masked, false, true, shared);
    fprintf(stderr, "faults that it needs, of %u:\n", faults);
    for (uint32_t i = 0; i < faults; i++) {
        char text[160];
        sim_fault_describe(&world, i, text, sizeof(text));
        if ((masked >> i & 1) == 0) {
            fprintf(stderr, "  %s\n", text);
        }
    }
    sim_deinit(&world);
    char name[32];
    (void)sim_seed_text(seed, name);
    fprintf(stderr, "repeat it: make sim SEED=%s RUNS=1; all of it: sim_worlds %s show\n", name,
            name);
    (void)munmap(shared, sizeof(*shared));
}

static void work(uint64_t first, uint64_t runs, uint32_t step)
{
    for (uint64_t seed = first; seed < first + runs && !mine->failed; seed += step) {
        mine->seed = seed;
        mine->failed = !run_world(seed, 0, &mine->tally);
    }
    mine->done = true;
}

static void add(struct sim_tally *total, const struct sim_tally *tally)
{
    bool is_first = total->worlds == 0;
    // What stands before the hash is counters.
    const uint64_t *from = (const uint64_t *)tally;
    uint64_t *to = (uint64_t *)total;
    for (size_t i = 0; i < offsetof(struct sim_tally, hash) / sizeof(*to); i++) {
        to[i] += from[i];
    }
    total->hash ^= tally->hash;
    if (tally->worlds > 0 && (is_first || tally->least_events < total->least_events)) {
        total->least_events = tally->least_events;
    }
    if (tally->worlds > 0 && (is_first || tally->least_broken < total->least_broken)) {
        total->least_broken = tally->least_broken;
    }
}

bool sim_campaign(uint64_t first, uint64_t runs, uint32_t workers, struct sim_tally *ret_tally)
{
    struct shared *shared = share(workers);
    fflush(NULL);
    for (uint32_t w = 0; w < workers; w++) {
        pid_t child = fork();
        if (child == 0) {
            mine = &shared[w];
            (void)signal(SIGABRT, on_abort);
            work(first + w, runs > w ? runs - w : 0, workers);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {
    }
    bool passed = true;
    for (uint32_t w = 0; w < workers; w++) {
        add(ret_tally, &shared[w].tally);
        if (passed && (shared[w].failed || !shared[w].done)) {
            passed = false;
            explain(shared[w].seed);
        }
    }
    (void)munmap(shared, workers * sizeof(*shared));
    return passed;
}

bool sim_survey(uint64_t first, uint64_t runs, bool all)
{
    struct sim_tally tally = {0};
    bool passed = true;
    for (uint64_t seed = first; seed < first + runs && (passed || all); seed++) {
        if (!run_world(seed, 0, &tally)) {
            char name[32];
            printf("seed %s: %s: %s\n", sim_seed_text(seed, name), world.rule, world.text);
            fflush(stdout);
            passed = false;
        }
    }
    return passed;
}

bool sim_show(uint64_t seed)
{
    struct sim_tally tally = {0};
    world.tracing = true;
    world.print = stdout;
    bool passed = run_world(seed, 0, &tally);
    if (!passed) {
        printf("rule \"%s\" is broken: %s\n", world.rule, world.text);
    }
    return passed;
}

static void print_missing(const struct sim_tally *tally)
{
    printf("moves of the table that were never seen:");
    bool any = false;
    for (int from = 0; from < DP_STATE_COUNT; from++) {
        for (int to = 0; to < DP_STATE_COUNT; to++) {
            if (dp_job_state_may_move((dp_job_state)from, (dp_job_state)to) &&
                tally->moves[from][to] == 0) {
                printf("%s %s -> %s", any ? "," : "", dp_job_state_text((dp_job_state)from),
                       dp_job_state_text((dp_job_state)to));
                any = true;
            }
        }
    }
    printf("%s\n", any ? "" : " none");
}

void sim_tally_print(const struct sim_tally *tally, double seconds)
{
    double worlds = tally->worlds == 0 ? 1 : (double)tally->worlds;
    printf("%" PRIu64 " worlds", tally->worlds);
    if (seconds > 0) {
        printf(", %.0f a second", (double)tally->worlds / seconds);
    }
    printf("; %.0f events and %.1f faults each, %" PRIu64 " events and %" PRIu64
           " faults that broke something at the least; %" PRIu64 " restarts of the controller\n",
           (double)tally->events / worlds, (double)tally->faults / worlds, tally->least_events,
           tally->least_broken, tally->restarts);
    printf("faults:");
    for (int kind = 0; kind < SIM_FAULT_KIND_COUNT; kind++) {
        printf("%s %s %" PRIu64, kind == 0 ? "" : ";", sim_fault_text((sim_fault_kind)kind),
               tally->fired[kind]);
    }
    printf("\norders:");
    for (size_t kind = 1; kind < DP_ARRAY_LENGTH(tally->orders); kind++) {
        printf(" %s %" PRIu64, dp_order_kind_text((dp_order_kind)kind), tally->orders[kind]);
    }
    printf("\naimed faults %" PRIu64 "; recoveries %" PRIu64 "; layouts asked for %" PRIu64
           ", answered wrong %" PRIu64 ", late %" PRIu64 "; preemptions %" PRIu64
           "; nodes forgotten %" PRIu64 "; jobs held %" PRIu64 ", grown %" PRIu64 "\n",
           tally->aimed, tally->recoveries, tally->answers, tally->wrong, tally->late,
           tally->preemptions, tally->forgotten, tally->held, tally->grown);
    print_missing(tally);
}
