// Launches, the order in which fibres go on, barriers and meetings of lanes.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static const unsigned THREADS_MAX = 1024;
static const size_t SHARED_STATIC_MAX = 48 * 1024, SHARED_MAX = 227 * 1024; // of a block on sm_90

struct emulate_stream {
    std::deque<std::unique_ptr<launch>> launches;
};

struct fibre *emulate_running;
emulate_options emulate_chosen;

static uint64_t random_state = 1, switches, idle_spins, turn;
static int64_t last_in_line; // below every priority so far
// How often a fibre that could go on is stopped: once in so many accesses; 0 = never.
static uint64_t preempt_in;
static bool by_priority;
static struct fibre_context *scheduler;
static std::vector<struct fibre *> ready;
static std::vector<std::unique_ptr<emulate_block>> blocks;
static std::vector<struct fibre_context *> &stacks = *new std::vector<struct fibre_context *>();
static std::vector<emulate_stream *> streams;
static std::string failure;
static bool failed;

uint64_t emulate_random(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state * 0x2545f4914f6cdd1dull >> 11) % below;
}

void emulate_configure(struct emulate_options options)
{
    static const uint64_t chances[] = {2, 16, 128, 0};
    emulate_chosen = options;
    turn = 0;
    last_in_line = 0;
    random_state = options.seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    random_state += random_state == 0;
    preempt_in = options.seed == 0 ? 0 : chances[emulate_random(4)];
    by_priority = options.seed != 0 && emulate_random(3) == 0;
}

const char *emulate_error(void)
{
    static std::string last;
    last.swap(failure);
    failure.clear();
    return last.empty() ? nullptr : last.c_str();
}

uint64_t emulate_switches(void)
{
    return switches;
}

static void note_failure(const char *format, va_list arguments)
{
    char text[400], place[200] = "";
    vsnprintf(text, sizeof(text), format, arguments);
    if (emulate_running != nullptr) {
        const struct fibre *f = emulate_running;
        snprintf(place, sizeof(place),
                 "%s, block (%u, %u), thread (%u, %u): ", f->block->launch->name.c_str(),
                 f->block->index.x, f->block->index.y, f->index.x, f->index.y);
    }
    failed = true;
    if (failure.empty()) {
        failure = std::string(place) + text;
    }
}

void emulate_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note_failure(format, arguments);
    va_end(arguments);
    if (emulate_running == nullptr) {
        fprintf(stderr, "%s\n", failure.c_str());
        abort();
    }
    for (;;) {
        fibre_switch(emulate_running->context, scheduler);
    }
}

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note_failure(format, arguments);
    va_end(arguments);
}

static void make_ready(struct fibre *f)
{
    f->state = FIBRE_READY;
    f->ready_at = ready.size();
    ready.push_back(f);
    idle_spins = 0;
}

static void take_ready(struct fibre *f)
{
    ready[f->ready_at] = ready.back();
    ready[f->ready_at]->ready_at = f->ready_at;
    ready.pop_back();
}

// To the scheduler, in the state that the fibre has by now.
static void stop(void)
{
    struct fibre *f = emulate_running;
    emulate_hide_stores(f);
    fibre_switch(f->context, scheduler);
    emulate_show_stores(f);
}

static void wait_as(fibre_state state)
{
    take_ready(emulate_running);
    emulate_running->state = state;
    stop();
}

void emulate_maybe_switch(void)
{
    if (preempt_in != 0 && emulate_random(preempt_in) == 0) {
        if (by_priority) {
            emulate_running->priority = (int64_t)emulate_random(1u << 20);
        }
        stop();
    }
}

void emulate_progress(void)
{
    idle_spins = 0;
}

void emulate_spin(void)
{
    if (emulate_running == nullptr) {
        return;
    }
    if (++idle_spins > 1000 + 64 * (uint64_t)ready.size()) {
        emulate_fail("a deadlock: this thread and all others that can run wait for a value that "
                     "nobody writes");
    }
    emulate_running->priority = --last_in_line;
    stop();
}

void emulate_trap(void)
{
    emulate_fail("the kernel gave up (trap)");
}

uint64_t emulate_clock(void)
{
    return switches;
}

dim3 emulate_thread_index(void)
{
    return emulate_running->index;
}

dim3 emulate_block_index(void)
{
    return emulate_running->block->index;
}

