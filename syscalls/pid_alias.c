/* A script that was told the first attempt's process id (pid_answer.c) may use it: to signal itself, to read its memory in /proc. The
 * calls here take that number for this process. */
#define _GNU_SOURCE
#include "stream.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static pid_t answered, real; /* a forked child keeps both: the numbers that it holds are its parent's */

/* From now on ID means this process; 0 ends that. */
EXPORT void detrain_pid_alias(int id);

void detrain_pid_alias(int id) {
    real = NEXT(getpid)();
    answered = id == real ? 0 : id;
}

static pid_t translated(pid_t id) {
    if (answered == 0) return id;
    return id == answered ? real : id == -answered ? -real : id; /* a negative id means a group */
}

/* PATH, or what it means where it begins with /proc/<the id>; BUFFER has room for PATH_MAX bytes. */
const char *detrain_path(const char *path, char *buffer) {
    if (answered == 0 || path == NULL || strncmp(path, "/proc/", 6) != 0) return path;
    char *rest;
    int before = errno;
    long id = strtol(path + 6, &rest, 10);
    errno = before; /* a name of too many digits is somebody else's */
    if (id != answered || rest == path + 6 || (*rest != '/' && *rest != '\0')) return path;
    return snprintf(buffer, PATH_MAX, "/proc/%d%s", real, rest) < PATH_MAX ? buffer : path;
}

EXPORT int kill(pid_t id, int number) { return NEXT(kill)(translated(id), number); }

EXPORT int getpriority(__priority_which_t which, id_t who) {
    return NEXT(getpriority)(which, which == PRIO_PROCESS ? (id_t)translated((pid_t)who) : who);
}

EXPORT int setpriority(__priority_which_t which, id_t who, int value) {
    return NEXT(setpriority)(which, which == PRIO_PROCESS ? (id_t)translated((pid_t)who) : who, value);
}

EXPORT int sched_getaffinity(pid_t id, size_t num_bytes, cpu_set_t *out) {
    return NEXT(sched_getaffinity)(translated(id), num_bytes, out);
}

EXPORT int sched_setaffinity(pid_t id, size_t num_bytes, const cpu_set_t *set) {
    return NEXT(sched_setaffinity)(translated(id), num_bytes, set);
}

EXPORT int prlimit64(pid_t id, __rlimit_resource_t what, const struct rlimit64 *set, struct rlimit64 *out) {
    return NEXT(prlimit64)(translated(id), what, set, out);
}

#define LOOK(name, parameters, ...)              \
    EXPORT int name parameters {                 \
        char buffer[PATH_MAX];                   \
        path = detrain_path(path, buffer);       \
        return NEXT(name)(__VA_ARGS__);          \
    }

LOOK(access, (const char *path, int mode), path, mode)
LOOK(stat, (const char *path, struct stat *out), path, out)
LOOK(stat64, (const char *path, struct stat64 *out), path, out)
LOOK(lstat, (const char *path, struct stat *out), path, out)
LOOK(lstat64, (const char *path, struct stat64 *out), path, out)
LOOK(fstatat, (int folder, const char *path, struct stat *out, int flags), folder, path, out, flags)
LOOK(fstatat64, (int folder, const char *path, struct stat64 *out, int flags), folder, path, out, flags)

EXPORT ssize_t readlink(const char *path, char *out, size_t num_bytes) {
    char buffer[PATH_MAX];
    return NEXT(readlink)(detrain_path(path, buffer), out, num_bytes);
}

EXPORT DIR *opendir(const char *path) {
    char buffer[PATH_MAX];
    return NEXT(opendir)(detrain_path(path, buffer));
}
