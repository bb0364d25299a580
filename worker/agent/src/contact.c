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
#include "dp/rand.h"
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

// With a hash: a digit that was damaged would be another time.
static void write_line(const char *boot_id, int64_t heard_ns, char *ret_line)
{
    char words[LINE_BYTES];
    int used = snprintf(words, sizeof words, "dp.contact/2 %s %" PRId64, boot_id, heard_ns);
    memset(ret_line, ' ', LINE_BYTES);
    int end = snprintf(ret_line, LINE_BYTES, "%s %016" PRIx64, words,
                       dp_hash64(words, (uint64_t)used, 0));
    ret_line[end] = ' ';
    ret_line[LINE_BYTES - 1] = '\n';
}

// The monotonic clock goes on through the lives of agents, but starts anew with the machine.
static int64_t read_line(const struct contact *contact)
{
    char line[LINE_BYTES + 1] = "";
    char boot_id[sizeof contact->boot_id];
    int64_t heard_ns;
    ssize_t got = pread(contact->fd, line, LINE_BYTES, 0);
    char again[LINE_BYTES + 1] = "";
    if (got != LINE_BYTES || sscanf(line, "dp.contact/2 %63s %" SCNd64, boot_id, &heard_ns) != 2) {
        return INT64_MIN;
    }
    write_line(boot_id, heard_ns, again);
    if (memcmp(line, again, LINE_BYTES) != 0 || strcmp(boot_id, contact->boot_id) != 0 ||
        heard_ns > worker_now_ns()) {
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
    write_line(contact->boot_id, heard_ns, line);
    if (pwrite(contact->fd, line, sizeof line, 0) != sizeof line) {
        dp_log_warn("contact.not_noted", "reason=\"%s\"", strerror(errno));
    }
}

void contact_close(struct contact *contact)
{
    dp_cleanup_close(&contact->fd);
}