dim3 emulate_block_dim(void)
{
    return emulate_running->block->launch->block;
}

dim3 emulate_grid_dim(void)
{
    return emulate_running->block->launch->grid;
}

unsigned emulate_lane(void)
{
    return emulate_running->linear % 32;
}

static void open_barrier(barrier *b)
{
    for (struct fibre *f : b->waiting) {
        make_ready(f);
    }
    b->waiting.clear();
    b->arrived = b->expected = 0;
}

void emulate_barrier(unsigned id, unsigned count, bool waits)
{
    struct fibre *f = emulate_running;
    barrier *b = &f->block->barriers[id % 16];
    const unsigned expected = count == 0 ? f->block->live : count;
    if (id > 15 || (count != 0 && (count % 32 != 0 || count > f->block->fibres.size()))) {
        emulate_fail(
            "barrier %u of %u threads: ids go to 15, counts are multiples of 32 within the "
            "block",
            id, count);
    }
    if (b->arrived > 0 && count != 0 && b->expected != expected) {
        emulate_fail("barrier %u is for %u threads here and for %u elsewhere", id, expected,
                     b->expected);
    }
    emulate_maybe_switch();
    emulate_release();
    b->expected = expected;
    b->arrived++;
    if (count == 0 ? b->arrived == f->block->live : b->arrived == expected) {
        open_barrier(b);
        if (waits) {
            emulate_maybe_switch();
        }
    } else if (waits) {
        b->waiting.push_back(f);
        wait_as(FIBRE_AT_BARRIER);
    }
}

static uint64_t joined(const meeting *m)
{
    uint64_t sum = 0, any = 0, all = 1, bits = 0, least = UINT64_MAX, most = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((m->arrived >> lane & 1u) != 0) {
            const uint64_t value = m->values[lane];
            sum += value;
            any |= value;
            all &= value;
            bits |= (value & 1u) << lane;
            least = value < least ? value : least;
            most = value > most ? value : most;
        }
    }
    switch (m->what) {
    case EMULATE_BALLOT:
        return bits;
    case EMULATE_ANY:
        return any;
    case EMULATE_ALL:
        return all;
    case EMULATE_ADD:
        return sum;
    case EMULATE_MIN:
        return least;
    case EMULATE_MAX:
        return most;
    case EMULATE_SYNC:
    case EMULATE_SHUFFLE:
        break;
    }
    return 0;
}

// Everybody of the mask that has not ended is there.
static void finish_meeting(warp *w, size_t at)
{
    const meeting m = w->meetings[at];
    w->meetings.erase(w->meetings.begin() + (ptrdiff_t)at);
    const uint64_t result = joined(&m);
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((m.arrived >> lane & 1u) == 0) {
            continue;
        }
        struct fibre *f = w->lanes[lane];
        f->result = result;
        if (m.what == EMULATE_SHUFFLE) {
            if ((m.arrived >> m.sources[lane] & 1u) == 0) {
                note("%s: lane %u shuffles from lane %u, which is not there",
                     f->block->launch->name.c_str(), lane, m.sources[lane]);
                return;
            }
            f->result = m.values[m.sources[lane]];
        }
        if (f->state == FIBRE_AT_WARP) {
            make_ready(f);
        }
    }
}

uint64_t emulate_warp(enum emulate_collective what, unsigned mask, uint64_t value, unsigned source)
{
    struct fibre *f = emulate_running;
    warp *w = &f->block->warps[f->linear / 32];
    const unsigned lane = f->linear % 32;
    if ((mask >> lane & 1u) == 0) {
        emulate_fail("a lane meets others under a mask, 0x%x, without itself", mask);
    }
    emulate_maybe_switch();
    if (what == EMULATE_SYNC) {
        emulate_release();
    }
    size_t at = 0;
    while (at < w->meetings.size() && w->meetings[at].mask != mask) {
        at++;
    }
    if (at == w->meetings.size()) {
        meeting m = {};
        m.mask = mask;
        m.what = what;
        w->meetings.push_back(m);
    }
    meeting *m = &w->meetings[at];
    if (m->what != what) {
        emulate_fail("lanes of a warp call different operations under the mask 0x%x", mask);
    }
    m->arrived |= 1u << lane;
    m->values[lane] = value;
    m->sources[lane] = source;
    if ((w->live & mask & ~m->arrived) == 0) {
        finish_meeting(w, at);
        if (failed) {
            emulate_fail("see above");
        }
        emulate_maybe_switch();
    } else {
        wait_as(FIBRE_AT_WARP);
    }
    return f->result;
}

