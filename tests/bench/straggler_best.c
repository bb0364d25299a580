// The least step that a slow job can come to, by exhaustive simulation: every split of the layers
// over the stages, with every sharing of the micro-batches among replicas, with every place for
// what is slow, in every order of a list of families. It knows nothing of how answers are searched
// for; ways whose busiest rank alone takes longer than the best one so far are not simulated.
//
// One problem as JSON on stdin, one line of JSON on stdout:
// {"pipeline", "data", "microbatches": of a replica, "families": [names; the first one runs now],
//  "layer": [F, I, W], "layers", "hop", "slow": [[place, factor], ...],
//  "slow_links": [[place, place, factor], ...], "free": places that are not used}
// -> {"healthy_s", "slow_s", "best_s", "simulated", "layers", "microbatches", "places", "family"}
// Seconds. Rank d * pipeline + p stands at the place of that number now; free places follow.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/json.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

enum { STAGES_MAX = 16, WORLD_MAX = 16, COUNT_MAX = 64, FAMILIES_MAX = 4, SPECIAL_MAX = 4 };

struct link {
    int32_t a, b;
    double factor;
};

struct search {
    int32_t pipeline, data, microbatches, layers, free;
    double layer[3], hop;                 // F, I, W
    double slow[WORLD_MAX + SPECIAL_MAX]; // by place
    struct link links[SPECIAL_MAX];
    int32_t links_count;
    const char *families[FAMILIES_MAX];
    int32_t families_count, family;
    struct dp_schedule schedules[FAMILIES_MAX][COUNT_MAX + 1]; // by micro-batches
    bool tried[FAMILIES_MAX][COUNT_MAX + 1];
    int32_t special[SPECIAL_MAX], special_count; // places that are not like others
    // The way at hand.
    int32_t place[WORLD_MAX]; // by rank; -1 = one that is like all others
    int32_t split[STAGES_MAX + 1], counts[WORLD_MAX];
    double step[WORLD_MAX][COUNT_MAX + 1]; // of a replica by its share
    // The best one.
    double best_s;
    int32_t best_split[STAGES_MAX + 1], best_counts[WORLD_MAX], best_place[WORLD_MAX], best_family;
    int64_t simulated;
};

static void give_up(const char *what, const struct dp_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    exit(1);
}

static const struct dp_schedule *schedule_of(struct search *search, int32_t count)
{
    struct dp_schedule *schedule = &search->schedules[search->family][count];
    if (!search->tried[search->family][count]) {
        search->tried[search->family][count] = true;
        const struct dp_schedule_params params = {search->pipeline, count, 0};
        if (dp_schedule_generate(search->families[search->family], &params, schedule, NULL) !=
            DP_OK) {
            *schedule = (struct dp_schedule){0};
        }
    }
    return schedule->stages == 0 ? NULL : schedule;
}

static double slow_of(const struct search *search, int32_t rank)
{
    return search->place[rank] < 0 ? 1 : search->slow[search->place[rank]];
}

static double hop_between(const struct search *search, int32_t a, int32_t b)
{
    double hop = search->hop;
    for (int32_t i = 0; i < search->links_count; i++) {
        const struct link *link = &search->links[i];
        bool is_it = (search->place[a] == link->a && search->place[b] == link->b) ||
                     (search->place[a] == link->b && search->place[b] == link->a);
        hop *= is_it ? link->factor : 1;
    }
    return hop;
}

static void fill_costs(const struct search *search, const struct dp_schedule *schedule,
                       int32_t replica, struct dp_sim_costs *costs)
{
    int32_t first = replica * search->pipeline;
    for (int32_t p = 0; p < search->pipeline; p++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, p, stages);
        for (int32_t i = 0; i < count; i++) {
            double layers = search->split[stages[i] + 1] - search->split[stages[i]];
            double scale = layers * slow_of(search, first + p);
            double *seconds = dp_sim_chunk_at(costs, p, i)->seconds;
            seconds[DP_ACTION_F] = scale * search->layer[0];
            seconds[DP_ACTION_I] = scale * search->layer[1];
            seconds[DP_ACTION_W] = scale * search->layer[2];
            seconds[DP_ACTION_B] = scale * (search->layer[1] + search->layer[2]);
        }
        for (int32_t f = 0; f < count; f++) {
            for (int32_t b = 0; b < count; b++) {
                const double *forward = dp_sim_chunk_at(costs, p, f)->seconds;
                const double *backward = dp_sim_chunk_at(costs, p, b)->seconds;
                size_t pair = dp_sim_pair_index(costs, p, f, b);
                costs->fb[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_B];
                costs->fi[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_I];
            }
        }
        for (int32_t q = 0; q < search->pipeline; q++) {
            dp_sim_hop_at(costs, p, q)->latency =
                p == q ? 0 : hop_between(search, first + p, first + q);
        }
    }
}

