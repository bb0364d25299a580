// sim_worlds SEED RUNS [WORKERS] - runs that many worlds; SEED is 7, or 7/2: see sim.h
// sim_worlds SEED show           - tells all of one
// sim_worlds SEED survey RUNS    - a line for each that fails
// sim_worlds SEED find RUNS      - a line for the first
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "campaign.h"

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "use: %s SEED RUNS [WORKERS] | SEED show | SEED survey|find RUNS\n",
                arguments[0]);
        return 2;
    }
    uint64_t seed = sim_seed_parse(arguments[1]);
    if (strcmp(arguments[2], "show") == 0) {
        return sim_show(seed) ? 0 : 1;
    }
    bool all = strcmp(arguments[2], "survey") == 0;
    if ((all || strcmp(arguments[2], "find") == 0) && count > 3) {
        return sim_survey(seed, strtoull(arguments[3], NULL, 10), all) ? 0 : 1;
    }
    struct timespec begin, end;
    struct sim_tally tally = {0};
    uint32_t workers = count > 3 ? (uint32_t)strtoul(arguments[3], NULL, 10) : 2;
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    bool passed = sim_campaign(seed, strtoull(arguments[2], NULL, 10), workers, &tally);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    sim_tally_print(&tally, seconds);
    return passed ? 0 : 1;
}