void *emulate_shared(const void *key, size_t bytes)
{
    emulate_block *block = emulate_running->block;
    void *&memory = block->shared[key];
    if (memory == nullptr) {
        block->shared_static += bytes;
        if (block->shared_static > SHARED_STATIC_MAX ||
            block->shared_static + block->launch->shared_bytes > SHARED_MAX) {
            emulate_fail("%zu bytes of shared memory are declared, and %zu more asked for",
                         block->shared_static, block->launch->shared_bytes);
        }
        memory = emulate_alloc_shared(bytes, block);
    }
    return memory;
}

void *emulate_shared_dynamic(void)
{
    return emulate_running->block->shared_dynamic;
}

// The last thing that a fibre does.
static void end_fibre(void)
{
    struct fibre *f = emulate_running;
    emulate_block *block = f->block;
    warp *w = &block->warps[f->linear / 32];
    emulate_release();
    take_ready(f);
    f->state = FIBRE_ENDED;
    block->live--;
    w->live &= ~(1u << f->linear % 32);
    idle_spins = 0;
    for (size_t i = 0; i < w->meetings.size(); i++) {
        if ((w->live & w->meetings[i].mask & ~w->meetings[i].arrived) == 0) {
            finish_meeting(w, i--);
        }
    }
    barrier *b = &block->barriers[0];
    if (!b->waiting.empty() && b->arrived == block->live) {
        open_barrier(b);
    }
}

static void enter_fibre(void)
{
    for (;;) {
        emulate_show_stores(emulate_running);
        launch *l = emulate_running->block->launch;
        l->run(l->arguments.data());
        end_fibre();
        fibre_switch(emulate_running->context, scheduler);
    }
}

static struct fibre_context *take_stack(void)
{
    if (stacks.empty()) {
        return fibre_context_new(enter_fibre);
    }
    struct fibre_context *context = stacks.back();
    stacks.pop_back();
    return context;
}

static void start_block(launch *l)
{
    const unsigned number = l->waiting_blocks.back();
    l->waiting_blocks.pop_back();
    l->running_blocks++;
    std::unique_ptr<emulate_block> block(new emulate_block());
    const unsigned threads = l->block.x * l->block.y * l->block.z;
    block->launch = l;
    block->index =
        dim3(number % l->grid.x, number / l->grid.x % l->grid.y, number / l->grid.x / l->grid.y);
    block->live = threads;
    block->warps.resize((threads + 31) / 32);
    if (l->shared_bytes > 0) {
        block->shared_dynamic = emulate_alloc_shared(l->shared_bytes, block.get());
    }
    for (unsigned i = 0; i < threads; i++) {
        std::unique_ptr<fibre> f(new fibre());
        f->context = take_stack();
        f->block = block.get();
        f->linear = i;
        f->index = dim3(i % l->block.x, i / l->block.x % l->block.y, i / l->block.x / l->block.y);
        f->priority = (int64_t)emulate_random(1u << 20);
        block->warps[i / 32].live |= 1u << i % 32;
        block->warps[i / 32].lanes[i % 32] = f.get();
        make_ready(f.get());
        block->fibres.push_back(std::move(f));
    }
    blocks.push_back(std::move(block));
}

static void end_block(size_t at)
{
    emulate_block *block = blocks[at].get();
    block->launch->running_blocks--;
    for (auto &f : block->fibres) {
        if (f->state != FIBRE_ENDED) {
            fibre_context_reset(f->context);
        }
        stacks.push_back(f->context);
    }
    for (auto &shared : block->shared) {
        emulate_free(shared.second);
    }
    emulate_free(block->shared_dynamic);
    blocks[at] = std::move(blocks.back());
    blocks.pop_back();
}

// The next fibre: in turn, the most urgent, or any.
static struct fibre *choose(void)
{
    if (emulate_chosen.seed == 0) {
        return ready[turn++ % ready.size()];
    }
    if (!by_priority) {
        return ready[emulate_random(ready.size())];
    }
    struct fibre *best = ready.front();
    for (struct fibre *f : ready) {
        best = f->priority > best->priority ? f : best;
    }
    return best;
}

