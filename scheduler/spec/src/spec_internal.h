// Shared by the files of this module.
#pragma once

#include "dp/spec.h"
#include "dp/toml.h"
#include "keys.h"

// All sections of job.toml; the last has name NULL. The first ("") is the top level.
extern const struct dp_section dp_job_sections[];

// `directory`/`path`; the caller frees it.
char *dp_path_join(const char *directory, const char *path);

// What the keys of [model] leave open. `table` (may be NULL) says which keys were given by hand.
void dp_model_complete(struct dp_model_spec *model, const struct dp_toml_node *table);
// The count of all parameters, MTP layers included, as a double that no shape within the ranges of
// the keys overflows.
double dp_model_estimate(const struct dp_model_spec *model);
// Rules between keys; root (may be NULL) gives the positions.
void dp_job_check(const struct dp_job_spec *spec, const struct dp_toml_node *root,
                  struct dp_diags *diags);
