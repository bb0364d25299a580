#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/checkpoint.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "layout.h"

DP_DEFINE_CLEANUP(cleanup_optim, struct dp_optim, dp_optim_free)
#define AUTO_OPTIM DP_CLEANUP(cleanup_optim)
DP_DEFINE_CLEANUP(cleanup_saver, struct dp_saver, dp_saver_free)
#define AUTO_SAVER DP_CLEANUP(cleanup_saver)
#define AUTO_ARCHIVE DP_CLEANUP(dp_archive_close)

static char root[32];

static int make_root(void **state)
{
    (void)state;
    DP_COPY_TEXT(root, "/tmp/dp-test-checkpoint-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static void remove_tree(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        unlink(path);
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            DP_AUTO_FREE char *inside = dp_asprintf("%s/%s", path, entry->d_name);
            remove_tree(inside);
        }
    }
    closedir(directory);
    rmdir(path);
}

static int remove_root(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

// Without the sync of dp_write_file, of which there would be thousands.
static void put_file(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static int count_entries(const char *path)
{
    DIR *directory = opendir(path);
    assert_non_null(directory);
    int count = -2;
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

struct job {
    struct layout layout;
    int64_t step;
    uint64_t salt; // of the values that are saved or expected
    const char *directory;
    const char *bad_directory; // where rank 1 writes to, when not NULL
    dp_status wanted;
};

// Weight, first and second moment of an element.
static double state_value(const char *name, int64_t element, int part, uint64_t salt)
{
    double value = layout_value(name, element, salt * 3 + (uint64_t)part);
    return part == 2 ? fabs(value) : value;
}

static void buffers_of(const struct held *held, int32_t i, void **ret_parts)
{
    ret_parts[0] = dp_stage_weights(held->stages[i].stage);
    ret_parts[1] = held->m[i];
    ret_parts[2] = held->v[i];
}

static void set_state(const struct held *held, uint64_t salt)
{
    for (int32_t i = 0; i < held->count; i++) {
        void *parts[3];
        buffers_of(held, i, parts);
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stages[i].stage, &count);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < 3 * tensors[t].count; k++) {
                int64_t element = k / 3;
                element_set(held->device, parts[k % 3], tensors[t].offset + element,
                            state_value(tensors[t].name, element, (int)(k % 3), salt));
            }
        }
    }
}

// Values were rounded to float at one end at least when either end is float.
static bool is_state(const struct held *held, uint64_t salt, bool is_rounded)
{
    for (int32_t i = 0; i < held->count; i++) {
        void *parts[3];
        buffers_of(held, i, parts);
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stages[i].stage, &count);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < 3 * tensors[t].count; k++) {
                double wanted = state_value(tensors[t].name, k / 3, (int)(k % 3), salt);
                wanted = is_rounded ? (double)(float)wanted : wanted;
                if (element_get(held->device, parts[k % 3], tensors[t].offset + k / 3) != wanted) {
                    return false;
                }
            }
        }
    }
    return true;
}

static dp_status open_state(struct dp_transport *transport, const struct layout *layout,
                            struct held *held, struct dp_optim **ret_optim, struct dp_error *err)
{
    static const struct dp_optimizer_spec spec = {.lr = 1, .beta1 = 0.9, .beta2 = 0.9};
    struct dp_optim_world world = {transport, layout->pipeline, layout->data, layout->expert,
                                   DP_SHARD_NONE};
    dp_status status = layout_hold(layout, dp_transport_rank(transport), held, err);
    if (status == DP_OK) {
        status = layout_make_moments(held, err);
    }
    return status == DP_OK
               ? dp_optim_new(&world, &spec, 1, held->stages, held->count, 1, ret_optim, err)
               : status;
}

// What the rank writes: whole moments where it stands for the tensors.
static void state_of(const struct held *held, struct dp_optim *optim,
                     struct dp_checkpoint_stage *stages, struct dp_checkpoint_run *runs,
                     struct dp_checkpoint_state *ret_state)
{
    ret_state->stages = stages;
    ret_state->runs = runs;
    ret_state->stage_count = held->count;
    ret_state->run_count = 0;
    for (int32_t i = 0; i < held->count; i++) {
        struct dp_checkpoint_stage *entry = &stages[i];
        entry->stage = held->stages[i].stage;
        dp_optim_owns(optim, i, &entry->writes_shared, &entry->writes_experts);
        int64_t middle = dp_stage_expert_offset(entry->stage);
        int64_t count = dp_stage_parameter_count(entry->stage);
        size_t width = dp_element_bytes(held->device->element);
        if (entry->writes_shared) {
            runs[ret_state->run_count++] =
                (struct dp_checkpoint_run){i, 0, middle, held->m[i], held->v[i], false};
        }
        if (entry->writes_experts) {
            size_t skip = (size_t)middle * width;
            runs[ret_state->run_count++] = (struct dp_checkpoint_run){
                i, middle, count, (char *)held->m[i] + skip, (char *)held->v[i] + skip, false};
        }
    }
}

