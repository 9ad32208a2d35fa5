/* A file beside the run that is only appended to. */
#ifndef DETRAIN_LOG_FILE_H
#define DETRAIN_LOG_FILE_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

struct note {
    int number; /* of the descriptor; 0: not open */
    struct stat file; /* as it was opened: the number may come to mean another one */
    off_t room;
    pid_t owner; /* children note nothing */
};

/* Open PATH to have at most MOST_BYTES; returns 0 if it cannot be. */
int detrain_open_note(struct note *note, const char *path, uint64_t most_bytes);
void detrain_close_note(struct note *note);

/* Append the parts as one; returns 0 if they were not. Leaves errno alone. */
int detrain_append(struct note *note, const struct iovec *parts, int num_parts);

#endif
