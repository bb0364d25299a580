// Assignments of a job beside the one in force: ranks that start while others train, and ranks that
// were replaced and end. Their slots stay used until nothing of them can be left.
#include "core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

static void set_members(struct core_side *side)
{
    side->members = dp_new_array(struct core_member, side->ranks_count);
    for (size_t i = 0; i < side->ranks_count; i++) {
        struct core_member *member = dp_core_side_member(side, side->ranks[i].node);
        if (member == NULL) {
            member = &side->members[side->members_count++];
            DP_COPY_TEXT(member->node, side->ranks[i].node);
        }
        member->ranks++;
    }
}

// Nodes count the sides that have ranks there: the others need not be asked for slots.
static void count_side(struct dp_core *core, const struct core_side *side, bool appears)
{
    for (size_t i = 0; i < side->members_count; i++) {
        struct core_node *node = dp_core_node_find(core, side->members[i].node);
        if (node != NULL) {
            node->sides = appears ? node->sides + 1 : node->sides - 1;
        }
    }
}

void dp_core_sides_meet(const struct core_job *job, struct core_node *node)
{
    const struct core_side *next = job->reassign.next;
    node->sides += next != NULL && dp_core_side_member(next, node->row.name) != NULL;
    for (const struct core_side *side = job->sides; side != NULL; side = side->next) {
        node->sides += dp_core_side_member(side, node->row.name) != NULL;
    }
}

static struct core_side *side_new(const struct core_job *job, const struct dp_adapt_done *done)
{
    struct core_side *side = dp_new(struct core_side);
    side->attempt = job->row.attempt;
    side->epoch = job->row.epoch_used;
    side->stored = true; // it is in no row before it is in force
    dp_buf_append(&side->plan, done->plan, done->plan_length);
    side->ranks_count = done->ranks_count;
    side->ranks = dp_new_array(struct dp_rank_record, done->ranks_count);
    for (size_t i = 0; i < done->ranks_count; i++) {
        side->ranks[i].job = job->row.number;
        side->ranks[i].rank = (uint32_t)i;
        side->ranks[i].slot = done->ranks[i].slot;
        DP_COPY_TEXT(side->ranks[i].node, done->ranks[i].node);
    }
    set_members(side);
    count_side(job->core, side, true);
    return side;
}

// The core's list has those jobs that have sides.
static void keep_listed(struct core_job *job)
{
    struct dp_core *core = job->core;
    bool listed = job->sides != NULL || job->reassign.next != NULL;
    if (listed && job->sided == 0) {
        if (core->sided_count == core->sided_capacity) {
            core->sided_capacity = core->sided_capacity == 0 ? 4 : core->sided_capacity * 2;
            core->sided = dp_realloc(core->sided, core->sided_capacity, sizeof(struct core_job *));
        }
        core->sided[core->sided_count++] = job;
        job->sided = core->sided_count;
    } else if (!listed && job->sided != 0) {
        struct core_job *last = core->sided[--core->sided_count];
        core->sided[job->sided - 1] = last;
        last->sided = job->sided;
        job->sided = 0;
    }
}

void dp_core_side_prepare(struct core_job *job, const struct dp_adapt_done *done)
{
    job->row.epoch_used++;
    job->reassign.next = side_new(job, done);
    keep_listed(job);
    dp_core_sides_recount(job);
}

void dp_core_sides_recount(struct core_job *job)
{
    dp_core_job_recount(job);
    dp_core_reschedule(job->core);
    dp_core_job_touch(job);
}

void dp_core_side_free(struct dp_core *core, struct core_side *side)
{
    if (side != NULL) {
        count_side(core, side, false);
        dp_buf_deinit(&side->plan);
        free(side->ranks);
        free(side->members);
        free(side);
    }
}

void dp_core_sides_free(struct core_job *job)
{
    dp_core_side_free(job->core, job->reassign.next);
    job->reassign.next = NULL;
    while (job->sides != NULL) {
        struct core_side *next = job->sides->next;
        dp_core_side_free(job->core, job->sides);
        job->sides = next;
    }
    keep_listed(job);
    free(job->reassign.sources);
    dp_decision_record_deinit(&job->reassign.decision);
    while (job->reassign.decisions != NULL) {
        struct core_decision *next = job->reassign.decisions->next;
        dp_decision_record_deinit(&job->reassign.decisions->row);
        free(job->reassign.decisions);
        job->reassign.decisions = next;
    }
}

