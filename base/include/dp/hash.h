// Hash maps over structs that carry a handle: uthash's macros (HASH_ADD, HASH_FIND, HASH_DELETE,
// HASH_ITER), with this tree's allocation. A map is a pointer that starts as NULL; the order of an
// iteration is that of insertion.
#pragma once

#include <stdlib.h>

#include "dp/alloc.h"

#define uthash_malloc(size) dp_alloc(1, (size))
#define uthash_fatal(message) abort()

#include <uthash.h>
