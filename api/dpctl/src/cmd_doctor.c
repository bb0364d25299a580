// dpctl doctor and version: what on this machine would bite, before it does.

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <unistd.h>

#include "connect.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "local.h"

typedef enum verdict { GOOD, WORTH_KNOWING, BAD } verdict;

struct finding {
    verdict verdict;
    char text[512];
};

typedef void check_function(struct dpctl *ctl, struct finding *ret);

__attribute__((format(printf, 3, 4))) static void find(struct finding *finding, verdict kind,
                                                       const char *format, ...)
{
    finding->verdict = kind;
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
}

static void check_cores(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    find(ret, cores < 4 ? WORTH_KNOWING : GOOD, "%ld cores%s", cores,
         cores < 4 ? "; more CPU ranks than that share them, and steps take longer by so much"
                   : "");
}

// What else runs makes ranks slow, and calibration measure too little.
static void check_load(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    double load = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    getloadavg(&load, 1);
    bool busy = load > 0.5 * (double)cores;
    find(ret, busy ? WORTH_KNOWING : GOOD, "load average %.1f on %ld cores%s", load, cores,
         busy ? "; times suffer, and what was calibrated meanwhile misleads: `dpctl local up "
                "--recalibrate` when it is quiet"
              : "");
}

static void check_memory(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    char text[32];
    double bytes = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bool little = bytes < 1024.0 * 1024 * 1024;
    find(ret, little ? WORTH_KNOWING : GOOD, "%s of memory free%s", dpctl_bytes(text, bytes),
         little ? "; the tiny example needs about 1 GiB" : "");
}

static void check_disk(struct dpctl *ctl, struct finding *ret)
{
    struct dp_error err = {0};
    struct statvfs info;
    if (dp_make_directories(ctl->state_directory, &err) != DP_OK) {
        find(ret, BAD, "state directory: %s", err.message);
        return;
    }
    if (access(ctl->state_directory, W_OK | X_OK) != 0 ||
        statvfs(ctl->state_directory, &info) != 0) {
        find(ret, BAD, "state directory %s: %s", ctl->state_directory, strerror(errno));
        return;
    }
    char text[32];
    double bytes = (double)info.f_bavail * (double)info.f_frsize;
    bool little = bytes < 512.0 * 1024 * 1024;
    find(ret, little ? BAD : GOOD, "state directory %s: %s free%s", ctl->state_directory,
         dpctl_bytes(text, bytes), little ? "; checkpoints and logs need room" : "");
}

struct usage {
    double all, checkpoints;
};

// Adds what lies below a directory; all below one that is called "checkpoints" belongs to them.
static void add_usage(int parent, const char *name, bool in_checkpoint, int depth,
                      struct usage *usage)
{
    DP_AUTO_CLOSE int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 || depth == 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        return;
    }
    fd = -1; // closedir closes it
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        double bytes = (double)info.st_blocks * 512;
        usage->all += bytes;
        usage->checkpoints += in_checkpoint ? bytes : 0;
        if (S_ISDIR(info.st_mode)) {
            bool checkpoint = in_checkpoint || strcmp(entry->d_name, "checkpoints") == 0;
            add_usage(dirfd(directory), entry->d_name, checkpoint, depth - 1, usage);
        }
    }
    closedir(directory);
}

static void check_space(struct dpctl *ctl, struct finding *ret)
{
    enum { DEPTH_MAX = 16 };
    struct usage usage = {0};
    char all[32], checkpoints[32];
    add_usage(AT_FDCWD, ctl->state_directory, false, DEPTH_MAX, &usage);
    bool much = usage.all > 2.0 * 1024 * 1024 * 1024;
    find(ret, much ? WORTH_KNOWING : GOOD, "%s in it, %s of that checkpoints%s",
         dpctl_bytes(all, usage.all), dpctl_bytes(checkpoints, usage.checkpoints),
         much ? "; old ones may be deleted while no job resumes from them" : "");
}

static void check_loopback(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    DP_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 1) != 0) {
        find(ret, BAD, "cannot listen on 127.0.0.1: %s; is the loopback interface up?",
             strerror(errno));
        return;
    }
    find(ret, GOOD, "ports can be opened on 127.0.0.1");
}

static void check_shared_memory(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    DP_AUTO_CLOSE int fd = memfd_create("dp-doctor", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 1 << 20) != 0) {
        find(ret, BAD, "no anonymous shared memory: %s", strerror(errno));
        return;
    }
    find(ret, GOOD, "anonymous shared memory works");
}

