// A directory that a test makes and removes again with all that is in it.
#pragma once

#define TEMPORARY_MAX 64

void temporary_make(char ret_path[TEMPORARY_MAX]);
void temporary_remove(const char *path);
