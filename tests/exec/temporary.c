#include "temporary.h"

#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp_test.h"

void temporary_make(char ret_path[TEMPORARY_MAX])
{
    snprintf(ret_path, TEMPORARY_MAX, "/tmp/dp-exec-test-XXXXXX");
    assert_non_null(mkdtemp(ret_path));
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *at)
{
    (void)status;
    (void)type;
    (void)at;
    return remove(path);
}

void temporary_remove(const char *path)
{
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}
