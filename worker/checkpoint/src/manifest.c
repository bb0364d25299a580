#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/rand.h"
#include "format.h"

#define MANIFEST_SCHEMA "dp.checkpoint/1"

void dp_checkpoint_manifest_deinit(struct manifest *manifest)
{
    for (int32_t i = 0; i < manifest->count; i++) {
        dp_checkpoint_shard_deinit(&manifest->shards[i]);
    }
    free(manifest->shards);
    *manifest = (struct manifest){0};
}

// Of the document without its own "check".
static uint64_t hash_json(const json_t *json)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    return dp_hash64(text.bytes, text.length, 0);
}

dp_status dp_checkpoint_manifest_write(const char *directory, const struct manifest *manifest,
                                       struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = json_object();
    json_object_set_new(json, "schema", json_string(MANIFEST_SCHEMA));
    json_object_set_new(json, "step", json_integer(manifest->meta.step));
    json_object_set_new(json, "next_sample", json_integer(manifest->meta.next_sample));
    json_object_set_new(json, "seed", dp_checkpoint_hex_to_json(manifest->meta.seed));
    json_object_set_new(json, "corpus_hash", dp_checkpoint_hex_to_json(manifest->meta.corpus_hash));
    json_object_set_new(json, "model", dp_checkpoint_model_to_json(&manifest->meta.model));
    json_t *shards = json_array();
    for (int32_t i = 0; i < manifest->count; i++) {
        json_array_append_new(shards, json_pack("{s:s, s:I}", "file", manifest->shards[i].file,
                                                "bytes", (json_int_t)manifest->shards[i].bytes));
    }
    json_object_set_new(json, "shards", shards);
    json_object_set_new(json, "check", dp_checkpoint_hex_to_json(hash_json(json)));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 2, &text);
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, MANIFEST_NAME);
    return dp_write_file(path, text.bytes, text.length, err);
}

static dp_status check_document(json_t *json, const char *path, struct dp_error *err)
{
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (schema == NULL || strcmp(schema, MANIFEST_SCHEMA) != 0) {
        return dp_fail(err, DP_UNSUPPORTED, "%s has schema \"%s\"; this version reads \"%s\"", path,
                       schema == NULL ? "" : schema, MANIFEST_SCHEMA);
    }
    uint64_t wanted;
    bool has_check = dp_checkpoint_hex_from_json(json_object_get(json, "check"), &wanted);
    json_object_del(json, "check");
    if (!has_check || hash_json(json) != wanted) {
        return dp_fail(err, DP_INVALID, "%s is damaged: its content does not match its hash", path);
    }
    return DP_OK;
}

static dp_status read_shards(const json_t *list, const char *path, struct manifest *manifest,
                             struct dp_error *err)
{
    manifest->shards = dp_new_array(struct shard, json_array_size(list));
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *file = json_string_value(json_object_get(item, "file"));
        const json_t *bytes = json_object_get(item, "bytes");
        if (file == NULL || strchr(file, '/') != NULL || !json_is_integer(bytes)) {
            return dp_fail(err, DP_INVALID, "%s: shard %zu has no file name and size", path, i);
        }
        manifest->shards[i].file = dp_strdup(file);
        manifest->shards[i].bytes = (uint64_t)json_integer_value(bytes);
        manifest->count++;
    }
    return DP_OK;
}

dp_status dp_checkpoint_manifest_read(const char *directory, struct manifest *ret_manifest,
                                      struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, MANIFEST_NAME);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_read_file(path, MANIFEST_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status = dp_json_parse(text.bytes, text.length, MANIFEST_BYTES_MAX, path, &json, err);
    }
    if (status == DP_OK) {
        status = check_document(json, path, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_checkpoint_manifest_deinit) struct manifest manifest = {0};
    const json_t *step = json_object_get(json, "step");
    const json_t *next_sample = json_object_get(json, "next_sample");
    if (!json_is_integer(step) || !json_is_integer(next_sample) ||
        !dp_checkpoint_hex_from_json(json_object_get(json, "seed"), &manifest.meta.seed) ||
        !dp_checkpoint_hex_from_json(json_object_get(json, "corpus_hash"),
                                     &manifest.meta.corpus_hash)) {
        return dp_fail(err, DP_INVALID, "%s lacks step, next_sample, seed or corpus_hash", path);
    }
    manifest.meta.step = json_integer_value(step);
    manifest.meta.next_sample = json_integer_value(next_sample);
    status = dp_checkpoint_model_from_json(json_object_get(json, "model"), path,
                                           &manifest.meta.model, err);
    if (status == DP_OK) {
        status = read_shards(json_object_get(json, "shards"), path, &manifest, err);
    }
    if (status == DP_OK) {
        *ret_manifest = manifest;
        manifest = (struct manifest){0};
    }
    return status;
}