// All ranks as the trainer takes them through the phases, with the waits of a barrier.
static dp_status save_together(struct dp_group *group, struct dp_saver *saver,
                               const struct job *job, const char *directory,
                               const struct dp_checkpoint_state *state, struct dp_error *err)
{
    DP_AUTO_FREE char *partial =
        dp_asprintf("%s/step-%lld.partial", directory, (long long)job->step);
    dp_status status = group->ranks[group->self] == 0 ? dp_archive_prepare(partial, err) : DP_OK;
    status = dp_group_agree(group, 1, status, err);
    if (status == DP_OK) {
        status = dp_saver_begin(saver, directory, state, err);
        dp_saver_settle(saver);
    }
    for (int phase = 0; phase < 2 && status == DP_OK; phase++) {
        if (dp_saver_wait(saver, 0) == DP_SAVER_FAILED) {
            status =
                dp_fail(err, dp_saver_error(saver)->status, "%s", dp_saver_error(saver)->message);
        }
        status = dp_group_agree(group, 2, status, err);
        if (status == DP_OK && phase == 0 && group->ranks[group->self] == 0) {
            dp_saver_seal(saver, 0);
        }
    }
    dp_saver_drop(saver, group->ranks[group->self] == 0);
    return status;
}

static dp_status save_rank(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct job *job = context;
    int32_t rank = dp_transport_rank(transport), world = dp_transport_world(transport);
    DP_CLEANUP(held_deinit) struct held held;
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_state(transport, &job->layout, &held, &optim, err));
    set_state(&held, job->salt);
    AUTO_SAVER struct dp_saver *saver = NULL;
    EXPECT_OK(dp_saver_new(held.device, rank, &saver, err));
    int32_t ranks[16];
    for (int32_t i = 0; i < world; i++) {
        ranks[i] = i;
    }
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(dp_group_init(&group, transport, 0, ranks, world, err));
    struct dp_archive_meta meta = {.model = layout_model(),
                                   .seed = 0xfedcba9876543210u,
                                   .step = job->step,
                                   .next_sample = job->step * 8,
                                   .corpus_hash = UINT64_MAX};
    struct dp_checkpoint_stage stages[2];
    struct dp_checkpoint_run runs[4];
    struct dp_checkpoint_state state = {.meta = &meta};
    state_of(&held, optim, stages, runs, &state);
    bool is_bad = rank == 1 && job->bad_directory != NULL;
    struct dp_error got = {0};
    dp_status status = save_together(&group, saver, job,
                                     is_bad ? job->bad_directory : job->directory, &state, &got);
    if (job->wanted == DP_OK && status != DP_OK) {
        return dp_fail(err, status, "%s", got.message);
    }
    EXPECT((status == DP_OK) == (job->wanted == DP_OK));
    return DP_OK;
}

static dp_status load_all(const struct dp_archive *archive, const struct held *held,
                          struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < held->count && status == DP_OK; i++) {
        status =
            dp_checkpoint_load_stage(archive, held->stages[i].stage, held->m[i], held->v[i], err);
    }
    return status;
}

static dp_status load_rank(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct job *job = context;
    DP_CLEANUP(held_deinit) struct held held;
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_state(transport, &job->layout, &held, &optim, err));
    AUTO_ARCHIVE struct dp_archive archive = {0};
    EXPECT_OK(dp_archive_open(job->directory, &archive, err));
    const struct dp_archive_meta *meta = &archive.meta;
    EXPECT(meta->seed == 0xfedcba9876543210u && meta->corpus_hash == UINT64_MAX);
    EXPECT(meta->step == job->step && meta->next_sample == job->step * 8);
    struct dp_model_spec model = layout_model();
    EXPECT_OK(dp_archive_check_model(&archive, &model, err));
    EXPECT_OK(load_all(&archive, &held, err));
    EXPECT(is_state(&held, job->salt, true) || is_state(&held, job->salt, false));
    return DP_OK;
}

