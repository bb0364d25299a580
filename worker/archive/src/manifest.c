#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive_internal.h"
#include "dp/alloc.h"

// Of the document without its own "check".
static uint64_t hash_json(const json_t *json)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    return dp_safetensors_hash(text.bytes, text.length);
}

static void put_meta(json_t *json, const struct dp_archive_meta *meta)
{
    json_object_set_new(json, "step", json_integer(meta->step));
    json_object_set_new(json, "next_sample", json_integer(meta->next_sample));
    json_object_set_new(json, "sealed", json_integer(meta->sealed));
    json_object_set_new(json, "seed", dp_hex_to_json(meta->seed));
    json_object_set_new(json, "corpus_hash", dp_hex_to_json(meta->corpus_hash));
    json_object_set_new(json, "sequence", json_integer(meta->sequence));
    json_object_set_new(json, "holdout_samples", json_integer(meta->holdout_samples));
    json_object_set_new(json, "shuffle", json_boolean(meta->is_shuffled));
    json_object_set_new(json, "model", dp_model_to_json(&meta->model));
}

dp_status dp_archive_write_manifest(const char *directory, const struct dp_archive *archive,
                                    struct dp_error *err)
{
    const struct dp_archive_meta *meta = &archive->meta;
    DP_AUTO_JSON json_t *json = json_object();
    json_object_set_new(json, "schema", json_string(DP_ARCHIVE_SCHEMA));
    put_meta(json, meta);
    json_t *files = json_array();
    for (int32_t i = 0; i < archive->file_count; i++) {
        const struct dp_safetensors *file = &archive->files[i];
        json_array_append_new(
            files, json_pack("{s:s, s:I, s:o}", "file", strrchr(file->path, '/') + 1, "bytes",
                             (json_int_t)file->bytes, "header", dp_hex_to_json(file->header_hash)));
    }
    json_object_set_new(json, "files", files);
    json_object_set_new(json, "check", dp_hex_to_json(hash_json(json)));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    return dp_archive_put_file(directory, DP_ARCHIVE_MANIFEST, &text, err);
}

static dp_status check_document(json_t *json, const char *path, struct dp_error *err)
{
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, DP_ARCHIVE_SCHEMA) != 0) {
        return dp_fail(err, DP_UNSUPPORTED, "%s has schema \"%.40s\"; this version reads \"%s\"",
                       path, schema == NULL ? "" : schema, DP_ARCHIVE_SCHEMA);
    }
    uint64_t wanted;
    bool has_check = dp_hex_from_json(json_object_get(json, "check"), &wanted);
    json_object_del(json, "check");
    if (!has_check || hash_json(json) != wanted) {
        return dp_fail(err, DP_INVALID, "%s is damaged: its content does not match its hash", path);
    }
    return DP_OK;
}

