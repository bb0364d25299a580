#include "reassign_world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp_test.h"

static const char *const node_names[] = {"a", "b", "c"};
static const char old_places[] = "aabb";

uint64_t change_session(const struct change *change, char place)
{
    return place == 'a' ? change->a : place == 'b' ? change->b : change->c;
}

void change_init(struct change *change, dp_recovery_policy recovery, uint64_t step)
{
    change_init_of(change, recovery, DP_JOB_ADAPT_AUTO, step);
}

void change_init_of(struct change *change, dp_recovery_policy recovery, dp_adapt_policy adapt,
                    uint64_t step)
{
    world_init(&change->world);
    change->world.recovery = recovery;
    change->world.adapt = adapt;
    uint64_t sessions[2];
    world_bring(&change->world, DP_STATE_RUNNING, sessions);
    change->a = sessions[0];
    change->b = sessions[1];
    change->c = world_hello(&change->world, "c", 2, NULL, 0);
    for (uint64_t s = 1; s <= step; s++) {
        change_step(change, s, DP_NS_PER_MS);
    }
    change->world.sent_count = 0;
}

void change_deinit(struct change *change)
{
    world_deinit(&change->world);
}

static struct dp_fence fence_of(uint32_t epoch)
{
    struct dp_fence fence = {.job = "job-1", .attempt = 1, .epoch = epoch};
    return fence;
}

void change_step_of(struct change *change, uint32_t epoch, const char *places, uint64_t step,
                    int64_t step_ns)
{
    for (uint32_t rank = 0; rank < strlen(places); rank++) {
        struct dp_report report = {.kind = DP_REPORT_STEP, .fence = fence_of(epoch)};
        report.step.row = (struct dp_step_record){
            .step = step, .loss = 2, .loss_known = true, .step_ns = step_ns, .tokens = 100};
        world_report(&change->world, change_session(change, places[rank]), rank, &report);
    }
    change->world.steps_count = 0;
}

void change_step(struct change *change, uint64_t step, int64_t step_ns)
{
    change_step_of(change, 1, old_places, step, step_ns);
}

void change_ask(struct change *change, uint64_t reply, const char *away, bool advise)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_REASSIGN,
        .reassign = {.reply = reply, .job = "job-1", .away = away, .advise = advise}};
    world_step(&change->world, &event);
}

void change_answer(struct change *change, const char *places)
{
    change_answer_of(change, "move-layers", places);
}

void change_answer_of(struct change *change, const char *kind, const char *places)
{
    struct dp_slot slots[16];
    uint32_t used[3] = {0};
    size_t count = strlen(places);
    DP_CHECK(count <= DP_ARRAY_LENGTH(slots) && change->world.asked.request != 0);
    for (size_t i = 0; i < count; i++) {
        int node = places[i] - 'a';
        slots[i] = (struct dp_slot){node_names[node], used[node]++};
    }
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = change->world.asked.request,
                                                 .kind = kind,
                                                 .action = "layer 3 to rank 1",
                                                 .predicted_step_ns = DP_NS_PER_MS / 2,
                                                 .predicted_pause_ns = 100 * DP_NS_PER_MS,
                                                 .document = "{}",
                                                 .document_length = 2,
                                                 .plan = "other",
                                                 .plan_length = 5,
                                                 .ranks = slots,
                                                 .ranks_count = count}};
    world_step(&change->world, &event);
}

void change_refuse(struct change *change, const char *why)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_ADAPT_FAILED,
        .adapt_failed = {.job = 1, .request = change->world.asked.request}};
    event.adapt_failed.error.status = DP_UNSCHEDULABLE;
    DP_COPY_TEXT(event.adapt_failed.error.message, why);
    world_step(&change->world, &event);
}

void change_rank(struct change *change, uint32_t epoch, char place, struct dp_rank_level *level)
{
    struct dp_assignment_level assignment = {
        .fence = fence_of(epoch), .ranks = level, .ranks_count = 1, .error = ""};
    world_send_level(&change->world, change_session(change, place), &assignment);
}

void change_level(struct change *change, uint32_t epoch, const char *places, dp_rank_phase phase,
                  uint64_t step)
{
    for (uint32_t rank = 0; rank < strlen(places); rank++) {
        struct dp_rank_level level = world_rank_level(rank, phase);
        level.step = step;
        change_rank(change, epoch, places[rank], &level);
    }
}

void change_hold(struct change *change, uint32_t epoch, const char *places, unsigned ranks,
                 uint64_t step, const char *why)
{
    for (uint32_t rank = 0; rank < strlen(places); rank++) {
        struct dp_rank_level level = world_rank_level(rank, DP_RANK_RUNNING);
        if ((ranks >> rank & 1) == 0) {
            continue;
        }
        level.step = step;
        level.held_known = true;
        level.held = (struct dp_rank_held){
            .step = step, .norm_known = true, .grad_norm = (double)step, .gradients_whole = true};
        snprintf(level.held.address, sizeof(level.held.address), "127.0.0.1:%u", 6000 + rank);
        DP_COPY_TEXT(level.held.why, why);
        change_rank(change, epoch, places[rank], &level);
    }
}

