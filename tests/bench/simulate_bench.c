// What simulate does on one core: actions per second of processor time, how that grows with the
// size of the schedule, and bytes per action. Each row of build/bench.json is on a line.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dp/sim_analysis.h"
#include "dp/simulate.h"
#include "made_costs.h"

// Every allocation of the program comes by here and is counted: what is held now, and at most.
static size_t bytes_held, bytes_peak;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static void *note(void *memory)
{
    bytes_held += memory == NULL ? 0 : malloc_usable_size(memory);
    bytes_peak = bytes_held > bytes_peak ? bytes_held : bytes_peak;
    return memory;
}

static void forget(void *memory)
{
    bytes_held -= memory == NULL ? 0 : malloc_usable_size(memory);
}

void *malloc(size_t size)
{
    return note(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return note(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    forget(memory);
    return note(__libc_realloc(memory, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return note(__libc_memalign(alignment, size));
}

void free(void *memory)
{
    forget(memory);
    __libc_free(memory);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

enum work { MAKESPAN, MEASURED, ANALYZED };

struct subject {
    const char *family;
    int32_t pipeline, microbatches, virtual_stages;
    bool uneven; // one slow rank, and wires that take time: the most that can be asked for
    dp_sim_p2p p2p;
    double host_cores; // of hosts of eight ranks; 0 = no limit
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_sim_scratch *scratch;
};

static void give_up(const struct dp_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void share_cores(struct dp_sim_costs *costs, double cores)
{
    costs->hosts = (costs->pipeline + 7) / 8;
    free(costs->cores);
    costs->cores = calloc((size_t)costs->hosts, sizeof(double));
    for (int32_t host = 0; host < costs->hosts; host++) {
        costs->cores[host] = cores;
    }
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        costs->host[rank] = rank / 8;
    }
}

static void subject_init(struct subject *subject)
{
    struct dp_error err = {0};
    struct dp_schedule_params params = {.pipeline = subject->pipeline,
                                        .microbatches = subject->microbatches,
                                        .virtual_stages = subject->virtual_stages};
    if (dp_schedule_generate(subject->family, &params, &subject->schedule, &err) != DP_OK) {
        give_up(&err);
    }
    dp_sim_costs_init_uniform(
        &subject->costs, &subject->schedule,
        &(struct dp_sim_uniform){
            .f = 1, .b = 2, .i = 1, .w = 1, .fb = 2.5, .hop = {.1, subject->uneven ? 100 : 0}});
    subject->costs.p2p = subject->p2p;
    if (subject->uneven) {
        subject->costs.message_bytes_f = 1;
        subject->costs.message_bytes_b = 1;
        costs_slow_rank(&subject->costs, subject->pipeline / 2, 1.25);
    }
    if (subject->host_cores > 0) {
        share_cores(&subject->costs, subject->host_cores);
    }
    subject->scratch = dp_sim_scratch_new();
}

static void subject_deinit(struct subject *subject)
{
    dp_sim_scratch_free(subject->scratch);
    dp_sim_costs_deinit(&subject->costs);
    dp_schedule_deinit(&subject->schedule);
}

static void run(const struct subject *subject, enum work work)
{
    struct dp_error err = {0};
    struct dp_sim_result result = {0};
    struct dp_sim_analysis analysis = {0};
    double makespan;
    dp_status status;
    if (work == MAKESPAN) {
        status = dp_simulate_makespan(&subject->schedule, &subject->costs, subject->scratch,
                                      &makespan, NULL, &err);
    } else if (work == MEASURED) {
        status = dp_simulate(&subject->schedule, &subject->costs, false, &result, &err);
    } else {
        status =
            dp_simulate_analyzed(&subject->schedule, &subject->costs, &result, &analysis, &err);
    }
    if (status != DP_OK) {
        give_up(&err);
    }
    dp_sim_analysis_deinit(&analysis);
    dp_sim_result_deinit(&result);
}

// Seconds per action: the best of the rounds that fit into half a second of processor time.
static double measure(const struct subject *subject, enum work work)
{
    double best = 1e9;
    for (double begin = now(); now() - begin < 0.5;) {
        double start = now();
        run(subject, work);
        double seconds = (now() - start) / (double)dp_schedule_action_count(&subject->schedule);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void print_name(const char *what, const struct subject *subject)
{
    printf("{\"name\":\"simulate, %s: %s P=%d M=%d%s%s%s\",", what, subject->family,
           subject->pipeline, subject->microbatches, subject->uneven ? " uneven" : "",
           subject->p2p == DP_SIM_P2P_BLOCKING ? " blocking" : "",
           subject->host_cores > 0 ? " shared cores" : "");
}

static void print_rate(const char *what, const struct subject *subject, double seconds,
                       double goal)
{
    print_name(what, subject);
    printf("\"value\":%.4g,\"unit\":\"actions/s\",\"peer\":\"the stated bound of %g M actions/s "
           "of processor time\",\"ratio\":%.3f,\"goal\":%.3g,\"met\":%s}\n",
           1 / seconds, goal * 1e-6, 1 / seconds / goal, goal,
           1 / seconds >= goal ? "true" : "false");
}

static void print_growth(const char *what, const struct subject *subject, double seconds,
                         double small, int goal)
{
    print_name(what, subject);
    printf("\"value\":%.4g,\"unit\":\"ns/action\",\"peer\":\"%.4g ns/action at P=8\","
           "\"ratio\":%.3f,\"goal\":\"at most %d x\",\"met\":%s}\n",
           seconds * 1e9, small * 1e9, seconds / small, goal,
           seconds <= goal * small ? "true" : "false");
}

// The most that is held at any time, with the schedule and the results.
static void print_memory(const struct subject *subject, double bytes, double goal)
{
    print_name("memory with slack and path", subject);
    printf("\"value\":%.4g,\"unit\":\"bytes/action\",\"peer\":\"16 bytes/action of the schedule\","
           "\"ratio\":%.3f,\"goal\":\"at most %g\",\"met\":%s}\n",
           bytes, bytes / 16, goal, bytes <= goal ? "true" : "false");
}

static void bench_memory(const char *family, dp_sim_p2p p2p, double goal)
{
    size_t before = bytes_held;
    struct subject subject = {
        .family = family, .pipeline = 64, .microbatches = 4096, .uneven = true, .p2p = p2p};
    subject_init(&subject);
    bytes_peak = bytes_held;
    run(&subject, ANALYZED);
    print_memory(&subject, (double)(bytes_peak - before) /
                               (double)dp_schedule_action_count(&subject.schedule),
                 goal);
    subject_deinit(&subject);
}

static void bench_family(const char *family, int32_t virtual_stages, bool uneven)
{
    struct subject small = {.family = family,
                            .pipeline = 8,
                            .microbatches = 64,
                            .virtual_stages = virtual_stages,
                            .uneven = uneven};
    struct subject large = small;
    large.pipeline = 64;
    large.microbatches = 4096;
    subject_init(&small);
    subject_init(&large);
    double small_measured = measure(&small, MEASURED);
    double measured = measure(&large, MEASURED);
    double small_analyzed = measure(&small, ANALYZED);
    double analyzed = measure(&large, ANALYZED);
    print_rate("bubbles and peaks", &small, small_measured, 20e6);
    print_rate("bubbles and peaks", &large, measured, 20e6);
    print_rate("slack and critical path too", &small, small_analyzed, 8e6);
    print_rate("slack and critical path too", &large, analyzed, 8e6);
    print_growth("growth of bubbles and peaks", &large, measured, small_measured, 3);
    print_growth("growth with slack and critical path", &large, analyzed, small_analyzed, 3);
    subject_deinit(&small);
    subject_deinit(&large);
}

static void bench_measured(const char *family, int32_t pipeline, int32_t microbatches)
{
    struct subject subject = {
        .family = family, .pipeline = pipeline, .microbatches = microbatches};
    subject_init(&subject);
    print_rate("bubbles and peaks", &subject, measure(&subject, MEASURED), 20e6);
    subject_deinit(&subject);
}

// Messages must be found first, so this form is bound to less; `parts` of an action have a message
// each.
static void bench_blocking(const char *family, int parts)
{
    struct subject subject = {
        .family = family, .pipeline = 64, .microbatches = 4096, .p2p = DP_SIM_P2P_BLOCKING};
    subject_init(&subject);
    print_rate("bubbles and peaks", &subject, measure(&subject, MEASURED), 8e6 / parts);
    print_rate("slack and critical path too", &subject, measure(&subject, ANALYZED), 4e6 / parts);
    subject_deinit(&subject);
    bench_memory(family, DP_SIM_P2P_BLOCKING, parts == 1 ? 112 : 176);
}

// Hosts of eight ranks with six cores, and ranks that are not alike; as many actions on one
// host. The heaps of 256 ranks are 2.7 times as deep as those of 8.
static void bench_sharing(int32_t pipeline)
{
    struct subject small = {
        .family = "1f1b", .pipeline = 8, .microbatches = 1024, .uneven = true, .host_cores = 6};
    struct subject large = small;
    large.pipeline = pipeline;
    small.microbatches *= pipeline / 8;
    subject_init(&small);
    subject_init(&large);
    print_growth("growth of bubbles and peaks", &large, measure(&large, MEASURED),
                 measure(&small, MEASURED), 4);
    subject_deinit(&small);
    subject_deinit(&large);
}

static void bench_makespan(const char *family, int32_t pipeline, int32_t microbatches)
{
    struct subject subject = {
        .family = family, .pipeline = pipeline, .microbatches = microbatches};
    subject_init(&subject);
    print_rate("makespan alone", &subject, measure(&subject, MAKESPAN), 20e6);
    subject_deinit(&subject);
}

int main(void)
{
    bench_makespan("1f1b", 16, 512);
    bench_makespan("1f1b", 64, 4096);
    bench_makespan("dualpipe", 64, 4096);
    bench_makespan("dualpipev", 64, 4096);
    bench_measured("1f1b", 16, 128);
    static const struct {
        const char *family;
        int32_t virtual_stages;
        int parts; // of most actions
    } families[] = {{"1f1b", 0, 1}, {"interleaved", 4, 1}, {"zb-h1", 0, 1}, {"dualpipe", 0, 2},
                    {"dualpipev", 0, 2}};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        bench_family(families[i].family, families[i].virtual_stages, false);
        bench_family(families[i].family, families[i].virtual_stages, true);
        bench_memory(families[i].family, DP_SIM_P2P_FREE, 64);
        bench_blocking(families[i].family, families[i].parts);
    }
    bench_sharing(64);
    bench_sharing(256);
    return 0;
}
