// Values out of what several ranks hold.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "receive.h"

// A part of a source.
struct place {
    const struct dp_state_part *part;
    int32_t source, number;
};

struct dp_state_reader {
    int32_t rank;
    struct source *sources; // [count]
    int32_t count, live;
    struct dp_archive_meta meta;
    struct place *places; // of all sources, by name, kind and begin
    int64_t place_count;
    struct dp_buf lost;
    int32_t lost_count;
    uint64_t bytes;
};

DP_DEFINE_CLEANUP(cleanup_reader, struct dp_state_reader, dp_state_reader_free)

void dp_state_reader_free(struct dp_state_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    for (int32_t i = 0; i < reader->count; i++) {
        if (reader->sources[i].fd >= 0) {
            close(reader->sources[i].fd);
        }
        dp_state_deinit(&reader->sources[i].table);
    }
    free(reader->sources);
    free(reader->places);
    dp_buf_deinit(&reader->lost);
    free(reader);
}

static void lose(struct dp_state_reader *reader, struct source *source, const struct dp_error *why)
{
    dp_buf_printf(&reader->lost, "%s%s", reader->lost_count == 0 ? "" : "; ", why->message);
    reader->lost_count++;
    if (source->fd >= 0) {
        close(source->fd);
        source->fd = -1;
        reader->live--;
    }
}

static dp_status check_meta(const struct dp_state_reader *reader, const struct source *source,
                            int64_t step, struct dp_error *err)
{
    const struct dp_archive_meta *meta = &source->table.meta, *first = &reader->meta;
    if (meta->step != step) {
        return dp_fail(err, DP_CONFLICT, "rank %d at %s holds step %lld instead of %lld",
                       source->rank, source->address, (long long)meta->step, (long long)step);
    }
    if (first->is_trained &&
        (meta->next_sample != first->next_sample || meta->seed != first->seed ||
         meta->corpus_hash != first->corpus_hash)) {
        return dp_fail(err, DP_CONFLICT, "rank %d at %s holds the state of another run",
                       source->rank, source->address);
    }
    return DP_OK;
}

static void dial(struct dp_state_reader *reader)
{
    struct dp_error err;
    for (int32_t i = 0; i < reader->count; i++) {
        if (dp_state_source_dial(&reader->sources[i], &err) == DP_OK) {
            reader->live++;
        } else {
            lose(reader, &reader->sources[i], &err);
        }
    }
}

// Until when others may still be met, once one was: they were all dialled at the same time.
static int64_t others_end_ns(const struct source *met, int64_t end_ns)
{
    const int64_t then_ns = dp_clock_monotonic_ns() + met->silent_ms * DP_NS_PER_MS;
    return then_ns < end_ns ? then_ns : end_ns;
}

// Says hello to each as soon as it can be: those that never can keep nobody from the others.
static void greet(struct dp_state_reader *reader, const struct dp_state_reader_config *config)
{
    DP_AUTO_FREE struct pollfd *polls = dp_new_array(struct pollfd, (size_t)reader->count);
    struct dp_error err;
    int64_t end_ns = config->deadline_ns;
    int32_t waiting = reader->live;
    bool is_over = false;
    for (int32_t i = 0; i < reader->count; i++) {
        polls[i] = (struct pollfd){.fd = reader->sources[i].fd, .events = POLLOUT};
    }
    while (waiting > 0 && !is_over) {
        const int64_t left_ms = (end_ns - dp_clock_monotonic_ns()) / DP_NS_PER_MS;
        is_over = left_ms <= 0;
        const int ready = poll(polls, (nfds_t)reader->count, left_ms > 0 ? (int)left_ms + 1 : 0);
        for (int32_t i = 0; ready > 0 && i < reader->count; i++) {
            struct source *source = &reader->sources[i];
            if (polls[i].revents == 0) {
                continue;
            }
            waiting--;
            polls[i].fd = -1;
            if (dp_state_source_greet(source, config->token, config->rank, &err) == DP_OK) {
                end_ns = others_end_ns(source, end_ns);
            } else {
                lose(reader, source, &err);
            }
        }
    }
    for (int32_t i = 0; i < reader->count; i++) {
        if (polls[i].fd >= 0) {
            dp_fail(&err, DP_UNAVAILABLE, "rank %d at %s cannot be reached in time",
                    reader->sources[i].rank, reader->sources[i].address);
            lose(reader, &reader->sources[i], &err);
        }
    }
}

