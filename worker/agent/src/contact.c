#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "worker.h"

#define LINE_BYTES 128 // always written whole, over the line before

static void read_boot_id(char *ret_boot_id, size_t size)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file("/proc/sys/kernel/random/boot_id", 4096, &text, NULL) == DP_OK) {
        text.bytes[strcspn(text.bytes, "\n")] = '\0';
        (void)dp_copy_text(ret_boot_id, size, text.bytes);
    }
}

// The monotonic clock goes on through the lives of agents, but starts anew with the machine.
static int64_t read_line(const struct contact *contact)
{
    char line[LINE_BYTES + 1] = "";
    char boot_id[sizeof contact->boot_id];
    int64_t heard_ns;
    ssize_t got = pread(contact->fd, line, LINE_BYTES, 0);
    if (got != LINE_BYTES || sscanf(line, "dp.contact/1 %63s %" SCNd64, boot_id, &heard_ns) != 2 ||
        strcmp(boot_id, contact->boot_id) != 0 || heard_ns > worker_now_ns()) {
        return INT64_MIN;
    }
    return heard_ns;
}

dp_status contact_open(const char *state_dir, struct contact *contact, int64_t *ret_heard_ns,
                       struct dp_error *err)
{
    *contact = (struct contact){.fd = -1};
    read_boot_id(contact->boot_id, sizeof contact->boot_id);
    DP_AUTO_FREE char *path = dp_asprintf("%s/contact", state_dir);
    contact->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (contact->fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    *ret_heard_ns = read_line(contact);
    return DP_OK;
}

// Not synced: when the machine goes down the ranks do, too.
void contact_note(struct contact *contact, int64_t heard_ns)
{
    char line[LINE_BYTES];
    memset(line, ' ', sizeof line);
    int used = snprintf(line, sizeof line, "dp.contact/1 %s %" PRId64, contact->boot_id, heard_ns);
    line[used] = ' ';
    line[sizeof line - 1] = '\n';
    if (pwrite(contact->fd, line, sizeof line, 0) != sizeof line) {
        dp_log_warn("contact.not_noted", "reason=\"%s\"", strerror(errno));
    }
}

void contact_close(struct contact *contact)
{
    dp_cleanup_close(&contact->fd);
}