// No order is faster than its busiest rank.
static double busiest(const struct search *search, const struct dp_schedule *schedule,
                      int32_t replica, int32_t count)
{
    double most = 0, layer_s = search->layer[0] + search->layer[1] + search->layer[2];
    for (int32_t p = 0; p < search->pipeline; p++) {
        int32_t stages[DP_RANK_STAGES_MAX], layers = 0;
        int32_t chunks = dp_schedule_rank_stages(schedule, p, stages);
        for (int32_t i = 0; i < chunks; i++) {
            layers += search->split[stages[i] + 1] - search->split[stages[i]];
        }
        // A rank of a bidirectional pipeline has half of the micro-batches of each stage.
        double share = schedule->directions == 2 && chunks == 2 ? 0.5 : 1;
        double rank = slow_of(search, replica * search->pipeline + p);
        most = fmax(most, share * count * layers * layer_s * rank);
    }
    return most;
}

static double replica_step(struct search *search, int32_t replica, int32_t count, double limit)
{
    const struct dp_schedule *schedule = schedule_of(search, count);
    if (schedule == NULL || busiest(search, schedule, replica, count) >= limit) {
        return INFINITY;
    }
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs;
    dp_sim_costs_init(&costs, schedule);
    fill_costs(search, schedule, replica, &costs);
    double makespan, step;
    struct dp_error err = {0};
    if (dp_simulate_makespan(schedule, &costs, NULL, &makespan, &step, &err) != DP_OK) {
        give_up("simulation", &err);
    }
    search->simulated++;
    return step;
}

static void take_best(struct search *search, double step)
{
    if (step < search->best_s) {
        search->best_s = step;
        memcpy(search->best_split, search->split, sizeof(search->split));
        memcpy(search->best_counts, search->counts, sizeof(search->counts));
        memcpy(search->best_place, search->place, sizeof(search->place));
        search->best_family = search->family;
    }
}

static void share_out(struct search *search, int32_t replica, int32_t left, double longest)
{
    if (longest >= search->best_s) {
        return;
    }
    if (replica + 1 == search->data) {
        search->counts[replica] = left;
        take_best(search, fmax(longest, search->step[replica][left]));
        return;
    }
    for (int32_t n = 1; n < left; n++) {
        search->counts[replica] = n;
        share_out(search, replica + 1, left - n, fmax(longest, search->step[replica][n]));
    }
}

static bool is_same_replica(const struct search *search, int32_t a, int32_t b)
{
    for (int32_t p = 0; p < search->pipeline; p++) {
        if (search->place[a * search->pipeline + p] != search->place[b * search->pipeline + p]) {
            return false;
        }
    }
    return true;
}

static void try_split(struct search *search)
{
    int32_t total = search->data * search->microbatches;
    for (int32_t d = 0; d < search->data; d++) {
        bool again = d > 0 && is_same_replica(search, d, d - 1);
        for (int32_t n = search->data == 1 ? total : 1; n <= total - search->data + 1; n++) {
            search->step[d][n] =
                again ? search->step[d - 1][n] : replica_step(search, d, n, search->best_s);
        }
    }
    share_out(search, 0, total, 0);
}

static void split_layers(struct search *search, int32_t stage)
{
    int32_t stages = search->pipeline;
    if (stage == stages) {
        search->split[stages] = search->layers;
        try_split(search);
        return;
    }
    // The first stage and the last one may have none: they have the embedding and the head.
    int32_t least = search->split[stage - 1] + (stage > 1);
    for (int32_t l = least; l <= search->layers - (stages - 1 - stage); l++) {
        search->split[stage] = l;
        split_layers(search, stage + 1);
    }
}

// Every rank, and every free place, for each place that is not like others.
static void put_special(struct search *search, int32_t index, int32_t free)
{
    if (index == search->special_count) {
        for (search->family = 0; search->family < search->families_count; search->family++) {
            split_layers(search, 1);
        }
        return;
    }
    for (int32_t r = 0; r < search->pipeline * search->data; r++) {
        if (search->place[r] < 0) {
            search->place[r] = search->special[index];
            put_special(search, index + 1, free);
            search->place[r] = -1;
        }
    }
    if (free > 0) {
        put_special(search, index + 1, free - 1);
    }
}