static void check_descriptors(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    bool few = limit.rlim_cur < 1024;
    find(ret, few ? WORTH_KNOWING : GOOD, "%llu open files allowed%s",
         (unsigned long long)limit.rlim_cur, few ? "; raise it with `ulimit -n 4096`" : "");
}

static void check_proxy(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    const char *proxy = getenv("http_proxy");
    bool set = proxy != NULL && proxy[0] != '\0';
    find(ret, set ? WORTH_KNOWING : GOOD,
         set ? "http_proxy is set; dp ignores it for gRPC, other "
               "clients need no_proxy=127.0.0.1"
             : "no http_proxy in the way");
}

static void check_blas(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    const char *threads = getenv("OPENBLAS_NUM_THREADS");
    find(ret, GOOD, "ranks use one BLAS thread each%s%s",
         threads == NULL ? "" : "; OPENBLAS_NUM_THREADS is ", threads == NULL ? "" : threads);
}

static void check_clock(struct dpctl *ctl, struct finding *ret)
{
    (void)ctl;
    bool wrong = dp_clock_realtime_ns() < 1700000000ll * DP_NS_PER_S;
    char text[32];
    find(ret, wrong ? BAD : GOOD, "the clock reads %s%s",
         dp_clock_format_utc(text, dp_clock_realtime_ns()), wrong ? ", which is in the past" : "");
}

static void check_controller(struct dpctl *ctl, struct finding *ret)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    struct dp_error err = {0};
    dp_status status = connect_controller(ctl, &client, &err);
    if (status == DP_OK) {
        find(ret, GOOD, "controller %s answers, version %s", dp_client_address(client),
             dp_client_version(client)->version);
    } else {
        find(ret, ctl->controller == NULL ? WORTH_KNOWING : BAD, "controller: %s", err.message);
    }
}

static const struct {
    const char *name;
    check_function *check;
} checks[] = {
    {"cores", check_cores},
    {"load", check_load},
    {"memory", check_memory},
    {"state", check_disk},
    {"space", check_space},
    {"loopback", check_loopback},
    {"shared memory", check_shared_memory},
    {"open files", check_descriptors},
    {"proxy", check_proxy},
    {"blas", check_blas},
    {"clock", check_clock},
    {"controller", check_controller},
};

dp_status dpctl_cmd_doctor(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .doc = "Looks at what would bite: ports, memory, cores, versions, clocks.",
        .exits = "0 nothing is wrong, 1 something is",
        .handle = dpctl_handle_none,
    };
    dpctl_parse(ctl, &syntax, NULL, argc, argv);
    static const char *const marks[] = {"ok", "note", "WRONG"};
    json_t *rows = json_array();
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3};
    int wrong = 0;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(checks); i++) {
        struct finding finding = {0};
        checks[i].check(ctl, &finding);
        wrong += finding.verdict == BAD;
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s}", "check", checks[i].name, "verdict",
                                              marks[finding.verdict], "text", finding.text));
        dpctl_cell(&table, "%s", marks[finding.verdict]);
        dpctl_cell(&table, "%s", checks[i].name);
        dpctl_cell(&table, "%s", finding.text);
    }
    if (ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:o}", "checks", rows), "dp.doctor/1");
    } else {
        json_decref(rows);
        dpctl_table_print(&table);
    }
    return wrong == 0 ? DP_OK
                      : dp_fail(err, DP_INTERNAL, "%d of %zu checks found something wrong", wrong,
                                DP_ARRAY_LENGTH(checks));
}

dp_status dpctl_cmd_version(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .doc = "The version of dpctl, and of the controller when one answers.",
        .exits = "0 ok, 8 the controller that was named does not answer",
        .handle = dpctl_handle_none,
    };
    dpctl_parse(ctl, &syntax, NULL, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    struct dp_error ignored = {0};
    bool named = ctl->controller != NULL;
    dp_status status = connect_controller(ctl, &client, &ignored);
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:i, s:s}", "dpctl", DP_VERSION, "protocol",
                                   (int)DP_PROTOCOL_VERSION, "controller",
                                   status == DP_OK ? dp_client_version(client)->version : ""),
                         "dp.version/1");
    } else {
        printf("dpctl %s, protocol %u\n", DP_VERSION, DP_PROTOCOL_VERSION);
        if (status == DP_OK) {
            printf("controller %s at %s\n", dp_client_version(client)->version,
                   dp_client_address(client));
        }
    }
    if (status != DP_OK && named) {
        *err = ignored;
        return status;
    }
    return DP_OK;
}
