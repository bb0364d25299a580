// Stands in for dp-rank: speaks frames, and behaves or misbehaves as DP_FAKE_RANK says. Words:
//   ready start steps=N finish fail sample   the usual life, in this order
//   train                                    a step every 20 ms, for ever
//   pause settle probe hold                  waits for that order; tells what it holds; answers
//   print=TEXT state flood=KIB               output
//   exit=N crash ignore-term handle-term grandchild sleep
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/link.h"
#include "dp/profile.h"
#include "dp/v1/rank.pb-c.h"

static struct dp_link keeper_link;
static uint32_t own_rank;
static Dp__V1__Fence own_fence = DP__V1__FENCE__INIT;
static uint64_t steps_done;
static uint64_t probe_request;

static void send_report(Dp__V1__RankReport *report, dp_link_slot slot)
{
    uint8_t bytes[4096];
    report->fence = &own_fence;
    report->rank = own_rank;
    DP_CHECK(dp__v1__rank_report__get_packed_size(report) <= sizeof bytes);
    size_t length = dp__v1__rank_report__pack(report, bytes);
    if (dp_link_rank_report(&keeper_link, own_rank, slot, bytes, length, NULL) != DP_OK) {
        exit(3);
    }
}

static Dp__V1__RankOrder *next_order(void)
{
    const uint8_t *bytes;
    size_t length;
    if (dp_link_rank_order(&keeper_link, -1, &bytes, &length, NULL) != DP_OK) {
        exit(3);
    }
    return dp__v1__rank_order__unpack(NULL, length, bytes);
}

static void do_ready(const char *argument)
{
    (void)argument;
    Dp__V1__RankOrder *order = next_order();
    if (order != NULL && order->order_case == DP__V1__RANK_ORDER__ORDER_PREPARE) {
        own_fence.job = strdup(order->prepare->fence->job);
        own_fence.attempt = order->prepare->fence->attempt;
        own_fence.epoch = order->prepare->fence->epoch;
    }
    if (order != NULL) {
        dp__v1__rank_order__free_unpacked(order, NULL);
    }
    Dp__V1__RankReady ready = DP__V1__RANK_READY__INIT;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", 4000 + own_rank);
    ready.address = address;
    report.report_case = DP__V1__RANK_REPORT__REPORT_READY;
    report.ready = &ready;
    send_report(&report, DP_LINK_SLOT_READY);
}

// Says what it was told to take over.
static void do_start(const char *argument)
{
    (void)argument;
    Dp__V1__RankOrder *order = next_order();
    if (order != NULL) {
        if (order->order_case == DP__V1__RANK_ORDER__ORDER_START && order->start->n_sources > 0) {
            printf("sources %zu of step %llu with %llx, the first %s\n", order->start->n_sources,
                   (unsigned long long)order->start->state_step,
                   (unsigned long long)order->start->state_token,
                   order->start->sources[0]->address);
            fflush(stdout);
        }
        dp__v1__rank_order__free_unpacked(order, NULL);
    }
}

// Orders that come meanwhile, of another kind, are as if they had not been given.
static void await(Dp__V1__RankOrder__OrderCase kind)
{
    Dp__V1__RankOrder__OrderCase found = DP__V1__RANK_ORDER__ORDER__NOT_SET;
    while (found != kind) {
        Dp__V1__RankOrder *order = next_order();
        if (order != NULL) {
            found = order->order_case;
            steps_done =
                found == DP__V1__RANK_ORDER__ORDER_SETTLE ? order->settle->step : steps_done;
            probe_request =
                found == DP__V1__RANK_ORDER__ORDER_PROBE ? order->probe->request : probe_request;
            dp__v1__rank_order__free_unpacked(order, NULL);
        }
    }
}

static void do_pause(const char *argument)
{
    (void)argument;
    await(DP__V1__RANK_ORDER__ORDER_PAUSE);
}

static void do_settle(const char *argument)
{
    (void)argument;
    await(DP__V1__RANK_ORDER__ORDER_SETTLE);
}

static void do_probe(const char *argument)
{
    (void)argument;
    await(DP__V1__RANK_ORDER__ORDER_PROBE);
    Dp__V1__ProbeDone probe = DP__V1__PROBE_DONE__INIT;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    probe.request = probe_request;
    probe.step = steps_done;
    probe.gemm_ns = 1000;
    report.report_case = DP__V1__RANK_REPORT__REPORT_PROBE;
    report.probe = &probe;
    send_report(&report, DP_LINK_SLOT_NONE);
}

static void do_hold(const char *argument)
{
    (void)argument;
    Dp__V1__RankHeld held = DP__V1__RANK_HELD__INIT;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", 5000 + own_rank);
    held.step = steps_done;
    held.address = address;
    report.report_case = DP__V1__RANK_REPORT__REPORT_HELD;
    report.held = &held;
    send_report(&report, DP_LINK_SLOT_HELD);
}

static void do_steps(const char *argument)
{
    for (int left = atoi(argument); left > 0; left--) {
        Dp__V1__StepDone step = DP__V1__STEP_DONE__INIT;
        Dp__V1__Span span = DP__V1__SPAN__INIT;
        Dp__V1__Span *spans[] = {&span};
        Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
        span.rank = own_rank;
        step.step = ++steps_done;
        step.n_spans = 1;
        step.spans = spans;
        report.report_case = DP__V1__RANK_REPORT__REPORT_STEP;
        report.step = &step;
        send_report(&report, DP_LINK_SLOT_STEP);
    }
}

static void do_train(const char *argument)
{
    (void)argument;
    for (;;) {
        do_steps("1");
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + 20 * DP_NS_PER_MS);
    }
}