static double step_now(struct search *search)
{
    double longest = 0;
    search->family = 0;
    for (int32_t s = 0; s <= search->pipeline; s++) {
        search->split[s] = search->layers * s / search->pipeline;
    }
    for (int32_t d = 0; d < search->data; d++) {
        longest = fmax(longest, replica_step(search, d, search->microbatches, INFINITY));
    }
    return longest;
}

static int32_t whole(const json_t *problem, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(problem, key));
}

static double real_at(const json_t *row, size_t index)
{
    return json_number_value(json_array_get(row, index));
}

static void add_special(struct search *search, int32_t place)
{
    for (int32_t i = 0; i < search->special_count; i++) {
        if (search->special[i] == place) {
            return;
        }
    }
    if (search->special_count < SPECIAL_MAX) {
        search->special[search->special_count++] = place;
    }
}

static void read_slow(const json_t *problem, struct search *search)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(problem, "slow"), i, row)
    {
        int32_t place = (int32_t)real_at(row, 0);
        if (place >= 0 && place < WORLD_MAX) {
            search->slow[place] = real_at(row, 1);
            add_special(search, place);
        }
    }
    json_array_foreach(json_object_get(problem, "slow_links"), i, row)
    {
        if (search->links_count < SPECIAL_MAX) {
            struct link *link = &search->links[search->links_count++];
            *link =
                (struct link){(int32_t)real_at(row, 0), (int32_t)real_at(row, 1), real_at(row, 2)};
            add_special(search, link->a);
            add_special(search, link->b);
        }
    }
}

static void read_problem(const json_t *problem, struct search *search)
{
    search->pipeline = whole(problem, "pipeline");
    search->data = whole(problem, "data");
    search->microbatches = whole(problem, "microbatches");
    search->layers = whole(problem, "layers");
    search->free = whole(problem, "free");
    search->hop = json_number_value(json_object_get(problem, "hop"));
    for (size_t k = 0; k < 3; k++) {
        search->layer[k] = real_at(json_object_get(problem, "layer"), k);
    }
    size_t i;
    const json_t *name;
    json_array_foreach(json_object_get(problem, "families"), i, name)
    {
        if (search->families_count < FAMILIES_MAX) {
            search->families[search->families_count++] = json_string_value(name);
        }
    }
    for (int32_t place = 0; place < WORLD_MAX + SPECIAL_MAX; place++) {
        search->slow[place] = 1;
    }
    read_slow(problem, search);
    bool fits = search->pipeline >= 1 && search->pipeline <= STAGES_MAX && search->data >= 1 &&
                search->pipeline * search->data <= WORLD_MAX && search->microbatches >= 1 &&
                search->data * search->microbatches <= COUNT_MAX &&
                search->layers >= search->pipeline && search->families_count > 0;
    if (!fits) {
        fprintf(stderr, "the problem has sizes that this program does not take\n");
        exit(2);
    }
}

static json_t *numbers(const int32_t *values, int32_t count, bool differences)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_array_append_new(list,
                              json_integer(differences ? values[i + 1] - values[i] : values[i]));
    }
    return list;
}

int main(void)
{
    json_error_t error;
    DP_AUTO_JSON json_t *problem = json_loadf(stdin, 0, &error);
    struct search *search = dp_new(struct search);
    read_problem(problem, search);
    int32_t world = search->pipeline * search->data;
    for (int32_t r = 0; r < world; r++) {
        search->place[r] = -1;
    }
    double healthy = step_now(search);
    for (int32_t r = 0; r < world; r++) {
        search->place[r] = r;
    }
    double slow = step_now(search);
    for (int32_t r = 0; r < world; r++) {
        search->place[r] = -1;
    }
    search->best_s = INFINITY;
    put_special(search, 0, search->free);
    DP_AUTO_JSON json_t *answer = json_pack(
        "{s:f, s:f, s:f, s:I, s:o, s:o, s:o, s:s}", "healthy_s", healthy, "slow_s", slow, "best_s",
        search->best_s, "simulated", (json_int_t)search->simulated, "layers",
        numbers(search->best_split, search->pipeline, true), "microbatches",
        numbers(search->best_counts, search->data, false), "places",
        numbers(search->best_place, world, false), "family", search->families[search->best_family]);
    json_dumpf(answer, stdout, JSON_REAL_PRECISION(9));
    printf("\n");
    for (int32_t f = 0; f < search->families_count; f++) {
        for (int32_t n = 0; n <= COUNT_MAX; n++) {
            if (search->schedules[f][n].stages > 0) {
                dp_schedule_deinit(&search->schedules[f][n]);
            }
        }
    }
    free(search);
    return 0;
}
