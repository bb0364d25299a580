#include "exec_hold.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"

#define MEET_NS (60 * DP_NS_PER_S)

static void *run_server(void *argument)
{
    dp_state_server_run(argument);
    return NULL;
}

// Serves until an order comes; true: to settle.
static bool serve(struct holders *holders, int32_t rank, struct dp_trainer *trainer)
{
    struct held_rank *self = &holders->ranks[rank];
    struct dp_state state;
    struct dp_state_server *server;
    struct dp_error err;
    pthread_t thread;
    char address[DP_ADDRESS_MAX];
    struct dp_trainer_held held;
    dp_trainer_hold(trainer, &held);
    dp_trainer_state(trainer, &state);
    DP_CHECK(dp_state_server_open(&state, "127.0.0.1", rank, HOLD_TOKEN, address, &server, &err) ==
             DP_OK);
    DP_CHECK(pthread_create(&thread, NULL, run_server, server) == 0);
    pthread_mutex_lock(&holders->lock);
    self->held = held;
    DP_COPY_TEXT(self->address, address);
    const bool had_settled = self->is_settled;
    holders->arrived += !had_settled;
    holders->answered += had_settled;
    pthread_cond_broadcast(&holders->changed);
    bool settles = false;
    while (!settles && !holders->is_over) {
        settles = !had_settled && holders->settle_step > held.step && rank != holders->dead;
        if (!settles) {
            pthread_cond_wait(&holders->changed, &holders->lock);
        }
    }
    pthread_mutex_unlock(&holders->lock);
    dp_state_server_close(server);
    pthread_join(thread, NULL);
    dp_state_server_free(server);
    dp_state_deinit(&state);
    return settles;
}

static dp_status hold(void *context, int32_t rank, struct dp_trainer *trainer, dp_status status,
                      struct dp_error *err)
{
    struct holders *holders = context;
    struct held_rank *self = &holders->ranks[rank];
    self->status = status;
    self->err = *err;
    while (serve(holders, rank, trainer)) {
        self->is_settled = true;
        (void)dp_trainer_settle(trainer, holders->settle_step, holders->settle_norm,
                                &self->refusal);
    }
    return status;
}

static void *run_trial(void *argument)
{
    struct holders *holders = argument;
    trial_run(&holders->trial, &holders->result);
    return NULL;
}

void holders_begin(struct holders *holders, const struct trial *trial, int32_t dead)
{
    *holders = (struct holders){.trial = *trial, .dead = dead};
    pthread_mutex_init(&holders->lock, NULL);
    pthread_cond_init(&holders->changed, NULL);
    holders->trial.end = hold;
    holders->trial.hooks = holders;
    DP_CHECK(pthread_create(&holders->thread, NULL, run_trial, holders) == 0);
    pthread_mutex_lock(&holders->lock);
    while (holders->arrived < trial->pipeline * trial->data) {
        pthread_cond_wait(&holders->changed, &holders->lock);
    }
    pthread_mutex_unlock(&holders->lock);
}

int64_t holders_settle(struct holders *holders)
{
    const int32_t world = holders->trial.pipeline * holders->trial.data;
    int32_t behind = 0;
    int64_t step = 0;
    pthread_mutex_lock(&holders->lock);
    for (int32_t i = 0; i < world; i++) {
        const struct dp_trainer_held *held = &holders->ranks[i].held;
        if (i != holders->dead && held->step > step) {
            step = held->step;
        }
    }
    for (int32_t i = 0; i < world; i++) {
        const struct dp_trainer_held *held = &holders->ranks[i].held;
        behind += i != holders->dead && held->step < step;
        if (i != holders->dead && held->step == step && held->has_norm) {
            holders->settle_norm = held->norm;
        }
    }
    holders->settle_step = step;
    pthread_cond_broadcast(&holders->changed);
    while (holders->answered < behind) {
        pthread_cond_wait(&holders->changed, &holders->lock);
    }
    pthread_mutex_unlock(&holders->lock);
    return step;
}

int32_t holders_sources(const struct holders *holders, struct dp_state_address *ret_sources)
{
    int32_t count = 0;
    for (int32_t i = 0; i < holders->trial.pipeline * holders->trial.data; i++) {
        if (i != holders->dead) {
            ret_sources[count++] = (struct dp_state_address){i, holders->ranks[i].address};
        }
    }
    return count;
}

void holders_end(struct holders *holders)
{
    pthread_mutex_lock(&holders->lock);
    holders->is_over = true;
    pthread_cond_broadcast(&holders->changed);
    pthread_mutex_unlock(&holders->lock);
    pthread_join(holders->thread, NULL);
    trial_result_deinit(&holders->result);
    pthread_cond_destroy(&holders->changed);
    pthread_mutex_destroy(&holders->lock);
}

static dp_status take(void *context, int32_t rank, struct dp_trainer *trainer, struct dp_error *err)
{
    const struct takers *takers = context;
    const struct dp_state_reader_config config = {.sources = takers->sources,
                                                  .count = takers->count,
                                                  .rank = rank,
                                                  .token = takers->token == 0 ? HOLD_TOKEN
                                                                              : takers->token,
                                                  .step = takers->step,
                                                  .deadline_ns = dp_clock_monotonic_ns() + MEET_NS};
    struct dp_state_reader *reader = NULL;
    dp_status status = dp_state_reader_open(&config, &reader, err);
    if (status == DP_OK) {
        const struct dp_tensor_source source = dp_state_reader_source(reader);
        status = dp_trainer_take(trainer, &source, dp_state_reader_meta(reader), err);
    }
    dp_state_reader_free(reader);
    return status;
}

void takers_set(struct takers *takers, struct trial *trial)
{
    trial->begin = take;
    trial->hooks = takers;
}