static void report_deadlock(void)
{
    for (auto &block : blocks) {
        for (auto &f : block->fibres) {
            if (f->state == FIBRE_AT_BARRIER || f->state == FIBRE_AT_WARP) {
                emulate_running = f.get();
                note("a deadlock: this thread waits at a %s for others that do not come",
                     f->state == FIBRE_AT_BARRIER ? "barrier" : "meeting of its warp");
                emulate_running = nullptr;
                return;
            }
        }
    }
}

// Until every block of the launches has ended, or a failure.
static void run_launches(const std::vector<launch *> &launches)
{
    if (scheduler == nullptr) {
        scheduler = fibre_context_own();
    }
    failed = false;
    idle_spins = 0;
    for (;;) {
        for (launch *l : launches) {
            while (!l->waiting_blocks.empty() && l->running_blocks < l->blocks_at_once) {
                start_block(l);
            }
        }
        if (blocks.empty()) {
            break;
        }
        if (ready.empty()) {
            report_deadlock();
        }
        if (failed) {
            break;
        }
        emulate_running = choose();
        struct fibre *ran = emulate_running;
        switches++;
        fibre_switch(scheduler, ran->context);
        emulate_running = nullptr;
        for (size_t i = 0; ran->state == FIBRE_ENDED && i < blocks.size(); i++) {
            if (blocks[i].get() == ran->block && ran->block->live == 0) {
                end_block(i);
                break;
            }
        }
    }
    while (!blocks.empty()) {
        end_block(blocks.size() - 1);
    }
    ready.clear();
}

static bool launch_is_valid(const launch *l)
{
    const unsigned threads = l->block.x * l->block.y * l->block.z;
    if (l->grid.x == 0 || l->grid.y == 0 || l->grid.z == 0 || threads == 0) {
        note("%s: a grid of (%u, %u, %u) blocks of %u threads is an invalid launch",
             l->name.c_str(), l->grid.x, l->grid.y, l->grid.z, threads);
        return false;
    }
    if (threads > THREADS_MAX || l->block.z > 64 || l->grid.x > INT32_MAX || l->grid.y > 65535 ||
        l->grid.z > 65535 || l->shared_bytes > SHARED_MAX) {
        note(
            "%s: (%u, %u, %u) blocks of %u threads with %zu bytes of shared memory are more than a "
            "device takes",
            l->name.c_str(), l->grid.x, l->grid.y, l->grid.z, threads, l->shared_bytes);
        return false;
    }
    return true;
}

void emulate_launch(struct emulate_stream *stream, const char *name, dim3 grid, dim3 block,
                    size_t shared_bytes, void (*run)(const void *arguments), const void *arguments,
                    size_t argument_bytes)
{
    std::unique_ptr<launch> l(new launch());
    l->name = name;
    l->grid = grid;
    l->block = block;
    l->shared_bytes = shared_bytes;
    l->run = run;
    l->arguments.assign((const char *)arguments, (const char *)arguments + argument_bytes);
    if (!launch_is_valid(l.get())) {
        return;
    }
    const unsigned given = emulate_chosen.blocks_at_once;
    l->blocks_at_once = given != 0 ? given : 1 + (unsigned)emulate_random(4);
    const unsigned count = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < count; i++) {
        l->waiting_blocks.push_back(count - 1 - i);
    }
    for (unsigned i = 0; emulate_chosen.seed != 0 && i + 1 < count; i++) {
        std::swap(l->waiting_blocks[i], l->waiting_blocks[i + emulate_random(count - i)]);
    }
    if (stream == nullptr) {
        run_launches({l.get()});
    } else {
        stream->launches.push_back(std::move(l));
    }
}

struct emulate_stream *emulate_stream_open(void)
{
    streams.push_back(new emulate_stream());
    return streams.back();
}

void emulate_stream_close(struct emulate_stream *stream)
{
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream) {
            streams.erase(streams.begin() + (ptrdiff_t)i);
            delete stream;
            return;
        }
    }
}

void emulate_run(void)
{
    for (;;) {
        std::vector<launch *> heads;
        for (emulate_stream *stream : streams) {
            if (!stream->launches.empty()) {
                heads.push_back(stream->launches.front().get());
            }
        }
        if (heads.empty()) {
            return;
        }
        run_launches(heads);
        for (emulate_stream *stream : streams) {
            if (!stream->launches.empty()) {
                stream->launches.pop_front();
            }
        }
    }
}
