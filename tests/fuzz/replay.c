// Runs a target on every file of the directories that are named, and on nothing: what the corpus
// once found stays found where libFuzzer is not at hand.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/buf.h"
#include "dp/cleanup.h"
#include "fuzz.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static int run_file(const char *path)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_error err = {0};
    if (dp_read_file(path, FILE_BYTES_MAX, &text, &err) != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    // Heap memory of just this size, so that reading one byte more is noticed.
    uint8_t *exact = malloc(text.length == 0 ? 1 : text.length);
    memcpy(exact, text.length == 0 ? "" : text.bytes, text.length);
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(exact, text.length);
    free(exact);
    return 0;
}

static int run_directory(const char *path, int *files)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char file[1024];
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.') {
            failed |= run_file(file);
            ++*files;
        }
    }
    closedir(directory);
    return failed;
}

int main(int argc, char **argv)
{
    int files = 0;
    int failed = LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        failed |= run_directory(argv[i], &files);
    }
    printf("%d files\n", files);
    return failed != 0 || files == 0;
}
