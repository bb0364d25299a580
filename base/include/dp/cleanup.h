// Owned locals release themselves when they leave scope, on every path.
//
//   DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
//   DP_AUTO_FREE char *text = dp_strdup("x");
//   *ret_text = dp_steal(text);          // hand over: text is NULL now
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DP_CLEANUP(function) __attribute__((cleanup(function)))

// Takes the value out of an owned pointer and leaves NULL behind.
#define dp_steal(pointer)                                                                          \
    __extension__({                                                                                \
        __typeof__(pointer) dp_stolen_ = (pointer);                                                \
        (pointer) = NULL;                                                                          \
        dp_stolen_;                                                                                \
    })

// Defines `name_cleanup(type **)`, which calls free_function when the pointer is not NULL.
#define DP_DEFINE_CLEANUP(name, type, free_function)                                               \
    static inline void name(type **pointer)                                                        \
    {                                                                                              \
        if (*pointer != NULL) {                                                                    \
            free_function(*pointer);                                                               \
        }                                                                                          \
    }

static inline void dp_cleanup_free(void *pointer)
{
    free(*(void **)pointer);
}

static inline void dp_cleanup_close(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
}

static inline void dp_cleanup_fclose(FILE **file)
{
    if (*file != NULL) {
        fclose(*file);
    }
}

#define DP_AUTO_FREE DP_CLEANUP(dp_cleanup_free)
#define DP_AUTO_CLOSE DP_CLEANUP(dp_cleanup_close)
#define DP_AUTO_FCLOSE DP_CLEANUP(dp_cleanup_fclose)

// Takes a file descriptor out of an owning int and leaves -1 behind.
static inline int dp_steal_fd(int *fd)
{
    int stolen = *fd;
    *fd = -1;
    return stolen;
}