struct dp_fence dp_core_side_fence(const struct core_job *job, const struct core_side *side)
{
    struct dp_fence fence = {.attempt = side->attempt, .epoch = side->epoch};
    DP_COPY_TEXT(fence.job, job->row.id);
    return fence;
}

struct core_side *dp_core_side_find(const struct core_job *job, const struct dp_fence *fence)
{
    struct core_side *next = job->reassign.next;
    if (next != NULL && next->attempt == fence->attempt && next->epoch == fence->epoch) {
        return next;
    }
    for (struct core_side *side = job->sides; side != NULL; side = side->next) {
        if (side->attempt == fence->attempt && side->epoch == fence->epoch) {
            return side;
        }
    }
    return NULL;
}

struct core_member *dp_core_side_member(const struct core_side *side, const char *node)
{
    for (size_t i = 0; i < side->members_count; i++) {
        if (strcmp(side->members[i].node, node) == 0) {
            return &side->members[i];
        }
    }
    return NULL;
}

bool dp_core_side_over(const struct core_side *side, const char *node)
{
    for (size_t i = 0; i < side->ranks_count; i++) {
        const struct dp_rank_record *rank = &side->ranks[i];
        if ((node == NULL || strcmp(rank->node, node) == 0) && !dp_rank_record_over(rank)) {
            return false;
        }
    }
    return true;
}

bool dp_core_side_end(struct core_side *side, const char *node)
{
    bool ended = false;
    for (size_t i = 0; i < side->ranks_count; i++) {
        struct dp_rank_record *rank = &side->ranks[i];
        if ((node == NULL || strcmp(rank->node, node) == 0) && !dp_rank_record_over(rank)) {
            rank->phase = DP_RANK_UNKNOWN;
            rank->gone = ended = true;
        }
    }
    return ended;
}

// What no node was told of is nowhere.
static void end_unreached(struct core_side *side)
{
    for (size_t i = 0; i < side->members_count; i++) {
        if (!side->members[i].reached) {
            dp_core_side_end(side, side->members[i].node);
        }
    }
}

static void add_side(struct core_job *job, struct core_side *side)
{
    end_unreached(side);
    side->next = job->sides;
    job->sides = side;
    keep_listed(job);
}

void dp_core_side_give_up(struct core_job *job)
{
    if (job->reassign.next != NULL) {
        struct core_side *side = job->reassign.next;
        job->reassign.next = NULL;
        add_side(job, side);
        dp_core_sides_recount(job);
    }
}

// What nodes were told of their ranks goes along with these.
static void take_over_told(struct core_member *to, const struct core_member *from)
{
    if (from != NULL) {
        to->told = from->told;
        to->told_ns = from->told_ns;
        to->reached = from->reached;
        to->lost = from->lost;
    }
}

void dp_core_job_retire(struct core_job *job)
{
    struct core_side *side = dp_new(struct core_side);
    *side = (struct core_side){
        .attempt = job->row.attempt,
        .epoch = job->row.epoch,
        .ranks = job->ranks,
        .ranks_count = job->ranks_count,
        .stored = job->gives_back,
    };
    set_members(side);
    count_side(job->core, side, true);
    for (size_t i = 0; i < side->members_count; i++) {
        take_over_told(&side->members[i], dp_core_job_member(job, side->members[i].node));
    }
    dp_core_members_clear(job);
    job->ranks = NULL;
    job->ranks_count = 0;
    add_side(job, side);
}

void dp_core_side_put_in_force(struct core_job *job)
{
    struct core_side *next = job->reassign.next;
    dp_core_job_retire(job);
    job->reassign.next = NULL;
    job->ranks = next->ranks;
    job->ranks_count = next->ranks_count;
    dp_core_job_set_members(job);
    for (size_t i = 0; i < job->members_count; i++) {
        take_over_told(&job->members[i], dp_core_side_member(next, job->members[i].node));
    }
    dp_buf_clear(&job->row.plan);
    dp_buf_append(&job->row.plan, next->plan.bytes, next->plan.length);
    job->row.epoch = next->epoch;
    next->ranks = NULL;
    dp_core_side_free(job->core, next);
    job->lacks_phase = job->lacks_ok = job->lacks_step = 0;
    keep_listed(job);
    dp_core_sides_recount(job);
}