void change_die(struct change *change, uint32_t epoch, char place, uint32_t rank, int signal)
{
    struct dp_rank_level level = world_rank_level(rank, DP_RANK_DIED);
    level.signal = signal;
    change_rank(change, epoch, place, &level);
}

void change_stop(struct change *change, uint32_t epoch, const char *places)
{
    for (uint32_t rank = 0; rank < strlen(places); rank++) {
        change_die(change, epoch, places[rank], rank, SIGTERM);
    }
}

void change_begin(struct change *change, const char *places, dp_rank_phase phase)
{
    change_ask(change, 0, "", false);
    change_answer(change, places);
    change_level(change, 2, places, phase, 0);
}

void change_take_over(struct change *change, uint32_t epoch, const char *places, uint64_t step)
{
    change_level(change, epoch, places, DP_RANK_READY, 0);
    change_level(change, epoch, places, DP_RANK_RUNNING, step);
}

void change_pass(struct change *change, uint32_t epoch, const char *places, uint64_t step,
                 int seconds)
{
    for (int second = 0; second < seconds; second++) {
        world_pass(&change->world, 1000);
        change_level(change, epoch, places, DP_RANK_RUNNING, step);
    }
}

void change_hear(struct change *change, const char *nodes, int seconds)
{
    for (int second = 0; second < seconds; second++) {
        world_pass(&change->world, 1000);
        for (const char *node = nodes; *node != '\0'; node++) {
            struct dp_rank_level none = {.rank = 99};
            change_rank(change, 7, *node, &none);
        }
    }
}

void change_hello(struct change *change, char node, const struct dp_assignment_level *levels,
                  size_t count)
{
    uint64_t session = world_hello(&change->world, node_names[node - 'a'], 2, levels, count);
    *(node == 'a' ? &change->a : node == 'b' ? &change->b : &change->c) = session;
}

void change_second_level(struct change *change, const char *places, dp_rank_phase phase)
{
    for (uint32_t rank = 0; rank < strlen(places); rank++) {
        struct dp_rank_level level = world_rank_level(rank, phase);
        struct dp_assignment_level assignment = {
            .fence = {"job-1", 2, 1}, .ranks = &level, .ranks_count = 1, .error = ""};
        world_send_level(&change->world, change_session(change, places[rank]), &assignment);
    }
}

void change_decide(struct change *change, const char *node, dp_node_action action)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_NODE_ASK,
        .node_ask = {
            .node = node, .reason = "", .by = "operator", .word = "decided", .action = action}};
    world_step(&change->world, &event);
}

void change_to(struct change *change, const char *places, uint64_t step)
{
    change_begin(change, places, DP_RANK_READY);
    change_hold(change, 1, old_places, 15, step, "");
    change_level(change, 2, places, DP_RANK_RUNNING, step);
}

void change_restart(struct change *change)
{
    struct world *world = &change->world;
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    struct dp_job_record job = *dp_core_job(world->core, 1, &ranks, &count);
    DP_AUTO_FREE struct dp_rank_record *kept = dp_memdup(ranks, count * sizeof(*ranks));
    struct dp_core *before = world->core;
    world->core = dp_core_new(&world->config);
    for (size_t i = 0; i < 3; i++) {
        struct dp_node_record node = {.slots = 2, .lease_ms = 10000, .fence_ms = 60000};
        DP_COPY_TEXT(node.name, node_names[i]);
        struct dp_core_event event = {.kind = DP_EVENT_LOAD_NODE, .load_node = &node};
        world_step(world, &event);
    }
    // What is a level is not stored.
    for (size_t i = 0; i < count; i++) {
        kept[i].is_held = kept[i].gone = false;
    }
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_JOB, .load_job = {&job, kept, count}};
    world_step(world, &event);
    dp_core_free(before);
    world->sent_count = 0;
    world->asked.request = 0;
}

size_t change_sent(const struct change *change, dp_order_kind order, uint32_t epoch,
                   const char *node)
{
    size_t count = 0;
    for (size_t i = 0; i < change->world.sent_count; i++) {
        const struct world_order *sent = &change->world.sent[i];
        count += sent->order == order && sent->fence.epoch == epoch &&
                 (node[0] == '\0' || strcmp(sent->node, node) == 0);
    }
    return count;
}

const struct dp_job_record *change_job(const struct change *change)
{
    return world_job(&change->world, 1);
}

void change_assert_state(const struct change *change, dp_job_state state)
{
    assert_string_equal(dp_job_state_text(change_job(change)->state), dp_job_state_text(state));
}

void change_assert_says(const struct change *change, const char *part)
{
    assert_part(change_job(change)->message, part);
}

struct dp_assignment_view change_view(const struct change *change, uint32_t epoch)
{
    struct dp_fence fence = fence_of(epoch);
    struct dp_assignment_view view;
    assert_true(dp_core_assignment(change->world.core, &fence, &view));
    return view;
}

uint32_t change_slots_used(const struct change *change, const char *node)
{
    for (size_t i = 0; i < dp_core_nodes_count(change->world.core); i++) {
        struct dp_node_view view;
        dp_core_node_at(change->world.core, i, &view);
        if (strcmp(view.node->name, node) == 0) {
            return view.slots_used;
        }
    }
    return 0;
}
