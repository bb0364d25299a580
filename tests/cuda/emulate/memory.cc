// The arena that device and shared memory come from, what a kernel's thread may touch, and stores
// that are held back.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#include "internal.h"

static const size_t ARENA_BYTES = (size_t)1 << 36, ALIGN = 256, HELD_MAX = 24;
// Larger pieces stay as the system gives them, zeros, and cost nothing until they are touched.
static const size_t FILLED_MAX = (size_t)1 << 26;

struct piece {
    size_t bytes;
    const emulate_block *owner; // of shared memory; NULL = anybody
};

static unsigned char *arena;
static size_t arena_used;
static std::map<uintptr_t, piece> pieces; // by address

static void *take(size_t bytes, const emulate_block *owner)
{
    if (arena == nullptr) {
        void *memory = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            return nullptr;
        }
        arena = (unsigned char *)memory;
    }
    if (pieces.empty()) {
        arena_used = ALIGN;
    }
    if (bytes > ARENA_BYTES || arena_used > ARENA_BYTES - bytes - 2 * ALIGN) {
        return nullptr;
    }
    unsigned char *memory = arena + arena_used;
    arena_used += (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN; // at least a byte of gap
    pieces[(uintptr_t)memory] = {bytes, owner};
    if (bytes <= FILLED_MAX) {
        memset(memory, 0xff, bytes);
    }
    return memory;
}

void *emulate_alloc(size_t bytes)
{
    return take(bytes, nullptr);
}

void *emulate_alloc_shared(size_t bytes, const emulate_block *owner)
{
    void *memory = take(bytes, owner);
    if (memory == nullptr) {
        emulate_fail("the emulator's arena is full");
    }
    return memory;
}

void emulate_free(void *memory)
{
    if (memory == nullptr) {
        return;
    }
    const auto at = pieces.find((uintptr_t)memory);
    if (at == pieces.end()) {
        fprintf(stderr, "emulate_free of memory that is not allocated\n");
        abort();
    }
    if (at->second.bytes > FILLED_MAX) {
        madvise(memory, at->second.bytes, MADV_DONTNEED);
    }
    pieces.erase(at);
}

static bool in_arena(const void *address)
{
    return arena != nullptr && (uintptr_t)address - (uintptr_t)arena < ARENA_BYTES;
}

// The program's own code and constants, as __constant__ memory would be.
static bool in_image(const void *address)
{
    extern char start __asm__("__executable_start"), end __asm__("_end");
    return (uintptr_t)address >= (uintptr_t)&start && (uintptr_t)address < (uintptr_t)&end;
}

static void check(const void *address, size_t bytes, const char *what)
{
    const uintptr_t begin = (uintptr_t)address;
    if (!in_arena(address)) {
        if (fibre_on_stack(emulate_running->context, address, bytes) || in_image(address)) {
            return;
        }
        emulate_fail("%s of %zu bytes of memory that is not the device's", what, bytes);
    }
    auto at = pieces.upper_bound(begin);
    if (at == pieces.begin()) {
        emulate_fail("%s of %zu bytes before all memory that was given out", what, bytes);
    }
    --at;
    const size_t offset = begin - at->first;
    if (offset > at->second.bytes || bytes > at->second.bytes - offset) {
        emulate_fail("%s of %zu bytes at offset %zu of %zu bytes of %s memory", what, bytes, offset,
                     at->second.bytes, at->second.owner != nullptr ? "shared" : "device");
    }
    if (at->second.owner != nullptr && at->second.owner != emulate_running->block) {
        emulate_fail("%s of another block's shared memory", what);
    }
    if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && begin % bytes != 0) {
        emulate_fail("%s of %zu bytes at an address that is no multiple of them", what, bytes);
    }
}

static void swap_bytes(held_store *store)
{
    unsigned char now[sizeof(store->other)];
    memcpy(now, store->address, store->bytes);
    memcpy(store->address, store->other, store->bytes);
    memcpy(store->other, now, store->bytes);
}

// Some of the stores arrive now, whichever: they do not overlap.
void emulate_hide_stores(struct fibre *fibre)
{
    std::vector<held_store> &held = fibre->held;
    if (held.empty()) {
        return;
    }
    const bool some = emulate_random(2) == 0;
    held.erase(
        std::remove_if(held.begin(), held.end(),
                       [some](const held_store &) { return some && emulate_random(4) == 0; }),
        held.end());
    for (held_store &store : held) {
        swap_bytes(&store);
    }
}

void emulate_show_stores(struct fibre *fibre)
{
    for (held_store &store : fibre->held) {
        swap_bytes(&store);
    }
}

static bool overlap(const held_store &store, const unsigned char *address, size_t bytes)
{
    return address < store.address + store.bytes && store.address < address + bytes;
}

// The fibre is about to store: what is there now is kept for the others.
static void hold(unsigned char *address, size_t bytes)
{
    std::vector<held_store> &held = emulate_running->held;
    for (size_t i = 0; i < held.size(); i++) {
        if (held[i].address == address && held[i].bytes == bytes) {
            return;
        }
        if (overlap(held[i], address, bytes)) {
            held.erase(held.begin() + (ptrdiff_t)i--);
        }
    }
    if (bytes > sizeof(held[0].other)) {
        return;
    }
    if (held.size() == HELD_MAX) {
        held.erase(held.begin() + (ptrdiff_t)emulate_random(HELD_MAX));
    }
    held_store store = {address, bytes, {0}};
    memcpy(store.other, address, bytes);
    held.push_back(store);
}

void emulate_release(void)
{
    if (emulate_running != nullptr) {
        emulate_running->held.clear();
    }
}

void emulate_atomic(void *address, size_t bytes, bool writes)
{
    if (emulate_running == nullptr) {
        return;
    }
    emulate_maybe_switch();
    check(address, bytes, "an atomic access");
    std::vector<held_store> &held = emulate_running->held;
    held.erase(std::remove_if(held.begin(), held.end(),
                              [=](const held_store &store) {
                                  return overlap(store, (unsigned char *)address, bytes);
                              }),
               held.end());
    if (writes) {
        emulate_progress();
    }
}

static void load(void *address, size_t bytes)
{
    if (emulate_running != nullptr) {
        check(address, bytes, "a load");
        if (in_arena(address)) {
            emulate_maybe_switch();
            emulate_progress();
        }
    }
}

static void store(void *address, size_t bytes)
{
    if (emulate_running == nullptr) {
        return;
    }
    check(address, bytes, "a store");
    if (!in_arena(address)) {
        return;
    }
    emulate_maybe_switch();
    emulate_progress();
    if (emulate_chosen.weak_stores) {
        hold((unsigned char *)address, bytes);
    }
}

// What the compiler calls before each access.
#define HOOKS(bytes)                                                                               \
    extern "C" void __tsan_read##bytes(void *address);                                             \
    extern "C" void __tsan_read##bytes(void *address)                                              \
    {                                                                                              \
        load(address, bytes);                                                                      \
    }                                                                                              \
    extern "C" void __tsan_write##bytes(void *address);                                            \
    extern "C" void __tsan_write##bytes(void *address)                                             \
    {                                                                                              \
        store(address, bytes);                                                                     \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" {
void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_read_range(void *address, unsigned long bytes)
{
    load(address, bytes);
}

void __tsan_write_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes)
{
    store(address, bytes);
}
}
