// Files that an agent finds when it starts, damaged at every place: whatever they hold, it starts,
// puts aside what it cannot use, and says so. The agent's own readers, with the rest of it
// replaced.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/sealed.h"
#include "dp/wire.h"
#include "dp_test.h"
#include "harness.h"
#include "worker.h"

static struct {
    size_t found, ranks, notes, spawned, exited;
    int64_t pid;
    int32_t status;
} seen;

void worker_event(struct worker *worker, struct dp_agent_event *event)
{
    (void)worker;
    switch (event->type) {
    case DP_AGENT_FOUND:
        seen.found++;
        seen.ranks += event->numbers_count;
        break;
    case DP_AGENT_SPAWNED:
        seen.spawned++;
        break;
    case DP_AGENT_EXITED:
        seen.exited++;
        seen.pid = event->pid;
        seen.status = event->status;
        break;
    default:
        break;
    }
}

void worker_note(struct worker *worker, const char *text)
{
    (void)worker;
    assert_non_null(strstr(text, ".corrupt"));
    seen.notes++;
}

void keeper_adopt(struct worker *worker, const struct dp_agent_fence *fence, struct dp_buf *prepare)
{
    (void)worker;
    (void)fence;
    dp_buf_deinit(prepare);
}

int64_t worker_now_ns(void)
{
    return INT64_C(1) << 40;
}

dp_status keeper_send(struct keeper_conn *conn, const struct dp_link_frame *frame,
                      struct dp_error *err)
{
    (void)conn;
    (void)frame;
    (void)err;
    return DP_OK;
}

struct dp_agent_fence orders_fence(const Dp__V1__Fence *fence)
{
    struct dp_agent_fence known = {.attempt = fence->attempt, .epoch = fence->epoch};
    (void)DP_COPY_TEXT(known.job, fence->job);
    return known;
}

struct scene {
    char *state_dir;
    struct worker worker;
    struct dp_agent_fence fence;
};

static void scene_open(struct scene *scene)
{
    *scene = (struct scene){.state_dir = harness_directory(),
                            .fence = {.job = "job-1", .attempt = 1, .epoch = 1}};
    scene->worker.options.state_dir = scene->state_dir;
}

static void scene_close(struct scene *scene)
{
    harness_remove(scene->state_dir);
    free(scene->state_dir);
}

// The file as it was but for one change: `at` and on: a bit flipped; as many more: cut there.
static void damage(const char *path, const struct dp_buf *whole, size_t at)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf copy = {0};
    dp_buf_append(&copy, whole->bytes, whole->length);
    size_t length = at < whole->length ? whole->length : at - whole->length;
    if (at < whole->length) {
        copy.bytes[at] = (char)(copy.bytes[at] ^ (1 << (at % 8)));
    }
    assert_ok(dp_write_file(path, copy.bytes, length, &err), &err);
}

static void expect_put_aside(const char *path)
{
    DP_AUTO_FREE char *aside = dp_asprintf("%s.corrupt", path);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(unlink(aside), 0);
}

// The smallest plan that is one: a layer for one rank.
static void pack_prepare(struct dp_buf *buf)
{
    Dp__V1__Fence fence = DP__V1__FENCE__INIT;
    Dp__V1__RankPlan rank = DP__V1__RANK_PLAN__INIT;
    Dp__V1__RankPlan *ranks[] = {&rank};
    Dp__V1__Plan plan = DP__V1__PLAN__INIT;
    Dp__V1__Prepare prepare = DP__V1__PREPARE__INIT;
    uint32_t numbers[] = {0}, layers[] = {0, 1};
    fence.job = (char *)"job-1";
    fence.attempt = fence.epoch = 1;
    rank.node = (char *)"node-a";
    plan.pipeline = plan.expert = plan.data = plan.microbatches = plan.micro_batch_size = 1;
    plan.stages = plan.virtual_stages = 1;
    plan.schedule = (char *)"gpipe";
    plan.ranks = ranks;
    plan.n_ranks = 1;
    plan.layer_begin = layers;
    plan.n_layer_begin = 2;
    prepare.fence = &fence;
    prepare.plan = &plan;
    prepare.ranks = numbers;
    prepare.n_ranks = 1;
    dp_wire_pack(&prepare.base, buf);
}

static void an_assignment_file_damaged_at_any_place_costs_no_rank(void **state)
{
    (void)state;
    struct scene scene;
    struct dp_error err = {0};
    scene_open(&scene);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf prepare = {0}, whole = {0};
    pack_prepare(&prepare);
    DP_AUTO_FREE char *directory = directory_of(scene.state_dir, &scene.fence);
    DP_AUTO_FREE char *path = dp_asprintf("%s/assignment", directory);
    assert_ok(directory_make(directory, prepare.bytes, prepare.length, &err), &err);
    memset(&seen, 0, sizeof seen);
    directory_scan(&scene.worker);
    assert_int_equal(seen.found, 1);
    assert_int_equal(seen.ranks, 1);
    assert_int_equal(seen.notes, 0);
    assert_ok(dp_read_file(path, 1 << 20, &whole, &err), &err);
    for (size_t at = 0; at < 2 * whole.length; at++) {
        damage(path, &whole, at);
        memset(&seen, 0, sizeof seen);
        directory_scan(&scene.worker);
        // It is there, and its keeper will say of which ranks.
        assert_int_equal(seen.found, 1);
        assert_int_equal(seen.ranks, 0);
        assert_int_equal(seen.notes, 1);
        expect_put_aside(path);
    }
    scene_close(&scene);
}

