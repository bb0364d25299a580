// What the third stream draws: faults enough in every world, ranks that die again and again as soon
// as they go on, and people who hold, release and reorder jobs.
#include <string.h>

#include "dp/rand.h"
#include "sim.h"

#define STORMS_MAX 5

int64_t sim_late_between(struct sim *sim, int64_t low, int64_t high)
{
    return low >= high ? low
                       : low + (int64_t)dp_rand_below(&sim->late.rand, (uint64_t)(high - low + 1));
}

bool sim_late_chance(struct sim *sim, uint32_t per_mille)
{
    return sim->streams >= 3 && dp_rand_below(&sim->late.rand, 1000) < per_mille;
}

static uint32_t note_of(const char *event)
{
    uint32_t which = 0;
    while (sim_note_text(which) != NULL && strcmp(sim_note_text(which), event) != 0) {
        which++;
    }
    return which;
}

// The same happens to a job again and again: to one that has just been recovered, or begins to run.
static void draw_storm(struct sim *sim, sim_fault_kind kind, bool at_recovery)
{
    if (sim->faults_count == SIM_FAULTS_MAX) {
        return;
    }
    bool at_once = sim_late_chance(sim, at_recovery ? 700 : 200);
    uint32_t i = sim->faults_count++;
    sim->faults[i] = (struct sim_fault){
        .kind = kind,
        .trigger = at_recovery ? SIM_AT_NOTE : SIM_AT_MOVE,
        .which = at_recovery ? note_of("job.recovered") : DP_STATE_RUNNING,
        .aimed = true,
        .same_job = true,
        .detail = (uint32_t)sim_late_between(sim, 0, 1 << 20),
        .after_ns = SIM_MS(sim_late_between(sim, 0, at_once ? 100 : 5000)),
        .repeats = (uint32_t)sim_late_between(sim, 2, STORMS_MAX),
        .fired = (sim->faults_masked >> i & 1) != 0,
    };
}

void sim_late_init(struct sim *sim)
{
    struct sim_late *late = &sim->late;
    dp_rand_init(&late->rand, dp_rand_mix(sim->seed, UINT64_C(0x6c617465)));
    if (sim->streams < 3) {
        return;
    }
    late->in_place = sim_late_chance(sim, 300);
    late->patient = sim_late_chance(sim, 200);
    if (late->patient) {
        sim->controller.config.grow_ms = (uint32_t)sim_late_between(sim, 500, 4000);
    }
    if (sim_late_chance(sim, 250)) {
        draw_storm(sim, SIM_FAULT_RANK_KILL, true);
    }
    if (late->patient || sim_late_chance(sim, 100)) {
        draw_storm(sim, sim_late_chance(sim, 600) ? SIM_FAULT_RANK_KILL : SIM_FAULT_RANK_FAILS,
                   false);
    }
    sim_push(sim, sim->calm_ns - 2, SIM_EV_FAULT, SIM_FAULTS_MAX + 1, 0, NULL);
}

void sim_late_act(struct sim *sim)
{
    if (!sim_late_chance(sim, 150) || sim->disk.highest == 0 || sim_is_calm(sim)) {
        return;
    }
    uint64_t job = (uint64_t)sim_late_between(sim, 1, (int64_t)sim->disk.highest + 1);
    sim_update update = (sim_update)sim_late_between(sim, 0, SIM_UPDATE_COUNT - 1);
    sim_users_update(sim, job, update, (uint32_t)sim_late_between(sim, 0, 4));
}

void sim_late_make_up(struct sim *sim)
{
    if (sim->broken >= SIM_FAULTS_MIN || sim->faults_masked != 0) {
        return;
    }
    struct sim_fault fault = {
        .kind = (sim_fault_kind)sim_late_between(sim, 0, SIM_FAULT_DATA_LINK),
        .node = (uint32_t)sim_late_between(sim, 0, sim->nodes_count - 1),
        .detail = (uint32_t)sim_late_between(sim, 0, 1 << 20),
        .for_ns = SIM_MS(sim_late_between(sim, 20, sim_late_chance(sim, 600) ? 3000 : 30000)),
    };
    (void)sim_fault_hit(sim, &fault);
    sim_users_burst(sim, 1);
    int64_t longer_ns = SIM_MS(sim_late_between(sim, 1000, 6000));
    sim->calm_ns += longer_ns;
    sim->end_ns += longer_ns;
    sim_push(sim, sim->calm_ns - 2, SIM_EV_FAULT, SIM_FAULTS_MAX + 1, 0, NULL);
}
