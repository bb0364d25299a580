#include "utilisation.h"

#include <stdlib.h>
#include <time.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/wire.h"

#define POP_MAX 256

static int64_t process_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * DP_NS_PER_S + now.tv_nsec;
}

void utilisation_start(struct utilisation *self, struct dp_exec_meter *meter)
{
    self->meter = meter;
    self->until_ns = dp_clock_realtime_ns();
    self->last_end_ns = self->until_ns;
    self->cpu_ns = process_cpu_ns();
    dp__v1__utilisation__init(&self->sums);
}

void utilisation_deinit(struct utilisation *self)
{
    free(self->records);
}

static void add_record(struct utilisation *self, const struct dp_exec_record *record)
{
    int64_t length_ns = record->span.end_ns - record->span.start_ns;
    Dp__V1__Utilisation *sums = &self->sums;
    sums->comm_exposed_ns += record->comm_ns + record->exchange_ns;
    if (record->span.kind < DP_ACTION_KIND_COUNT) {
        length_ns = record->span.own_ns;
    }
    switch (record->span.kind) {
    case DP_ACTION_F:
        sums->forward_ns += length_ns;
        break;
    case DP_ACTION_B:
    case DP_ACTION_I:
        sums->backward_ns += length_ns;
        break;
    case DP_ACTION_W:
        sums->weight_ns += length_ns;
        break;
    case DP_ACTION_FB:
        sums->pair_ns += length_ns;
        break;
    case DP_SPAN_GRADIENT_SYNC:
        sums->comm_exposed_ns += length_ns;
        break;
    case DP_SPAN_OPTIMIZER:
        sums->optimizer_ns += length_ns;
        break;
    case DP_SPAN_EVALUATION:
        sums->evaluation_ns += length_ns;
        break;
    default:
        break;
    }
    self->last_end_ns = record->span.end_ns;
}

static void keep_record(struct utilisation *self, const struct dp_exec_record *record)
{
    if (self->count == self->capacity) {
        self->capacity = self->capacity == 0 ? POP_MAX : 2 * self->capacity;
        self->records = dp_realloc(self->records, self->capacity, sizeof(*self->records));
    }
    self->records[self->count++] = *record;
}

void utilisation_drain(struct utilisation *self)
{
    struct dp_exec_record records[POP_MAX];
    size_t count = POP_MAX;
    while (self->meter != NULL && count == POP_MAX) {
        count = dp_exec_meter_pop(self->meter, records, POP_MAX);
        for (size_t i = 0; i < count; i++) {
            add_record(self, &records[i]);
            if (records[i].span.kind != DP_SPAN_EVALUATION) { // which is of no step
                keep_record(self, &records[i]);
            }
        }
    }
}

void utilisation_sample(struct utilisation *self, Dp__V1__Utilisation *ret_sample)
{
    utilisation_drain(self);
    // Time is reported up to the end of the newest record, so that an action counts in the sample
    // in which it ended. A rank in the middle of a long action has nothing new to say and is asked
    // again about the same time.
    bool any = self->last_end_ns > self->until_ns;
    Dp__V1__Utilisation sample = self->sums;
    sample.period_ns = (any ? self->last_end_ns : dp_clock_realtime_ns()) - self->until_ns;
    int64_t used_ns = sample.forward_ns + sample.backward_ns + sample.weight_ns + sample.pair_ns +
                      sample.optimizer_ns + sample.comm_exposed_ns + sample.evaluation_ns;
    sample.idle_ns = sample.period_ns > used_ns ? sample.period_ns - used_ns : 0;
    int64_t cpu_ns = process_cpu_ns();
    sample.cpu_ns = cpu_ns - self->cpu_ns;
    self->cpu_ns = cpu_ns;
    struct dp_exec_levels levels;
    dp_exec_meter_levels(self->meter, &levels);
    sample.step = (uint64_t)levels.step;
    sample.live_chunks = levels.live_chunks;
    sample.peak_chunks = levels.peak_chunks;
    sample.live_bytes = levels.live_bytes;
    sample.peak_bytes = levels.peak_bytes;
    sample.step_ns = self->step_ns;
    sample.tokens_per_s =
        self->step_ns > 0 ? (double)self->step_tokens * (double)DP_NS_PER_S / (double)self->step_ns
                          : 0;
    if (any) {
        self->until_ns = self->last_end_ns;
    }
    dp__v1__utilisation__init(&self->sums);
    *ret_sample = sample;
}

size_t utilisation_take_step(struct utilisation *self, int64_t step, int32_t pipeline, size_t max,
                             Dp__V1__Span **ret_spans)
{
    size_t kept = 0;
    size_t taken = 0;
    Dp__V1__Span *spans = ret_spans == NULL ? NULL : dp_new_array(Dp__V1__Span, self->count);
    for (size_t i = 0; i < self->count; i++) {
        const struct dp_exec_record *record = &self->records[i];
        if (record->span.step > step) {
            self->records[kept++] = *record;
        } else if (spans != NULL && record->span.step == step && taken < max) {
            dp_wire_span_to_proto(&record->span, pipeline, &spans[taken++]);
        }
    }
    self->count = kept;
    if (ret_spans != NULL) {
        *ret_spans = spans;
    }
    return taken;
}
