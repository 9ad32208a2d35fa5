/* A program started by this one gets a stream of its own: without this every spawned worker would begin at the same
 * byte, and two of them would draw the same uuid4().
 *
 * The new seed travels in the environment. Runs between vfork() and exec, on the parent's memory: allocates on the
 * stack only. That the count of children is then the parent's own is what makes the ordinals differ. */
#define _GNU_SOURCE
#include "stream.h"

#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PREFIX SEED_VARIABLE "="
#define PREFIX_BYTES (sizeof PREFIX - 1)
#define NUM_DIGITS 16 /* a 64-bit key in hexadecimal */

typedef int exec_function(const char *, char *const[], char *const[]);

static size_t num_entries(char *const environment[]) {
    size_t count = 0;
    while (environment != NULL && environment[count] != NULL) count++;
    return count;
}

/* COPY: room for num_entries + 1 pointers; ENTRY: for the new setting. An environment without a seed stays without. */
static void give_seed(char *copy[], char entry[], char *const environment[], uint64_t key) {
    size_t i = 0;
    memcpy(entry, PREFIX, PREFIX_BYTES);
    for (size_t digit = 0; digit < NUM_DIGITS; digit++)
        entry[PREFIX_BYTES + digit] = "0123456789abcdef"[(key >> (60 - 4 * digit)) & 15];
    entry[PREFIX_BYTES + NUM_DIGITS] = '\0';
    for (; environment != NULL && environment[i] != NULL; i++)
        copy[i] = strncmp(environment[i], PREFIX, PREFIX_BYTES) == 0 ? entry : environment[i];
    copy[i] = NULL;
}

static _Atomic int keeps_seed;

/* The program that this process becomes next is no child of it: it begins the attempt again, on the streams that it began with. */
EXPORT void detrain_keep_seed(void) { keeps_seed = 1; }

static int exec_with_seed(exec_function *next, const char *path, char *const argv[], char *const environment[]) {
    if (keeps_seed || !detrain_is_active()) return next(path, argv, environment);
    uint64_t ordinal = detrain_next_child();
    char *copy[num_entries(environment) + 1];
    char entry[PREFIX_BYTES + NUM_DIGITS + 1];
    give_seed(copy, entry, environment, detrain_child_key(ordinal));
    int result = next(path, argv, copy);
    detrain_forget_child(ordinal);
    return result;
}

EXPORT int execve(const char *path, char *const argv[], char *const environment[]) {
    return exec_with_seed(NEXT(execve), path, argv, environment);
}

EXPORT int execv(const char *path, char *const argv[]) { return exec_with_seed(NEXT(execve), path, argv, environ); }

EXPORT int execvpe(const char *file, char *const argv[], char *const environment[]) {
    return exec_with_seed(NEXT(execvpe), file, argv, environment);
}

EXPORT int execvp(const char *file, char *const argv[]) { return exec_with_seed(NEXT(execvpe), file, argv, environ); }

#define ANSWER_SPAWN(name)                                                                                        \
    EXPORT int name(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                      \
                    const posix_spawnattr_t *attributes, char *const argv[], char *const environment[]) {         \
        if (!detrain_is_active()) return NEXT(name)(pid, path, actions, attributes, argv, environment);           \
        uint64_t ordinal = detrain_next_child();                                                                  \
        char *copy[num_entries(environment) + 1];                                                                 \
        char entry[PREFIX_BYTES + NUM_DIGITS + 1];                                                                \
        give_seed(copy, entry, environment, detrain_child_key(ordinal));                                          \
        int error = NEXT(name)(pid, path, actions, attributes, argv, copy);                                       \
        if (error != 0) detrain_forget_child(ordinal);                                                            \
        return error;                                                                                             \
    }

ANSWER_SPAWN(posix_spawn)
ANSWER_SPAWN(posix_spawnp)
