// Measures the moves of rows between expert-parallel peers: stands between the stages and the
// exchanger that carries them out.
#pragma once

#include "dp/exchanger.h"
#include "dp/exec.h"

struct moves;

struct moves *dp_exec_moves_new(void);
// Accepts NULL. After all its routings are released.
void dp_exec_moves_free(struct moves *moves);
// What to give to the stages; valid as long as `moves`.
struct dp_exchanger *dp_exec_moves_exchanger(struct moves *moves);
// Who carries them out, before the first; borrowed.
void dp_exec_moves_set_inner(struct moves *moves, const struct dp_exchanger *inner);
// Looks after moves under way, since not every exchanger tells when one has landed; between ops.
void dp_exec_moves_poll(struct moves *moves);
// What was measured since the last take is added to comm[DP_EXEC_COMM_KIND_COUNT]. Returns what was
// exposed of it.
int64_t dp_exec_moves_take(struct moves *moves, struct dp_exec_comm *comm);