static void do_sample(const char *argument)
{
    (void)argument;
    Dp__V1__Utilisation sample = DP__V1__UTILISATION__INIT;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    sample.step = steps_done;
    report.report_case = DP__V1__RANK_REPORT__REPORT_UTILISATION;
    report.utilisation = &sample;
    send_report(&report, DP_LINK_SLOT_UTILISATION);
}

static void finish(bool ok)
{
    Dp__V1__RankFinished finished = DP__V1__RANK_FINISHED__INIT;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    finished.ok = ok;
    finished.step = steps_done;
    finished.error = (char *)(ok ? "" : "the loss is not a number");
    report.report_case = DP__V1__RANK_REPORT__REPORT_FINISHED;
    report.finished = &finished;
    send_report(&report, DP_LINK_SLOT_FINISHED);
}

static void do_finish(const char *argument)
{
    (void)argument;
    finish(true);
}

static void do_fail(const char *argument)
{
    (void)argument;
    finish(false);
}

static void do_print(const char *argument)
{
    printf("%s\n", argument);
    fflush(stdout);
}

// What a program can see of how it was started.
static void do_state(const char *argument)
{
    (void)argument;
    char line[256];
    FILE *status = fopen("/proc/self/status", "re");
    DP_CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "Sig", 3) == 0) {
            fputs(line, stdout);
        }
    }
    fclose(status);
    DIR *directory = opendir("/proc/self/fd");
    DP_CHECK(directory != NULL);
    printf("fds:");
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory)) {
            printf(" %s", entry->d_name);
        }
    }
    closedir(directory);
    printf("\nsession %d group %d pid %d\n", (int)getsid(0), (int)getpgid(0), (int)getpid());
    fflush(stdout);
}

static void do_flood(const char *argument)
{
    static char block[1024];
    memset(block, 'x', sizeof block - 1);
    block[sizeof block - 1] = '\n';
    for (long left = atol(argument); left > 0; left--) {
        DP_CHECK(write(STDOUT_FILENO, block, sizeof block) > 0);
    }
}

static void do_exit(const char *argument)
{
    dp_link_deinit(&keeper_link);
    free(own_fence.job == protobuf_c_empty_string ? NULL : own_fence.job);
    exit(atoi(argument));
}

static void do_crash(const char *argument)
{
    (void)argument;
    (void)signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void do_ignore_term(const char *argument)
{
    (void)argument;
    (void)signal(SIGTERM, SIG_IGN);
}

static void end_on_term(int number)
{
    (void)number;
    _exit(77);
}

static void do_handle_term(const char *argument)
{
    (void)argument;
    (void)signal(SIGTERM, end_on_term);
}

static void sleep_for_ever(void)
{
    for (;;) {
        pause();
    }
}

// A child in a session of its own that ignores SIGTERM.
static void do_grandchild(const char *argument)
{
    (void)argument;
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGTERM, SIG_IGN);
        setsid();
        sleep_for_ever();
    }
    printf("grandchild %d\n", (int)pid);
    fflush(stdout);
}

static void do_sleep(const char *argument)
{
    (void)argument;
    sleep_for_ever();
}

static const struct {
    const char *word;
    void (*run)(const char *argument);
} words[] = {
    {"ready", do_ready},
    {"start", do_start},
    {"pause", do_pause},
    {"settle", do_settle},
    {"probe", do_probe},
    {"hold", do_hold},
    {"steps", do_steps},
    {"train", do_train},
    {"sample", do_sample},
    {"finish", do_finish},
    {"fail", do_fail},
    {"print", do_print},
    {"state", do_state},
    {"flood", do_flood},
    {"exit", do_exit},
    {"crash", do_crash},
    {"ignore-term", do_ignore_term},
    {"handle-term", do_handle_term},
    {"sleep", do_sleep},
    {"grandchild", do_grandchild},
};

static void run_word(char *word)
{
    char *equals = strchr(word, '=');
    if (equals != NULL) {
        *equals = '\0';
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(words); i++) {
        if (strcmp(words[i].word, word) == 0) {
            words[i].run(equals == NULL ? "" : equals + 1);
            return;
        }
    }
    fprintf(stderr, "unknown word %s\n", word);
    exit(2);
}

// DP_FAKE_RANK_2 is for rank 2 alone.
static char *script(void)
{
    char name[64];
    snprintf(name, sizeof name, "DP_FAKE_RANK_%u", own_rank);
    const char *own = getenv(name);
    const char *all = getenv("DP_FAKE_RANK");
    return strdup(own != NULL ? own : all != NULL ? all : "ready start finish exit=0");
}

// Fails until there is a file of the name in DP_FAKE_CALIBRATION; behind "wait:" it waits for it.
static int calibrate(void)
{
    const char *awaited = getenv("DP_FAKE_CALIBRATION");
    if (awaited != NULL && strncmp(awaited, "wait:", 5) == 0) {
        awaited += 5;
        fputs("measuring what there is\n", stderr);
        while (access(awaited, F_OK) != 0) {
            dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + 10 * DP_NS_PER_MS);
        }
    }
    if (awaited != NULL && access(awaited, F_OK) != 0) {
        return 5;
    }
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    puts(text.bytes);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--calibrate") == 0) {
        return calibrate();
    }
    if (argc != 5 || strcmp(argv[1], "--control-fd") != 0 || strcmp(argv[3], "--rank") != 0) {
        fprintf(stderr, "usage: dp_fake_rank --control-fd 3 --rank N\n");
        return 2;
    }
    own_rank = (uint32_t)strtoul(argv[4], NULL, 10);
    dp_link_init(&keeper_link, atoi(argv[2]), DP_LINK_OUT_BYTES_MAX);
    char *text = script();
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        run_word(word);
    }
    free(text);
    do_exit("0");
}