static void save(const struct job *job)
{
    cluster_run(CLUSTER_LOOPBACK, job->layout.pipeline * job->layout.data, save_rank,
                (void *)(uintptr_t)job);
}

static const struct layout layouts[] = {
    {1, 1, 1, false, DP_F32}, {2, 2, 2, true, DP_F32}, {4, 1, 1, true, DP_F32},
    {1, 4, 4, false, DP_F32}, {2, 2, 1, true, DP_F64}, {1, 4, 2, false, DP_F64},
};

static void any_layout_goes_on_from_what_any_other_saved(void **state)
{
    (void)state;
    for (size_t from = 0; from < DP_ARRAY_LENGTH(layouts); from++) {
        struct job job = {.layout = layouts[from], .step = 7 + (int64_t)from, .salt = from};
        job.directory = root;
        save(&job);
        for (size_t to = 0; to < DP_ARRAY_LENGTH(layouts); to++) {
            job.layout = layouts[to];
            cluster_run(CLUSTER_LOOPBACK, job.layout.pipeline * job.layout.data, load_rank, &job);
        }
    }
    assert_int_equal(count_entries(root), DP_ARRAY_LENGTH(layouts)); // and nothing half done
}

static void the_newest_whole_one_is_taken_and_a_named_one_obeyed(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[0], .step = 9, .salt = 1, .directory = root};
    save(&job);
    job.step = 10;
    job.salt = 2;
    save(&job);
    DP_AUTO_FREE char *half = dp_asprintf("%s/step-11", root);
    DP_AUTO_FREE char *partial = dp_asprintf("%s/step-12.partial", root);
    DP_AUTO_FREE char *named = dp_asprintf("%s/step-9", root);
    assert_int_equal(mkdir(half, 0700) | mkdir(partial, 0700), 0);
    cluster_run(CLUSTER_LOOPBACK, 1, load_rank, &job);
    job.step = 9;
    job.salt = 1;
    job.directory = named;
    cluster_run(CLUSTER_LOOPBACK, 1, load_rank, &job);
}

static int64_t newest_step(void)
{
    AUTO_ARCHIVE struct dp_archive archive = {0};
    struct dp_error err = {0};
    assert_ok(dp_archive_open(root, &archive, &err), &err);
    return archive.meta.step;
}

// A run that was resumed from step 8 is at 9 and 10; what the one before it had made is older.
static void the_newest_is_what_was_sealed_last_not_the_highest_number(void **state)
{
    (void)state;
    static const int64_t steps[] = {8, 12, 9, 10};
    struct job job = {.layout = layouts[0], .directory = root};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(steps); i++) {
        job.step = steps[i];
        save(&job);
        assert_int_equal(newest_step(), steps[i]);
    }
    // One that cannot be read hides the others only where its number is the highest.
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/step-9/manifest.json", root);
    put_file(manifest, "{", 1);
    assert_int_equal(newest_step(), 10);
    DP_AUTO_FREE char *ten = dp_asprintf("%s/step-10", root);
    remove_tree(ten);
    assert_int_equal(newest_step(), 12);
}

static void a_checkpoint_of_the_same_step_is_replaced(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[1], .step = 3, .salt = 1, .directory = root};
    save(&job);
    job.layout = layouts[0];
    job.salt = 2;
    save(&job);
    cluster_run(CLUSTER_LOOPBACK, 1, load_rank, &job);
    assert_int_equal(count_entries(root), 1);
}

// Where names cannot be exchanged, the old one of a step has another name for a moment.
static void what_had_stepped_aside_when_its_job_was_killed_is_there_again(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[0], .step = 3, .salt = 1, .directory = root};
    save(&job);
    DP_AUTO_FREE char *sealed = dp_asprintf("%s/step-3", root);
    DP_AUTO_FREE char *aside = dp_asprintf("%s.replaced", sealed);
    assert_int_equal(rename(sealed, aside), 0);
    job.step = 4;
    save(&job);
    assert_int_equal(count_entries(root), 2);
    assert_int_equal(access(sealed, F_OK), 0);
    // Had its successor been there, it would be of no use.
    assert_int_equal(mkdir(aside, 0700), 0);
    job.step = 5;
    save(&job);
    assert_int_equal(count_entries(root), 3);
    job.step = 3;
    job.directory = sealed;
    cluster_run(CLUSTER_LOOPBACK, 1, load_rank, &job);
}