void dp_core_sides_stored(struct core_job *job)
{
    bool gives_back = false;
    for (struct core_side *side = job->sides; side != NULL; side = side->next) {
        gives_back = gives_back || !side->stored;
        side->stored = true;
    }
    if (gives_back) {
        dp_core_sides_recount(job);
    }
}

static bool rank_has_slot(const struct core_side *side, const struct dp_rank_record *rank)
{
    return !side->stored || !dp_rank_record_over(rank);
}

// Whether the job's assignment in force, or an older side than `until`, has the slot, too.
static bool has_slot(const struct core_job *job, const struct core_side *until, const char *node,
                     uint32_t slot)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (rank->slot == slot && strcmp(rank->node, node) == 0 &&
            dp_core_rank_has_slot(job, rank)) {
            return true;
        }
    }
    for (const struct core_side *side = job->sides; side != until && side != NULL;
         side = side->next) {
        for (size_t i = 0; i < side->ranks_count; i++) {
            const struct dp_rank_record *rank = &side->ranks[i];
            if (rank->slot == slot && strcmp(rank->node, node) == 0 && rank_has_slot(side, rank)) {
                return true;
            }
        }
    }
    return false;
}

static uint32_t side_slots(const struct core_job *job, const struct core_side *side,
                           const char *node, bool *taken, uint32_t slots)
{
    const struct core_side *until = side == job->reassign.next ? NULL : side;
    uint32_t count = 0;
    for (size_t i = 0; i < side->ranks_count; i++) {
        const struct dp_rank_record *rank = &side->ranks[i];
        if (strcmp(rank->node, node) != 0 || !rank_has_slot(side, rank)) {
            continue;
        }
        if (taken != NULL && rank->slot < slots) {
            taken[rank->slot] = true;
        }
        count += !has_slot(job, until, node, rank->slot);
    }
    return count;
}

uint32_t dp_core_sides_slots(const struct core_job *job, const char *node, bool *taken,
                             uint32_t slots)
{
    uint32_t count = 0;
    for (const struct core_side *side = job->sides; side != NULL; side = side->next) {
        count += side_slots(job, side, node, taken, slots);
    }
    if (job->reassign.next != NULL) {
        count += side_slots(job, job->reassign.next, node, taken, slots);
    }
    return count;
}

static dp_order_kind order_of(const struct core_job *job, const struct core_side *side,
                              const struct core_member *member)
{
    if (side == job->reassign.next) {
        return member->told == DP_ORDER_NONE ? DP_ORDER_PREPARE : member->told;
    }
    if (side->serves) {
        return member->told;
    }
    if (!member->reached) {
        return member->told; // it was never told of anything
    }
    return dp_core_side_over(side, member->node) ? DP_ORDER_RELEASE : DP_ORDER_STOP;
}

static void drive_side(struct dp_core *core, struct core_job *job, struct core_side *side)
{
    struct dp_fence fence = dp_core_side_fence(job, side);
    for (size_t i = 0; i < side->members_count; i++) {
        struct core_member *member = &side->members[i];
        const struct core_node *node = dp_core_node_find(core, member->node);
        dp_order_kind order = order_of(job, side, member);
        if (order == member->told || node == NULL || node->session == 0) {
            continue;
        }
        member->told = order;
        member->told_ns = core->now_ns;
        member->reached = true;
        dp_core_send(core, node, order, &fence,
                     order == DP_ORDER_STOP ? "other ranks have its place" : "");
    }
}

bool dp_core_sides_may_end(const struct core_job *job)
{
    for (const struct core_side *side = job->sides; side != NULL; side = side->next) {
        for (size_t i = 0; i < side->members_count; i++) {
            const char *name = side->members[i].node;
            const struct core_node *node = dp_core_node_find(job->core, name);
            bool silent = node == NULL || node->state == DP_NODE_LOST;
            if (!dp_core_side_over(side, name) &&
                (job->row.outcome == DP_STATE_CANCELLED || !silent)) {
                return false;
            }
        }
    }
    return true;
}