static void write_levels(struct dp_buf *buf)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf spawned = {0}, exited = {0};
    dp_link_spawned_write(&(struct dp_link_spawned){.pid = 77, .started = true}, &spawned);
    dp_link_exited_write(&(struct dp_link_exited){.pid = 77, .status = 3}, &exited);
    dp_link_frame_write(&(struct dp_link_frame){.type = DP_LINK_SPAWNED,
                                                .payload = spawned.bytes,
                                                .length = spawned.length},
                        buf);
    dp_link_frame_write(&(struct dp_link_frame){.type = DP_LINK_EXITED,
                                                .payload = exited.bytes,
                                                .length = exited.length},
                        buf);
}

static void levels_damaged_at_any_place_are_put_aside_and_never_taken_for_others(void **state)
{
    (void)state;
    struct scene scene;
    struct dp_error err = {0};
    scene_open(&scene);
    struct keeper_conn conn = {
        .worker = &scene.worker, .fence = scene.fence, .directory = scene.state_dir};
    DP_AUTO_FREE char *path = dp_asprintf("%s/" DP_LINK_LEVELS_FILE, scene.state_dir);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf levels = {0}, whole = {0};
    write_levels(&levels);
    assert_ok(dp_sealed_write(path, DP_LINK_LEVELS_KIND, levels.bytes, levels.length, &err), &err);
    assert_ok(dp_read_file(path, 1 << 20, &whole, &err), &err);
    // As it is, and as the version before wrote it.
    for (int form = 0; form < 2; form++) {
        const struct dp_buf *file = form == 0 ? &whole : &levels;
        assert_ok(dp_write_file(path, file->bytes, file->length, &err), &err);
        memset(&seen, 0, sizeof seen);
        keeper_replay_file(&conn);
        assert_int_equal(seen.spawned, 1);
        assert_int_equal(seen.pid, 77);
        assert_int_equal(seen.status, 3);
        assert_int_equal(seen.notes, 0);
    }
    for (size_t at = 0; at < 2 * whole.length; at++) {
        damage(path, &whole, at);
        memset(&seen, 0, sizeof seen);
        keeper_replay_file(&conn);
        assert_int_equal(seen.spawned + seen.exited, 0);
        assert_int_equal(seen.notes, 1);
        expect_put_aside(path);
    }
    scene_close(&scene);
}

// Whoever opens a pipe waits for who writes into it.
static void what_is_no_file_is_put_aside_and_not_waited_at(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    DP_AUTO_FREE char *directory = directory_of(scene.state_dir, &scene.fence);
    DP_AUTO_FREE char *levels = dp_asprintf("%s/" DP_LINK_LEVELS_FILE, directory);
    DP_AUTO_FREE char *assignment = dp_asprintf("%s/assignment", directory);
    struct keeper_conn conn = {
        .worker = &scene.worker, .fence = scene.fence, .directory = directory};
    struct dp_error err = {0};
    assert_ok(dp_make_directories(directory, &err), &err);
    for (int form = 0; form < 2; form++) {
        const char *const paths[] = {levels, assignment};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(paths); i++) {
            int made = form == 0 ? mkfifo(paths[i], 0600) : symlink(paths[i], paths[i]);
            assert_int_equal(made, 0);
        }
        memset(&seen, 0, sizeof seen);
        keeper_replay_file(&conn);
        directory_scan(&scene.worker);
        assert_int_equal(seen.spawned + seen.exited, 0);
        assert_int_equal(seen.found, 1);
        assert_int_equal(seen.notes, 2);
        expect_put_aside(levels);
        expect_put_aside(assignment);
    }
    scene_close(&scene);
}

static void a_time_of_contact_that_was_damaged_is_not_known(void **state)
{
    (void)state;
    struct scene scene;
    struct dp_error err = {0};
    struct contact contact;
    int64_t heard_ns = 0;
    scene_open(&scene);
    DP_AUTO_FREE char *path = dp_asprintf("%s/contact", scene.state_dir);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf whole = {0};
    assert_ok(contact_open(scene.state_dir, &contact, &heard_ns, &err), &err);
    assert_true(heard_ns == INT64_MIN);
    contact_note(&contact, 123456789);
    contact_close(&contact);
    assert_ok(dp_read_file(path, 1 << 20, &whole, &err), &err);
    assert_ok(contact_open(scene.state_dir, &contact, &heard_ns, &err), &err);
    assert_int_equal(heard_ns, 123456789);
    contact_close(&contact);
    for (size_t at = 0; at < 2 * whole.length; at++) {
        damage(path, &whole, at);
        assert_ok(contact_open(scene.state_dir, &contact, &heard_ns, &err), &err);
        assert_true(heard_ns == INT64_MIN);
        contact_close(&contact);
    }
    scene_close(&scene);
}

// An agent that cannot look, as one without descriptors, must not take the keeper for dead.
static void a_keeper_is_gone_only_when_nothing_is_locked(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    DP_AUTO_FREE char *missing = dp_asprintf("%s/missing", scene.state_dir);
    assert_false(directory_has_keeper(missing));
    assert_false(directory_has_keeper(scene.state_dir));
    DP_AUTO_CLOSE int fd = open(scene.state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_true(directory_has_keeper(scene.state_dir));
    assert_int_equal(flock(fd, LOCK_UN), 0);
    assert_false(directory_has_keeper(scene.state_dir));
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool lives = directory_has_keeper(scene.state_dir);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(lives);
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_assignment_file_damaged_at_any_place_costs_no_rank),
        cmocka_unit_test(levels_damaged_at_any_place_are_put_aside_and_never_taken_for_others),
        cmocka_unit_test(what_is_no_file_is_put_aside_and_not_waited_at),
        cmocka_unit_test(a_keeper_is_gone_only_when_nothing_is_locked),
        cmocka_unit_test(a_time_of_contact_that_was_damaged_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