static void claim_until_killed(int done)
{
    struct dp_archive_claim claim = {0};
    struct dp_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char is_claimed = dp_archive_claim(&claim, root, &err) == DP_OK;
    if (write(done, &is_claimed, 1) == 1) {
        pause();
    }
    _exit(0);
}

static void a_directory_is_one_process_s_until_it_is_killed(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_archive_claim claim = {0};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        claim_until_killed(ends[1]);
    }
    char is_claimed;
    assert_int_equal(read(ends[0], &is_claimed, 1), 1);
    assert_true(is_claimed);
    char who[64];
    snprintf(who, sizeof who, "(process %ld on ", (long)child);
    assert_refused(dp_archive_claim(&claim, root, &err), DP_CONFLICT, &err, who);
    assert_null(claim.directory);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_ok(dp_archive_claim(&claim, root, &err), &err);
    assert_ok(dp_archive_claim(&claim, root, &err), &err); // its own
    dp_archive_unclaim(&claim);
    close(ends[0]);
    close(ends[1]);
}

static void a_rank_that_cannot_write_fails_all_and_leaves_the_old_one(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[2], .step = 3, .salt = 1, .directory = root};
    save(&job);
    struct job bad = job;
    bad.salt = 2;
    bad.bad_directory = "/dev/null";
    bad.wanted = DP_UNAVAILABLE;
    save(&bad);
    assert_int_equal(count_entries(root), 1);
    cluster_run(CLUSTER_LOOPBACK, 4, load_rank, &job);
}

static dp_status open_again(struct dp_error *err)
{
    AUTO_ARCHIVE struct dp_archive archive = {0};
    return dp_archive_open(root, &archive, err);
}

static void what_is_no_checkpoint_is_refused(void **state)
{
    (void)state;
    struct dp_archive archive;
    struct dp_error err = {0};
    assert_refused(dp_archive_open("/nowhere/at/all", &archive, &err), DP_NOT_FOUND, &err,
                   "/nowhere/at/all");
    assert_refused(open_again(&err), DP_NOT_FOUND, &err, "no checkpoint in");
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/manifest.json", root);
    const char *earlier = "{\"schema\": \"dp.checkpoint/1\"}";
    put_file(manifest, earlier, strlen(earlier));
    assert_refused(open_again(&err), DP_UNSUPPORTED, &err, "this version reads");
    put_file(manifest, "{\"schema\": ", 11);
    assert_refused(open_again(&err), DP_INVALID, &err, "manifest.json:1");
}

static void another_model_is_refused_by_the_field_that_differs(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[0], .step = 1, .salt = 1, .directory = root};
    save(&job);
    AUTO_ARCHIVE struct dp_archive archive = {0};
    struct dp_error err = {0};
    assert_ok(dp_archive_open(root, &archive, &err), &err);
    struct dp_model_spec model = layout_model();
    model.experts = 8;
    dp_status status = dp_archive_check_model(&archive, &model, &err);
    assert_refused(status, DP_INVALID, &err, "its experts is 4, this job's is 8");
    model = layout_model();
    model.rope_theta = 500000;
    status = dp_archive_check_model(&archive, &model, &err);
    assert_refused(status, DP_INVALID, &err, "rope_theta");
    model = layout_model();
    DP_COPY_TEXT(model.name, "renamed");
    assert_ok(dp_archive_check_model(&archive, &model, &err), &err);
}

struct whole {
    struct held held;
    struct dp_optim *optim;
    struct dp_transport *transport;
};

static void open_whole(struct whole *whole)
{
    struct dp_error err = {0};
    dp_transport_loopback(1, &whole->transport);
    assert_ok(open_state(whole->transport, &layouts[0], &whole->held, &whole->optim, &err), &err);
}

static void close_whole(struct whole *whole)
{
    dp_optim_free(whole->optim);
    held_deinit(&whole->held);
    dp_transport_free(whole->transport);
}

// Opens and loads everything into zeroed buffers.
static dp_status load_whole(struct whole *whole, struct dp_error *err)
{
    AUTO_ARCHIVE struct dp_archive archive = {0};
    dp_status status = dp_archive_open(root, &archive, err);
    return status == DP_OK ? load_all(&archive, &whole->held, err) : status;
}

static char *file_in(const char *directory, const char *prefix, int skip)
{
    DIR *opened = opendir(directory);
    assert_non_null(opened);
    const struct dirent *entry;
    char *path = NULL;
    while (path == NULL && (entry = readdir(opened)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && skip-- == 0) {
            path = dp_asprintf("%s/%s", directory, entry->d_name);
        }
    }
    closedir(opened);
    return path;
}

