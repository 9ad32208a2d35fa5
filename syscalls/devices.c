/* /dev/urandom and /dev/random, however they are opened: a file in memory that holds the next bytes of the stream.
 *
 * A file rather than an answered read(): read() would cost every program a call more for each read, and stdio,
 * iostreams and mmap never pass through it. The price is an end of file after DEVICE_BYTES per opening. */
#define _GNU_SOURCE
#include "stream.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICE_BYTES (1 << 20) /* written in about a millisecond; the largest reader seen takes 8 KiB */
#define CALLER __builtin_return_address(0)

static int is_device(const char *path) {
    return path != NULL && (strcmp(path, "/dev/urandom") == 0 || strcmp(path, "/dev/random") == 0);
}

/* Only a reader is answered: a writer stirs the kernel's pool, which is none of our business. */
static int answers(const char *path, int flags, const void *caller) {
    return is_device(path) && (flags & O_ACCMODE) != O_WRONLY && !(flags & O_PATH) && detrain_answers(caller);
}

static int device(int close_on_exec) {
    int fd = memfd_create("detrain-entropy", MFD_ALLOW_SEALING | (close_on_exec ? MFD_CLOEXEC : 0));
    if (fd < 0) return -1;
    void *bytes = MAP_FAILED;
    if (ftruncate(fd, DEVICE_BYTES) == 0) bytes = mmap(NULL, DEVICE_BYTES, PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        close(fd);
        return -1;
    }
    detrain_fill(bytes, DEVICE_BYTES);
    munmap(bytes, DEVICE_BYTES);
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    return fd;
}

/* The mode is there only when a file may be created. */
#define READ_MODE(flags, mode)                                                         \
    mode_t mode = 0;                                                                   \
    if (((flags) & O_CREAT) || ((flags) & __O_TMPFILE)) {                              \
        va_list rest;                                                                  \
        va_start(rest, flags);                                                         \
        mode = va_arg(rest, mode_t);                                                   \
        va_end(rest);                                                                  \
    }

#define ANSWER_OPEN(name)                                                              \
    EXPORT int name(const char *path, int flags, ...) {                                \
        READ_MODE(flags, mode)                                                         \
        if (answers(path, flags, CALLER)) return device(flags & O_CLOEXEC);            \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(detrain_path(path, buffer), flags, mode);                    \
    }

#define ANSWER_OPENAT(name)                                                            \
    EXPORT int name(int directory, const char *path, int flags, ...) {                 \
        READ_MODE(flags, mode)                                                         \
        if (answers(path, flags, CALLER)) return device(flags & O_CLOEXEC);            \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(directory, detrain_path(path, buffer), flags, mode);         \
    }

#define ANSWER_FOPEN(name)                                                             \
    EXPORT FILE *name(const char *path, const char *mode) {                            \
        char buffer[PATH_MAX];                                                         \
        int is_reader = mode != NULL && mode[0] == 'r' && strchr(mode, '+') == NULL;   \
        if (!is_reader || !answers(path, O_RDONLY, CALLER))                            \
            return NEXT(name)(detrain_path(path, buffer), mode);                       \
        int fd = device(strchr(mode, 'e') != NULL);                                    \
        FILE *file = fd < 0 ? NULL : fdopen(fd, mode);                                 \
        if (fd >= 0 && file == NULL) close(fd);                                        \
        return file;                                                                   \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnonnull-compare" /* a caller may break the declaration's promise; we must not crash */
ANSWER_OPEN(open)
ANSWER_OPEN(open64)
ANSWER_OPENAT(openat)
ANSWER_OPENAT(openat64)
ANSWER_FOPEN(fopen)
ANSWER_FOPEN(fopen64)
#pragma GCC diagnostic pop

/* What open() becomes in a program compiled with _FORTIFY_SOURCE: never with a mode. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int directory, const char *path, int flags);
int __openat64_2(int directory, const char *path, int flags);

#define ANSWER_OPEN_2(name)                                                            \
    EXPORT int name(const char *path, int flags) {                                     \
        if (answers(path, flags, CALLER)) return device(flags & O_CLOEXEC);            \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(detrain_path(path, buffer), flags);                          \
    }

#define ANSWER_OPENAT_2(name)                                                          \
    EXPORT int name(int directory, const char *path, int flags) {                      \
        if (answers(path, flags, CALLER)) return device(flags & O_CLOEXEC);            \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(directory, detrain_path(path, buffer), flags);               \
    }

ANSWER_OPEN_2(__open_2)
ANSWER_OPEN_2(__open64_2)
ANSWER_OPENAT_2(__openat_2)
ANSWER_OPENAT_2(__openat64_2)
