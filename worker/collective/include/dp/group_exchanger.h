// The plainest way to move rows between expert ranks: messages of a group, one copy of a token for
// each rank that has one of its experts, summed in the order of the ranks. What faster exchangers
// are compared with, bit for bit, where all ranks are one node. Rows travel as elements, whatever
// the format of a load.
//
// Memory is host memory (that of the cpu device is). Ends block in the transport; there is no
// thread. A routing and its peers' counterparts are told apart by the group's order of calls.
#pragma once

#include "dp/collective.h"
#include "dp/device.h"
#include "dp/exchanger.h"

struct dp_group_exchanger_config {
    struct dp_group *group;   // the expert-parallel peers; borrowed
    struct dp_device *device; // borrowed
    int32_t hidden, top_k;
    int32_t experts; // of the whole model; the group's size divides it
};

struct dp_group_exchanger;

struct dp_group_exchanger *dp_group_exchanger_new(const struct dp_group_exchanger_config *config);
// After all its routings are released; accepts NULL.
void dp_group_exchanger_free(struct dp_group_exchanger *exchanger);
// Owned by the exchanger. Errors are the transport's, and DP_INTERNAL for a peer whose indices are
// not this rank's experts.
struct dp_exchanger *dp_group_exchanger_interface(struct dp_group_exchanger *exchanger);
