// Assertions that stay on in release builds: a broken invariant stops the process with a message.
#pragma once

#define DP_CHECK(condition)                                                                        \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            dp_check_failed(#condition, __FILE__, __LINE__);                                       \
        }                                                                                          \
    } while (0)

#define DP_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

__attribute__((noreturn)) void dp_check_failed(const char *condition, const char *file, int line);