static void take_hellos(struct dp_state_reader *reader, uint64_t token)
{
    struct dp_error err;
    const int64_t now_ns = dp_clock_monotonic_ns();
    for (int32_t i = 0; i < reader->count; i++) {
        struct source *source = &reader->sources[i];
        if (source->fd >= 0 &&
            dp_state_source_take_hello(source, token, now_ns + source->silent_ms * DP_NS_PER_MS,
                                       &err) != DP_OK) {
            lose(reader, source, &err);
        }
    }
}

static void meet(struct dp_state_reader *reader, const struct dp_state_reader_config *config)
{
    struct dp_error err;
    dial(reader);
    greet(reader, config);
    take_hellos(reader, config->token);
    for (int32_t i = 0; i < reader->count; i++) {
        struct source *source = &reader->sources[i];
        if (source->fd < 0) {
            continue;
        }
        if (dp_state_source_take_table(source, &err) != DP_OK ||
            check_meta(reader, source, config->step, &err) != DP_OK) {
            lose(reader, source, &err);
        } else if (!reader->meta.is_trained) {
            reader->meta = source->table.meta;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const struct place *left = a, *right = b;
    int order = strcmp(left->part->own, right->part->own);
    if (order == 0) {
        order = (left->part->kind > right->part->kind) - (left->part->kind < right->part->kind);
    }
    if (order == 0) {
        order = (left->part->begin > right->part->begin) - (left->part->begin < right->part->begin);
    }
    return order != 0 ? order : (left->source > right->source) - (left->source < right->source);
}

static void index_places(struct dp_state_reader *reader)
{
    int64_t count = 0;
    for (int32_t i = 0; i < reader->count; i++) {
        count += reader->sources[i].fd >= 0 ? reader->sources[i].table.count : 0;
    }
    reader->places = dp_new_array(struct place, (size_t)count);
    for (int32_t i = 0; i < reader->count; i++) {
        const struct source *source = &reader->sources[i];
        for (int64_t k = 0; source->fd >= 0 && k < source->table.count; k++) {
            reader->places[reader->place_count++] =
                (struct place){&source->table.parts[k], i, (int32_t)k};
        }
    }
    qsort(reader->places, (size_t)reader->place_count, sizeof reader->places[0], by_place);
}

dp_status dp_state_reader_open(const struct dp_state_reader_config *config,
                               struct dp_state_reader **ret_reader, struct dp_error *err)
{
    DP_CLEANUP(cleanup_reader) struct dp_state_reader *reader = dp_new(struct dp_state_reader);
    reader->rank = config->rank;
    reader->count = config->count;
    reader->sources = dp_new_array(struct source, (size_t)config->count);
    for (int32_t i = 0; i < config->count; i++) {
        struct source *source = &reader->sources[i];
        source->fd = -1;
        source->rank = config->sources[i].rank;
        source->silent_ms = config->silent_ms > 0 ? config->silent_ms : DP_STATE_SILENT_MS;
        if (!DP_COPY_TEXT(source->address, config->sources[i].address)) {
            reader->count = i;
            return dp_fail(err, DP_INVALID, "the address of rank %d that holds is too long",
                           config->sources[i].rank);
        }
    }
    meet(reader, config);
    if (reader->live == 0) {
        return dp_fail(err, DP_UNAVAILABLE, "none of %d ranks gives its state of step %lld: %s",
                       config->count, (long long)config->step,
                       reader->lost_count == 0 ? "there are none" : reader->lost.bytes);
    }
    index_places(reader);
    *ret_reader = dp_steal(reader);
    return DP_OK;
}

const struct dp_archive_meta *dp_state_reader_meta(const struct dp_state_reader *reader)
{
    return &reader->meta;
}

const char *dp_state_reader_lost(const struct dp_state_reader *reader)
{
    return reader->lost_count == 0 ? "" : reader->lost.bytes;
}

void dp_state_reader_stats(const struct dp_state_reader *reader,
                           struct dp_state_reader_stats *ret_stats)
{
    *ret_stats = (struct dp_state_reader_stats){
        .bytes = reader->bytes, .sources = reader->live, .lost = reader->lost_count};
}

// The places of one kind of values.
struct tensor {
    const struct place *places;
    int64_t count;
};

static struct tensor find(const struct dp_state_reader *reader, const char *own,
                          dp_archive_kind kind)
{
    const struct dp_state_part key = {.kind = kind, .begin = -1};
    struct dp_state_part wanted = key;
    if (!DP_COPY_TEXT(wanted.own, own)) {
        return (struct tensor){0};
    }
    const struct place at = {.part = &wanted};
    int64_t low = 0, high = reader->place_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (by_place(&reader->places[middle], &at) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    struct tensor tensor = {.places = reader->places + low};
    while (low + tensor.count < reader->place_count &&
           tensor.places[tensor.count].part->kind == kind &&
           strcmp(tensor.places[tensor.count].part->own, own) == 0) {
        tensor.count++;
    }
    return tensor;
}

// Of the live sources that have element `at` the one that has been asked for least, or NULL. With
// as much asked of each, readers begin with different ones.
static const struct place *choose(const struct dp_state_reader *reader, const struct tensor *tensor,
                                  int64_t at, int64_t count)
{
    const struct place *best = NULL;
    uint64_t least = 0;
    int32_t turn_of_best = 0;
    for (int64_t i = 0; i < tensor->count && tensor->places[i].part->begin <= at; i++) {
        const struct place *place = &tensor->places[i];
        const struct source *source = &reader->sources[place->source];
        const int32_t turn = (place->source + reader->rank) % reader->count;
        const bool has = source->fd >= 0 && place->part->end > at && place->part->count == count;
        if (has && (best == NULL || source->asked_bytes < least ||
                    (source->asked_bytes == least && turn < turn_of_best))) {
            best = place;
            least = source->asked_bytes;
            turn_of_best = turn;
        }
    }
    return best;
}

// Values that one answer brings.
struct chunk {
    const struct place *place;
    int64_t begin, end;
    bool is_here;
};

struct plan {
    struct chunk *chunks;
    int64_t count, room;
};

static void add_chunk(struct plan *plan, const struct chunk *chunk)
{
    if (plan->count == plan->room) {
        plan->room = plan->room == 0 ? 16 : 2 * plan->room;
        plan->chunks = dp_realloc(plan->chunks, (size_t)plan->room, sizeof plan->chunks[0]);
    }
    plan->chunks[plan->count++] = *chunk;
}

// Shares out [begin, end) of a tensor of `count`; false when an element is nowhere.
static bool plan_range(struct dp_state_reader *reader, const struct tensor *tensor, int64_t count,
                       int64_t begin, int64_t end, struct plan *plan)
{
    while (begin < end) {
        const struct place *place = choose(reader, tensor, begin, count);
        if (place == NULL) {
            return false;
        }
        const int64_t width = (int64_t)dp_dtype_bytes(place->part->dtype);
        int64_t to = begin + DP_STATE_CHUNK_BYTES / width;
        to = to < place->part->end ? to : place->part->end;
        to = to < end ? to : end;
        add_chunk(plan, &(struct chunk){.place = place, .begin = begin, .end = to});
        reader->sources[place->source].asked_bytes += (uint64_t)((to - begin) * width);
        begin = to;
    }
    return true;
}

static void ask(struct dp_state_reader *reader, const struct chunk *chunk)
{
    struct source *source = &reader->sources[chunk->place->source];
    const struct state_request request = {.question = STATE_VALUES,
                                          .part = (uint32_t)chunk->place->number,
                                          .first =
                                              (uint64_t)(chunk->begin - chunk->place->part->begin),
                                          .count = (uint64_t)(chunk->end - chunk->begin)};
    struct dp_error err;
    if (source->fd >= 0 && dp_state_source_ask(source, &request, &err) != DP_OK) {
        lose(reader, source, &err);
    }
}

static void take(struct dp_state_reader *reader, struct chunk *chunk, char *bytes, dp_dtype to,
                 void *values)
{
    struct source *source = &reader->sources[chunk->place->source];
    const struct dp_state_part *part = chunk->place->part;
    const int64_t count = chunk->end - chunk->begin;
    const size_t length = (size_t)count * dp_dtype_bytes(part->dtype);
    struct dp_error err;
    if (source->fd < 0) {
        return;
    }
    if (dp_state_source_take_values(source, bytes, length, &err) != DP_OK) {
        lose(reader, source, &err);
        return;
    }
    char *place = (char *)values + (size_t)chunk->begin * dp_dtype_bytes(to);
    chunk->is_here = dp_dtype_widen(part->dtype, bytes, count, to, place);
    DP_CHECK(chunk->is_here);
    reader->bytes += length;
}

// Asks some chunks ahead of those that it takes, so that no source waits for another.
static void run(struct dp_state_reader *reader, struct plan *plan, char *bytes, dp_dtype to,
                void *values)
{
    int64_t asked = 0;
    for (int64_t i = 0; i < plan->count; i++) {
        for (; asked < plan->count && asked < i + DP_STATE_AHEAD; asked++) {
            ask(reader, &plan->chunks[asked]);
        }
        take(reader, &plan->chunks[i], bytes, to, values);
    }
}

// What did not come is shared out anew among those that are left.
static bool plan_again(struct dp_state_reader *reader, const struct tensor *tensor, int64_t count,
                       struct plan *plan)
{
    struct plan again = {0};
    bool good = true;
    for (int64_t i = 0; i < plan->count && good; i++) {
        const struct chunk *chunk = &plan->chunks[i];
        good =
            chunk->is_here || plan_range(reader, tensor, count, chunk->begin, chunk->end, &again);
    }
    free(plan->chunks);
    *plan = again;
    return good;
}

static dp_status read_all(struct dp_state_reader *reader, const char *own, dp_archive_kind kind,
                          int64_t count, dp_dtype to, void *ret_values, struct dp_error *err)
{
    const struct tensor tensor = find(reader, own, kind);
    struct plan plan = {0};
    DP_AUTO_FREE char *bytes = dp_alloc(DP_STATE_CHUNK_BYTES, 1);
    bool good = plan_range(reader, &tensor, count, 0, count, &plan);
    while (good && plan.count > 0) {
        run(reader, &plan, bytes, to, ret_values);
        good = plan_again(reader, &tensor, count, &plan);
    }
    free(plan.chunks);
    return good ? DP_OK
                : dp_fail(err, DP_UNAVAILABLE, "nobody who holds step %lld has all %s of %s%s%s",
                          (long long)reader->meta.step,
                          kind == DP_ARCHIVE_WEIGHT ? "values" : "moments", own,
                          reader->lost_count > 0 ? "; " : "", dp_state_reader_lost(reader));
}

static bool has(void *context, const char *own, dp_archive_kind kind, int64_t count)
{
    const struct dp_state_reader *reader = context;
    const struct tensor tensor = find(reader, own, kind);
    int64_t at = 0;
    for (int64_t i = 0; i < tensor.count && at < count; i++) {
        const struct place *place = &tensor.places[i];
        const bool reaches = reader->sources[place->source].fd >= 0 &&
                             place->part->count == count && place->part->begin <= at;
        at = reaches && place->part->end > at ? place->part->end : at;
    }
    return at >= count;
}

static dp_status read_weight(void *context, const char *own, int64_t rows, int64_t cols,
                             dp_dtype to, void *ret_values, struct dp_error *err)
{
    return read_all(context, own, DP_ARCHIVE_WEIGHT, rows * cols, to, ret_values, err);
}

static dp_status read_moments(void *context, const char *own, dp_archive_kind kind, int64_t count,
                              dp_dtype to, void *ret_values, struct dp_error *err)
{
    return read_all(context, own, kind, count, to, ret_values, err);
}

struct dp_tensor_source dp_state_reader_source(struct dp_state_reader *reader)
{
    struct dp_tensor_source source = {.context = reader,
                                      .lacking = DP_UNAVAILABLE,
                                      .has_moments = true,
                                      .has = has,
                                      .read_weight = read_weight,
                                      .read_moments = read_moments};
    snprintf(source.name, sizeof source.name, "the state of step %lld that %d ranks hold",
             (long long)reader->meta.step, reader->live);
    return source;
}
