// What is urgent: the numbers that a list is built from. Lists are searched by varying them.
#pragma once

#include "dice.h"
#include "order.h"

struct rules {
    // [lanes]: chunk m of a lane wants to be started at offset + m * period; among actions that can
    // start, a rank takes the one with the earliest such time.
    double *forward, *backward, *weight;
    int32_t *depth;      // [lanes]: most chunks between F and backward
    int32_t *split_from; // [lanes]: backwards of earlier chunks are B, of later ones I, then W
    double patience;     // share of an action that a rank idles for a more urgent one
    double hold;         // seconds: until a rank's first backward no forward runs longer than
                         // this beyond the earliest time for it; infinite = it may
    double gap;          // share of a W that must fit before the next action can start
    bool pairs;          // overlap a forward with a backward where that saves time
};

// What the lanes of a field look like to one micro-batch alone.
struct outlook {
    double *period;      // [lanes]: seconds between chunks when the busiest rank never waits
    double *down;        // [lanes]: when the first F can start
    double *up;          // [lanes]: when the first backward can start
    double *first_up;    // [pipeline]: the same of the rank's lanes, the earliest
    uint64_t *reserve;   // [lanes]: bytes of one chunk of each later stage on the rank
    double span;         // seconds that all of it takes, about
    bool has_pairs;      // some pair is faster than its parts
};

void dp_auto_outlook_init(struct outlook *ret_outlook, const struct field *field);
void dp_auto_outlook_deinit(struct outlook *outlook);

void dp_auto_rules_init(struct rules *ret_rules, const struct field *field);
void dp_auto_rules_copy(struct rules *to, const struct rules *from, const struct field *field);
void dp_auto_rules_deinit(struct rules *rules);

// Rules to begin with, numbered 0 .. AUTO_PRESETS - 1: eager ones (backwards first, weights last,
// chunks alive limited) and patterns (each action at its place in a repeating block).
enum { AUTO_PRESETS = 192 };
void dp_auto_rules_preset(struct rules *rules, const struct field *field,
                          const struct outlook *outlook, int number);
// Changes a little, here or there.
void dp_auto_rules_mutate(struct rules *rules, const struct field *field,
                          const struct outlook *outlook, struct dice *dice);

// Builds a list by these rules. False when it cannot be finished within memory.
bool dp_auto_list_build(struct order *order, const struct field *field,
                        const struct outlook *outlook, const struct rules *rules,
                        struct clock *clock);
