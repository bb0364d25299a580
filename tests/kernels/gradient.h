// Finite differences in double: a gradient against five-point central differences of an objective.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/rand.h"

// Sets `count` values to a standard normal draw times `scale`.
static inline void fill_normal(struct dp_rand *rand, double *values, int64_t count, double scale)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = scale * dp_rand_normal(rand);
    }
}

// As assert_float_equal, in double; NaN is near nothing.
static inline void assert_near(double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance)) {
        fail_msg("%.17g is not %.17g", got, wanted);
    }
}

static inline double weighted_sum(const double *r, const double *y, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += r[i] * y[i];
    }
    return sum;
}

static inline double difference(double *x, double h, double (*objective)(void *), void *context)
{
    const double at = *x;
    double sum = 0;
    const double offsets[] = {-2, -1, 1, 2}, weights[] = {1, -8, 8, -1};
    for (int i = 0; i < 4; i++) {
        *x = at + offsets[i] * h;
        sum += weights[i] * objective(context);
    }
    *x = at;
    return sum / (12 * h);
}

// Every `stride`th element of grad against the differences of the objective over x.
static inline void assert_gradient(const char *what, double *x, const double *grad, int64_t count,
                                   int64_t stride, double (*objective)(void *), void *context)
{
    double largest = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        largest = fabs(grad[i]) > largest ? fabs(grad[i]) : largest;
    }
    for (int64_t i = 0; i < count; i += stride) {
        // Small steps seldom reach over a change of a router's choice, where there is no gradient.
        const double expected = difference(&x[i], 1e-4, objective, context);
        // NaN fails too.
        if (!(fabs(grad[i] - expected) <= 1e-7 * largest + 1e-6 * fabs(expected))) {
            fail_msg("%s[%lld]: %.12g, by differences %.12g", what, (long long)i, grad[i],
                     expected);
        }
    }
}
