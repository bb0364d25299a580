#include "dp/check.h"

#include <stdio.h>
#include <stdlib.h>

void dp_check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
    abort();
}
