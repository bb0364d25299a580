// What the emulator's two halves share: memory (who may touch what, stores held back) and schedule
// (fibres, barriers, launches).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulate.h"
#include "fibre.h"

struct emulate_block;

// A plain store that others do not see yet: while its fibre runs, `other` is what was there before;
// while the fibre does not run, memory holds that and `other` is the new value.
struct held_store {
    unsigned char *address;
    size_t bytes;
    unsigned char other[16];
};

enum fibre_state { FIBRE_READY, FIBRE_AT_BARRIER, FIBRE_AT_WARP, FIBRE_ENDED };

struct fibre {
    struct fibre_context *context;
    struct emulate_block *block;
    fibre_state state;
    unsigned linear; // in the block
    dim3 index;
    int64_t priority;
    size_t ready_at; // in the list of ready fibres
    uint64_t result; // of a meeting of lanes
    std::vector<held_store> held;
};

// Lanes that meet under one mask.
struct meeting {
    unsigned mask, arrived;
    emulate_collective what;
    uint64_t values[32];
    unsigned sources[32];
};

struct warp {
    unsigned live;
    struct fibre *lanes[32];
    std::vector<meeting> meetings;
};

struct barrier {
    unsigned expected, arrived;
    std::vector<struct fibre *> waiting;
};

struct launch {
    std::string name;
    dim3 grid, block;
    size_t shared_bytes;
    void (*run)(const void *arguments);
    std::vector<char> arguments;
    unsigned blocks_at_once;
    std::vector<unsigned> waiting_blocks; // started from the end
    unsigned running_blocks;
};

struct emulate_block {
    struct launch *launch;
    dim3 index;
    unsigned live;
    std::vector<std::unique_ptr<fibre>> fibres;
    std::vector<warp> warps;
    barrier barriers[16];
    std::map<const void *, void *> shared; // by declaration
    size_t shared_static;
    void *shared_dynamic;
};

// schedule.cc
extern struct fibre *emulate_running; // NULL = no fibre runs
extern emulate_options emulate_chosen;
uint64_t emulate_random(uint64_t below); // from the seed
void emulate_maybe_switch(void);         // a place where another fibre may go on
[[noreturn]] void emulate_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void emulate_progress(void); // something changed that others may wait for

// memory.cc
void *emulate_alloc_shared(size_t bytes, const emulate_block *owner);
void emulate_hide_stores(struct fibre *fibre); // the fibre stops
void emulate_show_stores(struct fibre *fibre); // the fibre goes on
