// Which machines a job's ranks share: nodes of one boot id run on one machine.
#pragma once

#include "dp/record.h"

struct machine {
    const struct dp_node_record *node; // the first of its nodes that has a rank
    uint32_t ranks;
};

// Machines that have ranks, in the order of the first rank on each; ret_machines has room for
// `nodes_count`. Nodes that are not known are passed over. *ret_compared (may be NULL) counts the
// comparisons of names, which are what it costs: about (nodes + changes of node from one rank to
// the next) x log(nodes).
size_t machines_of(const struct dp_node_record *const *nodes, size_t nodes_count,
                   const struct dp_rank_record *ranks, size_t ranks_count,
                   struct machine *ret_machines, uint64_t *ret_compared);