static dp_status open_file(struct dp_archive *archive, const json_t *item, struct dp_error *err)
{
    const char *name = json_string_value(json_object_get(item, "file"));
    const json_t *bytes = json_object_get(item, "bytes");
    uint64_t header;
    if (name == NULL || strchr(name, '/') != NULL || !json_is_integer(bytes) ||
        !dp_hex_from_json(json_object_get(item, "header"), &header)) {
        return dp_fail(err, DP_INVALID, "%s/%s: file %d has no name, size or hash", archive->path,
                       DP_ARCHIVE_MANIFEST, archive->file_count);
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", archive->path, name);
    struct dp_safetensors *file = &archive->files[archive->file_count];
    dp_status status = dp_safetensors_open(path, file, err);
    if (status == DP_NOT_FOUND) {
        return dp_fail(err, DP_INVALID,
                       "%s is damaged: its file %s, which the manifest lists, is "
                       "not there",
                       archive->path, name);
    }
    if (status != DP_OK) {
        return status;
    }
    archive->file_count++;
    if (file->bytes != (uint64_t)json_integer_value(bytes) || file->header_hash != header) {
        return dp_fail(err, DP_INVALID,
                       "%s is damaged: its header or its size, %" PRIu64
                       " bytes, is not what the manifest says",
                       path, file->bytes);
    }
    return DP_OK;
}

static dp_status open_files(struct dp_archive *archive, const json_t *list, struct dp_error *err)
{
    if (json_array_size(list) == 0 || json_array_size(list) > DP_CHECKPOINT_FILES_MAX) {
        return dp_fail(err, DP_INVALID, "%s/%s lists %zu files", archive->path, DP_ARCHIVE_MANIFEST,
                       json_array_size(list));
    }
    archive->files = dp_new_array(struct dp_safetensors, json_array_size(list));
    dp_status status = DP_OK;
    for (size_t i = 0; i < json_array_size(list) && status == DP_OK; i++) {
        status = open_file(archive, json_array_get(list, i), err);
    }
    return status;
}

// Absent (0) in those of an earlier version.
static int64_t sealed_of(const json_t *json)
{
    return json_integer_value(json_object_get(json, "sealed"));
}

static dp_status read_meta(const json_t *json, const char *path, struct dp_archive_meta *meta,
                           struct dp_error *err)
{
    const json_t *step = json_object_get(json, "step");
    const json_t *next_sample = json_object_get(json, "next_sample");
    if (!json_is_integer(step) || !json_is_integer(next_sample) ||
        !dp_hex_from_json(json_object_get(json, "seed"), &meta->seed) ||
        !dp_hex_from_json(json_object_get(json, "corpus_hash"), &meta->corpus_hash)) {
        return dp_fail(err, DP_INVALID, "%s lacks step, next_sample, seed or corpus_hash", path);
    }
    meta->step = json_integer_value(step);
    meta->next_sample = json_integer_value(next_sample);
    meta->sealed = sealed_of(json);
    // Absent in those of an earlier version.
    meta->sequence = json_integer_value(json_object_get(json, "sequence"));
    meta->holdout_samples = json_integer_value(json_object_get(json, "holdout_samples"));
    meta->is_shuffled = json_is_true(json_object_get(json, "shuffle"));
    meta->is_trained = true;
    return dp_model_from_json(json_object_get(json, "model"), path, &meta->model, err);
}

void dp_archive_meta_write(const struct dp_archive_meta *meta, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *json = json_object();
    put_meta(json, meta);
    dp_json_write(json, 0, out);
}

dp_status dp_archive_meta_parse(const char *text, size_t length, const char *where,
                                struct dp_archive_meta *ret_meta, struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_archive_meta meta = {0};
    dp_status status =
        dp_json_parse(text, length, DP_CHECKPOINT_MANIFEST_BYTES_MAX, where, &json, err);
    if (status == DP_OK) {
        status = read_meta(json, where, &meta, err);
    }
    if (status == DP_OK && (meta.step < 0 || meta.next_sample < 0)) {
        status = dp_fail(err, DP_INVALID, "%s: its step or next_sample is below 0", where);
    }
    if (status == DP_OK) {
        *ret_meta = meta;
    }
    return status;
}

static dp_status read_document(const char *path, json_t **ret_json, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_archive_read_text(path, DP_CHECKPOINT_MANIFEST_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status = dp_json_parse(text.bytes, text.length, DP_CHECKPOINT_MANIFEST_BYTES_MAX, path,
                               ret_json, err);
    }
    return status == DP_OK ? check_document(*ret_json, path, err) : status;
}

int64_t dp_archive_sealed(const char *path)
{
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/%s", path, DP_ARCHIVE_MANIFEST);
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_error ignored;
    return read_document(manifest, &json, &ignored) == DP_OK ? sealed_of(json) : -1;
}

dp_status dp_archive_read_meta(const char *path, struct dp_archive_meta *ret_meta,
                               struct dp_error *err)
{
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/%s", path, DP_ARCHIVE_MANIFEST);
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_archive_meta meta = {0};
    dp_status status = read_document(manifest, &json, err);
    if (status == DP_OK) {
        status = read_meta(json, manifest, &meta, err);
    }
    if (status == DP_OK) {
        *ret_meta = meta;
    }
    return status;
}

dp_status dp_archive_read_manifest(struct dp_archive *archive, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", archive->path, DP_ARCHIVE_MANIFEST);
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = read_document(path, &json, err);
    if (status == DP_OK) {
        status = read_meta(json, path, &archive->meta, err);
    }
    if (status == DP_OK) {
        status = open_files(archive, json_object_get(json, "files"), err);
    }
    return status;
}