// Either the damage is told, naming the file, or it was in bytes without meaning.
static int check_damage(struct whole *whole, const char *file)
{
    struct dp_error err = {0};
    set_state(&whole->held, 999);
    dp_status status = load_whole(whole, &err);
    if (status == DP_OK) {
        assert_true(is_state(&whole->held, 1, true));
        return 0;
    }
    assert_true(status == DP_INVALID || status == DP_UNSUPPORTED);
    assert_non_null(strstr(err.message, strrchr(file, '/') + 1));
    return 1;
}

static void damage_everywhere(struct whole *whole, const char *path)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf good = {0};
    assert_ok(dp_read_file(path, 1 << 24, &good, &err), &err);
    size_t stride = good.length / 150 + 1;
    int told = 0, tried = 0;
    for (size_t at = 0; at < good.length; at += stride) {
        good.bytes[at] ^= 0x10;
        put_file(path, good.bytes, good.length);
        good.bytes[at] ^= 0x10;
        told += check_damage(whole, path);
        tried++;
        // A shorter file is always noticed: its size is in the manifest.
        put_file(path, good.bytes, at);
        assert_int_equal(check_damage(whole, path), 1);
    }
    assert_true(told > tried * 3 / 4);
    put_file(path, good.bytes, good.length);
    assert_int_equal(check_damage(whole, path), 0);
}

static void damage_anywhere_is_told_by_file(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[1], .step = 5, .salt = 1, .directory = root};
    save(&job);
    struct whole whole;
    open_whole(&whole);
    DP_AUTO_FREE char *directory = dp_asprintf("%s/step-5", root);
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/manifest.json", directory);
    damage_everywhere(&whole, manifest);
    for (int i = 0; i < 4; i++) {
        DP_AUTO_FREE char *shard = file_in(directory, i % 2 == 0 ? "model-" : "optimizer-", i / 2);
        damage_everywhere(&whole, shard);
    }
    close_whole(&whole);
}

static void a_damaged_value_is_told_by_tensor(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[0], .step = 5, .salt = 1, .directory = root};
    save(&job);
    struct whole whole;
    open_whole(&whole);
    DP_AUTO_FREE char *path = dp_asprintf("%s/step-5/model-00001-of-00001.safetensors", root);
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(dp_read_file(path, 1 << 24, &text, &err), &err);
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(whole.held.stages[0].stage, &count);
    size_t last = text.length - 64; // in the last tensor, which ends the file
    char name[DP_TENSOR_NAME_MAX];
    struct dp_model_spec model = layout_model();
    dp_hf_name(tensors[count - 1].name, &model, name);
    text.bytes[last] ^= 1;
    put_file(path, text.bytes, text.length);
    dp_status status = load_whole(&whole, &err);
    assert_refused(status, DP_INVALID, &err, "model-00001-of-00001.safetensors is damaged");
    assert_refused(status, DP_INVALID, &err, name);
    close_whole(&whole);
}

static void a_missing_shard_is_told(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[1], .step = 5, .salt = 1, .directory = root};
    save(&job);
    DP_AUTO_FREE char *directory = dp_asprintf("%s/step-5", root);
    DP_AUTO_FREE char *shard = file_in(directory, "model-0", 1);
    assert_int_equal(unlink(shard), 0);
    struct dp_error err = {0};
    assert_refused(open_again(&err), DP_INVALID, &err, strrchr(shard, '/') + 1);
}

// Ranks on machines that do not share the directory: what reaches rank 0 is not the whole model.
static void a_save_that_lacks_a_rank_s_shards_is_refused(void **state)
{
    (void)state;
    DP_AUTO_FREE char *here = dp_asprintf("%s/here", root);
    DP_AUTO_FREE char *there = dp_asprintf("%s/there", root);
    DP_AUTO_FREE char *partial = dp_asprintf("%s/step-4.partial", there);
    struct dp_error err = {0};
    assert_ok(dp_make_directories(partial, &err), &err);
    struct job job = {.layout = {2, 1, 1, false, DP_F32},
                      .step = 4,
                      .directory = here,
                      .bad_directory = there,
                      .wanted = DP_INTERNAL};
    save(&job);
    assert_int_equal(count_entries(here), 0);
}

