// Stacks of their own for functions that take turns.
#pragma once

struct fibre_context; // where a stack of instructions goes on

// A context that starts with entry() on a stack of its own; entry never returns.
struct fibre_context *fibre_context_new(void (*entry)(void));
// One for the caller's own stack.
struct fibre_context *fibre_context_own(void);
// The context starts over.
void fibre_context_reset(struct fibre_context *context);
void fibre_context_free(struct fibre_context *context);

// Goes on in `to`; returns when somebody switches back to `from`, the caller's.
void fibre_switch(struct fibre_context *from, struct fibre_context *to);

// Whether the bytes lie on the context's own stack.
bool fibre_on_stack(const struct fibre_context *context, const void *address, unsigned long bytes);
