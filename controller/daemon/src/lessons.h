// What runs teach about their nodes: predicted beside measured, kept as corrections of profiles.
//
// Corrections are read at a start and kept here, by node; a job's lesson is a row of its own.
#pragma once

#include "daemon.h"
#include "dp/correction.h"
#include "planning.h"

dp_status lessons_load(struct daemon *daemon, struct dp_error *err);
void lessons_free(struct daemon *daemon);
// Corrects nodes->profile by what is known of the node it came from.
void lessons_apply(struct daemon *daemon, struct plan_nodes *nodes);
// The job was planned with nodes->correction and nodes->profile.
void lessons_planned(struct daemon *daemon, uint64_t job, const struct plan_nodes *nodes,
                     const struct dp_job_spec *spec, const struct dp_plan *plan);
void lessons_step(struct daemon *daemon, const struct dp_report *report);
// Learns when the job has ended, once.
void lessons_job(struct daemon *daemon, uint64_t job);
// NULL when nothing is known.
Dp__V1__Lesson *lessons_message(struct daemon *daemon, uint64_t job, struct dp_arena *arena);
// As the next plan takes it; false when the node has none.
bool lessons_profile(struct daemon *daemon, const struct dp_node_record *node,
                     struct dp_profile *ret_profile);
