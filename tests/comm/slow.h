// A transport for tests: ranks that are threads of one process, joined by slow and uneven links.
//
// Each message is on its way for a random time, so that messages of different peers and tags
// overtake each other; those of one pair with one tag keep their order, as dp/transport.h promises
// and no more. Puts into windows keep their order, too. No link takes CPU time while it delays, so
// that what is hidden behind computing can be told. Sequences of delays depend on the seed and on
// the order of sends alone.
#pragma once

#include "dp/transport.h"

struct slow_link {
    uint64_t seed;
    int64_t delay_us_max;    // a message travels for up to this
    int64_t latency_us;      // and for this in any case
    double bytes_per_second; // messages of a pair leave one behind the other at this pace; 0 = any
    int32_t stall_one_in;    // about one message in so many holds up its pair's link; 0 = none
    int64_t stall_us;        // for so long
};

// `world` ends; dp_transport_progress is to be run by a thread for each.
void slow_open(const struct slow_link *link, int32_t world, struct dp_transport **ret_ends);
// Messages of this end that have arrived before one which was sent earlier to the same rank.
uint64_t slow_overtaken(const struct dp_transport *end);
