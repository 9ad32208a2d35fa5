/* Makes the n-th system call of a kind that changes files fail, or the process die in front of it. Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

static long left = -1; /* calls until the fault; -1: none is planned */
static int number;     /* what the call fails with; 0: the process is killed */
static int has_fired;

void faults_arm(long at, int with) { left = at; number = with; has_fired = 0; }
int faults_fired(void) { return has_fired; }

static int fails(void) {
    if (left < 0 || left-- > 0) return 0;
    has_fired = 1;
    if (number == 0) kill(getpid(), SIGKILL);
    errno = number;
    return 1;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

ssize_t write(int file, const void *content, size_t size) {
    if (fails()) return -1;
    /* A kill may come when half of it is written: so only half is, each time. */
    return NEXT(ssize_t (*)(int, const void *, size_t), "write")(file, content, left >= 0 && size > 4096 ? size / 2 : size);
}
int fsync(int file) { return fails() ? -1 : NEXT(int (*)(int), "fsync")(file); }
int rename(const char *from, const char *to) {
    return fails() ? -1 : NEXT(int (*)(const char *, const char *), "rename")(from, to);
}
int unlink(const char *path) { return fails() ? -1 : NEXT(int (*)(const char *), "unlink")(path); }

static int is_opened(const char *name, const char *path, int flags, mode_t mode) {
    if ((flags & (O_WRONLY | O_RDWR)) && fails()) return -1;
    return NEXT(int (*)(const char *, int, ...), name)(path, flags, mode);
}
#define OPEN(name)                                           \
    int name(const char *path, int flags, ...) {             \
        va_list rest;                                        \
        va_start(rest, flags);                               \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                        \
        return is_opened(#name, path, flags, mode);          \
    }
OPEN(open)
OPEN(open64)
