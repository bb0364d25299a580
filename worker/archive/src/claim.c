// Which run a directory of checkpoints belongs to: a lock that ends with the process that has it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "archive_internal.h"
#include "dp/alloc.h"

#define CLAIM_FILE ".lock" // stays, with nothing that anybody needs in it
#define HOLDER_MAX 128

void dp_archive_unclaim(struct dp_archive_claim *claim)
{
    if (claim->directory != NULL) {
        close(claim->fd);
        free(claim->directory);
        *claim = (struct dp_archive_claim){0};
    }
}

// For people alone: what they have to look at.
static void sign(int fd)
{
    char host[64] = "", text[HOLDER_MAX];
    (void)gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text, "process %ld on %s", (long)getpid(), host);
    ssize_t ignored = ftruncate(fd, 0) == 0 ? pwrite(fd, text, (size_t)length, 0) : 0;
    (void)ignored;
}

static dp_status fail_claimed(int fd, const char *directory, struct dp_error *err)
{
    char holder[HOLDER_MAX] = "";
    ssize_t got = pread(fd, holder, sizeof holder - 1, 0);
    for (ssize_t i = 0; i < got; i++) {
        holder[i] = (unsigned char)holder[i] < ' ' ? '?' : holder[i];
    }
    return dp_fail(err, DP_CONFLICT,
                   "another run writes its checkpoints to %s (%s): give each job a [checkpoint] "
                   "directory of its own",
                   directory, got > 0 ? holder : "it does not say which");
}

dp_status dp_archive_claim(struct dp_archive_claim *claim, const char *directory,
                           struct dp_error *err)
{
    if (claim->directory != NULL && strcmp(claim->directory, directory) == 0) {
        return DP_OK;
    }
    dp_archive_unclaim(claim);
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/" CLAIM_FILE, directory);
    DP_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    // A file system without locks leaves it to its users that there is one job to a directory.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return fail_claimed(fd, directory, err);
    }
    sign(fd);
    *claim = (struct dp_archive_claim){.directory = dp_strdup(directory), .fd = dp_steal_fd(&fd)};
    return DP_OK;
}
