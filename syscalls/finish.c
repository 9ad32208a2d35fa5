/* The last act of a process that ends by itself: one rename, after the interpreter has flushed and closed everything.

   The launcher prepares a file that says that the run has come to its end; it gets its name only here, so that a run which is killed
   while the interpreter shuts down (open files not yet flushed) is still a run to be resumed. */

#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "stream.h"

#define LONGEST_PATH 4096

static char prepared[LONGEST_PATH];
static char final[LONGEST_PATH];
static pid_t owner; /* forked children inherit the paths but are not the run */

/* Returns 1 if the rename will be made, 0 if a path is too long. */
EXPORT int detrain_rename_at_exit(const char *from, const char *to);

int detrain_rename_at_exit(const char *from, const char *to)
{
    if (strlen(from) >= LONGEST_PATH || strlen(to) >= LONGEST_PATH)
        return 0;
    strcpy(prepared, from);
    strcpy(final, to);
    owner = getpid();
    return 1;
}

__attribute__((destructor)) static void rename_now(void)
{
    if (owner != 0 && owner == getpid())
        (void)!rename(prepared, final);
}