void dp_core_sides_insist(struct core_job *job)
{
    for (struct core_side *side = job->sides; side != NULL; side = side->next) {
        for (size_t i = 0; i < side->members_count; i++) {
            if (!dp_core_side_over(side, side->members[i].node)) {
                side->members[i].told = DP_ORDER_START;
            }
        }
    }
}

static bool side_done(const struct dp_core *core, const struct core_side *side)
{
    for (size_t i = 0; i < side->members_count; i++) {
        const struct core_member *member = &side->members[i];
        const struct core_node *node = dp_core_node_find(core, member->node);
        bool told = member->told == DP_ORDER_RELEASE || !member->reached || node == NULL ||
                    node->session == 0;
        if (node != NULL && (!dp_core_side_over(side, member->node) || !told)) {
            return false;
        }
    }
    return true;
}

bool dp_core_sides_done(const struct dp_core *core, const struct core_job *job)
{
    for (const struct core_side *side = job->sides; side != NULL; side = side->next) {
        if (!side_done(core, side)) {
            return false;
        }
    }
    return job->reassign.next == NULL;
}

void dp_core_sides_drive(struct dp_core *core, struct core_job *job)
{
    if (job->reassign.next != NULL) {
        drive_side(core, job, job->reassign.next);
    }
    struct core_side **link = &job->sides;
    while (*link != NULL) {
        struct core_side *side = *link;
        drive_side(core, job, side);
        if (!side->serves && side_done(core, side)) {
            *link = side->next;
            dp_core_side_free(core, side);
            dp_core_reschedule(core);
        } else {
            link = &side->next;
        }
    }
    keep_listed(job);
}

void dp_core_sources_write(const struct dp_state_source *sources, size_t count, struct dp_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        dp_buf_printf(out, "%u %s\n", sources[i].rank, sources[i].address);
    }
}

void dp_core_sources_read(const struct dp_buf *text, struct dp_state_source **ret_sources,
                          size_t *ret_count)
{
    size_t lines = 0, count = 0;
    for (size_t i = 0; i < text->length; i++) {
        lines += text->bytes[i] == '\n';
    }
    struct dp_state_source *sources = dp_new_array(struct dp_state_source, lines);
    const char *at = text->bytes, *end = text->bytes + text->length;
    for (; count < lines; count++) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        char *space = NULL;
        sources[count].rank = (uint32_t)strtoul(at, &space, 10);
        size_t length = line_end > space ? (size_t)(line_end - space) - 1 : 0;
        length = length < DP_ADDRESS_MAX ? length : DP_ADDRESS_MAX - 1;
        memcpy(sources[count].address, space + 1, length);
        at = line_end + 1;
    }
    *ret_sources = sources;
    *ret_count = count;
}

// Ranks of one assignment know each other by it; a rank that was replaced is none of them. The
// mixing is splitmix64's.
static uint64_t token_of(const struct dp_job_record *row, uint32_t attempt, uint32_t epoch)
{
    uint64_t x = row->token + (((uint64_t)attempt << 32) | epoch) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

bool dp_core_assignment(const struct dp_core *core, const struct dp_fence *fence,
                        struct dp_assignment_view *ret_view)
{
    const struct core_job *job = dp_core_job_number(core, dp_core_number_of(fence->job));
    if (job == NULL) {
        return false;
    }
    const struct core_side *side = dp_core_side_find(job, fence);
    bool in_force = fence->attempt == job->row.attempt && fence->epoch == job->row.epoch;
    if (side == NULL && !in_force) {
        return false;
    }
    *ret_view = (struct dp_assignment_view){
        .job = &job->row,
        .plan = side != NULL ? &side->plan : &job->row.plan,
        .ranks = side != NULL ? side->ranks : job->ranks,
        .ranks_count = side != NULL ? side->ranks_count : job->ranks_count,
        .token = token_of(&job->row, fence->attempt, fence->epoch),
        .beside = side != NULL,
    };
    if (in_force && job->row.source_epoch != 0) {
        ret_view->sources = job->reassign.sources;
        ret_view->sources_count = job->reassign.sources_count;
        ret_view->state_step = job->row.source_step;
        ret_view->state_token = token_of(&job->row, job->row.attempt, job->row.source_epoch);
        ret_view->beside = true;
    }
    return true;
}