// A file system that is full: files end at a limit, in the weights, in the moments, in the
// manifest.
static void a_full_disk_fails_the_save_and_leaves_the_old_one(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[1], .step = 3, .salt = 1, .directory = root};
    save(&job);
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t rooms[] = {0, 100, 4096, 20000};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rooms); i++) {
        struct rlimit room = {.rlim_cur = rooms[i], .rlim_max = old.rlim_max};
        struct job next = job;
        next.step = i % 2 == 0 ? 3 : 4;
        next.salt = 2;
        next.wanted = DP_IO;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &room), 0);
        save(&next);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(count_entries(root), 1);
        cluster_run(CLUSTER_LOOPBACK, 4, load_rank, &job);
    }
    signal(SIGXFSZ, before);
}

// Saves on and on, the same step and further ones by turns, and tells each one that is done.
static void save_until_killed(const struct job *job, int pipe)
{
    struct job next = *job;
    for (int i = 0;; i++) {
        next.step = 1 + i / 2;
        next.salt = (uint64_t)next.step;
        save(&next);
        char done = 1;
        if (write(pipe, &done, 1) != 1) {
            _exit(1);
        }
    }
}

static void killed_at_any_moment_there_is_a_whole_one(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 4);
    long runs = dp_fuzz_runs(12);
    for (long run = 0; run < runs; run++) {
        struct job job = {.layout = layouts[run % 2], .directory = root};
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            save_until_killed(&job, ends[1]);
        }
        close(ends[1]);
        char done;
        assert_int_equal(read(ends[0], &done, 1), 1);
        // Somewhere in one of those that follow.
        int64_t until = dp_clock_monotonic_ns() + (int64_t)dp_rand_below(&rand, 60) * DP_NS_PER_MS;
        dp_clock_sleep_until_ns(until);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        close(ends[0]);
        AUTO_ARCHIVE struct dp_archive archive = {0};
        struct dp_error err = {0};
        uint64_t bytes;
        assert_ok(dp_archive_open(root, &archive, &err), &err);
        assert_ok(dp_archive_verify(&archive, &bytes, &err), &err);
        job.step = archive.meta.step;
        job.salt = (uint64_t)job.step;
        cluster_run(CLUSTER_LOOPBACK, job.layout.pipeline * job.layout.data, load_rank, &job);
        // The next one clears away what the killed one has left.
        save(&job);
        assert_int_equal(count_entries(root), job.step);
        remove_tree(root);
        assert_int_equal(mkdir(root, 0700), 0);
    }
}

static void only_the_newest_are_kept(void **state)
{
    (void)state;
    struct job job = {.layout = layouts[0], .directory = root};
    for (job.step = 8; job.step <= 12; job.step++) {
        save(&job);
    }
    DP_AUTO_FREE char *other = dp_asprintf("%s/step-5", root); // has no manifest: not ours
    assert_int_equal(mkdir(other, 0700), 0);
    // A run that has gone back to step 8 and sealed step 9 loses what is before, not what it made.
    dp_archive_retain(root, 9, 1);
    assert_int_equal(count_entries(root), 5);
    DP_AUTO_FREE char *sealed = dp_asprintf("%s/step-9", root);
    assert_int_equal(access(sealed, F_OK), 0);
    dp_archive_retain(root, 12, 2);
    assert_int_equal(count_entries(root), 3);
    job.step = 11;
    DP_AUTO_FREE char *kept = dp_asprintf("%s/step-11", root);
    job.directory = kept;
    cluster_run(CLUSTER_LOOPBACK, 1, load_rank, &job);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_layout_goes_on_from_what_any_other_saved),
        TEST(the_newest_whole_one_is_taken_and_a_named_one_obeyed),
        TEST(the_newest_is_what_was_sealed_last_not_the_highest_number),
        TEST(a_checkpoint_of_the_same_step_is_replaced),
        TEST(what_had_stepped_aside_when_its_job_was_killed_is_there_again),
        TEST(a_directory_is_one_process_s_until_it_is_killed),
        TEST(a_rank_that_cannot_write_fails_all_and_leaves_the_old_one),
        TEST(what_is_no_checkpoint_is_refused),
        TEST(another_model_is_refused_by_the_field_that_differs),
        TEST(damage_anywhere_is_told_by_file),
        TEST(a_damaged_value_is_told_by_tensor),
        TEST(a_missing_shard_is_told),
        TEST(a_save_that_lacks_a_rank_s_shards_is_refused),
        TEST(a_full_disk_fails_the_save_and_leaves_the_old_one),
        TEST(killed_at_any_moment_there_is_a_whole_one),
        TEST(only_the_newest_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
