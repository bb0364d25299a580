// Backup: the database as a file, while it is in use.
#pragma once

#include "daemon.h"

extern const struct dp_rpc_handler backup_handler;
bool backups_is_token(uint64_t token);
void backups_pump(struct daemon *daemon);
void backups_on_stored(struct daemon *daemon, uint64_t token, const struct dp_error *err);
// Takes away what a process before this one left.
void backups_start(struct daemon *daemon);
void backups_stop(struct daemon *daemon);
