// On x86-64 a switch is eight moves; elsewhere it is ucontext's, which also asks the kernel for the
// signal mask and takes thirty times as long.
#include "fibre.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__) && !defined(EMULATE_UCONTEXT)
#define OWN_SWITCH 1
#endif

static const size_t STACK_BYTES = 128 * 1024;

struct fibre_context {
    void *stack; // the lowest page stays empty; NULL = the caller's own stack
    void (*entry)(void);
#ifdef OWN_SWITCH
    void *top;
#else
    ucontext_t context;
#endif
};

#ifdef OWN_SWITCH
// Saves what a function has to keep on the stack that it leaves.
extern "C" void emulate_switch_stack(void **from_top, void *to_top);
__asm__(".text\n"
        ".globl emulate_switch_stack\n"
        ".type emulate_switch_stack, @function\n"
        "emulate_switch_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulate_switch_stack, . - emulate_switch_stack\n");
#endif

void fibre_context_reset(struct fibre_context *context)
{
#ifdef OWN_SWITCH
    uintptr_t *top = (uintptr_t *)((char *)context->stack + STACK_BYTES);
    *--top = 0; // where entry would return to, and the alignment that a call leaves
    *--top = (uintptr_t)context->entry;
    for (int i = 0; i < 6; i++) {
        *--top = 0;
    }
    context->top = top;
#else
    getcontext(&context->context);
    context->context.uc_stack.ss_sp = context->stack;
    context->context.uc_stack.ss_size = STACK_BYTES;
    context->context.uc_link = nullptr;
    makecontext(&context->context, context->entry, 0);
#endif
}

struct fibre_context *fibre_context_own(void)
{
    return (struct fibre_context *)calloc(1, sizeof(struct fibre_context));
}

struct fibre_context *fibre_context_new(void (*entry)(void))
{
    struct fibre_context *context = fibre_context_own();
    context->stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (context->stack == MAP_FAILED ||
        mprotect(context->stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE) != 0) {
        perror("a fibre's stack");
        abort();
    }
    context->entry = entry;
    fibre_context_reset(context);
    return context;
}

void fibre_context_free(struct fibre_context *context)
{
    if (context->stack != nullptr) {
        munmap(context->stack, STACK_BYTES);
    }
    free(context);
}

void fibre_switch(struct fibre_context *from, struct fibre_context *to)
{
#ifdef OWN_SWITCH
    emulate_switch_stack(&from->top, to->top);
#else
    swapcontext(&from->context, &to->context);
#endif
}

bool fibre_on_stack(const struct fibre_context *context, const void *address, unsigned long bytes)
{
    const uintptr_t stack = (uintptr_t)context->stack, at = (uintptr_t)address;
    return at >= stack && at - stack <= STACK_BYTES - bytes;
}
