/* /dev/urandom, /dev/random and /proc/sys/kernel/random/uuid, however they are opened: a file in memory that holds the next bytes of
 * the stream, or a line of text made of them.
 *
 * A file rather than an answered read(): read() would cost every program a call more for each read, and stdio,
 * iostreams and mmap never pass through it. The price is an end of file after DEVICE_BYTES per opening. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICE_BYTES (1 << 20) /* written in about a millisecond; the largest reader seen takes 8 KiB */
#define CALLER __builtin_return_address(0)

#define UUID_BYTES 37 /* with the end of the line */

static int is_uuid(const char *path) { return strcmp(path, "/proc/sys/kernel/random/uuid") == 0; }

static int is_device(const char *path) {
    return path != NULL && (strcmp(path, "/dev/urandom") == 0 || strcmp(path, "/dev/random") == 0 || is_uuid(path));
}

/* Of version 4 (RFC 9562), as the kernel writes it. */
static void write_uuid(char *to) {
    unsigned char drawn[16];
    detrain_fill(drawn, sizeof drawn);
    drawn[6] = (drawn[6] & 0x0f) | 0x40;
    drawn[8] = (drawn[8] & 0x3f) | 0x80;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
        *to++ = digits[drawn[i] >> 4];
        *to++ = digits[drawn[i] & 15];
    }
    *to = '\n';
}

/* Only a reader is answered: a writer stirs the kernel's pool, which is none of our business. */
static int answers(const char *path, int flags, const void *caller) {
    return is_device(path) && (flags & O_ACCMODE) != O_WRONLY && !(flags & O_PATH) && detrain_answers(caller);
}

static void close_quietly(int fd) {
    int before = errno;
    close(fd);
    errno = before;
}

static int device(const char *path, int close_on_exec) {
    int before = errno;
    size_t num_bytes = is_uuid(path) ? UUID_BYTES : DEVICE_BYTES;
    int fd = memfd_create("detrain-entropy", MFD_ALLOW_SEALING | (close_on_exec ? MFD_CLOEXEC : 0));
    if (fd < 0) return -1;
    void *bytes = MAP_FAILED;
    if (ftruncate(fd, (off_t)num_bytes) == 0) bytes = mmap(NULL, num_bytes, PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        close_quietly(fd);
        return -1;
    }
    if (is_uuid(path))
        write_uuid(bytes);
    else
        detrain_fill(bytes, num_bytes);
    munmap(bytes, num_bytes);
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    errno = before;
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
        if (answers(path, flags, CALLER)) return device(path, flags & O_CLOEXEC);      \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(detrain_path(path, buffer), flags, mode);                    \
    }

#define ANSWER_OPENAT(name)                                                            \
    EXPORT int name(int directory, const char *path, int flags, ...) {                 \
        READ_MODE(flags, mode)                                                         \
        if (answers(path, flags, CALLER)) return device(path, flags & O_CLOEXEC);      \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(directory, detrain_path(path, buffer), flags, mode);         \
    }

#define ANSWER_FOPEN(name)                                                             \
    EXPORT FILE *name(const char *path, const char *mode) {                            \
        char buffer[PATH_MAX];                                                         \
        int is_reader = mode != NULL && mode[0] == 'r' && strchr(mode, '+') == NULL;   \
        if (!is_reader || !answers(path, O_RDONLY, CALLER))                            \
            return NEXT(name)(detrain_path(path, buffer), mode);                       \
        int fd = device(path, strchr(mode, 'e') != NULL);                              \
        FILE *file = fd < 0 ? NULL : fdopen(fd, mode);                                 \
        if (fd >= 0 && file == NULL) close_quietly(fd);                                \
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
        if (answers(path, flags, CALLER)) return device(path, flags & O_CLOEXEC);      \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(detrain_path(path, buffer), flags);                          \
    }

#define ANSWER_OPENAT_2(name)                                                          \
    EXPORT int name(int directory, const char *path, int flags) {                      \
        if (answers(path, flags, CALLER)) return device(path, flags & O_CLOEXEC);      \
        char buffer[PATH_MAX];                                                         \
        return NEXT(name)(directory, detrain_path(path, buffer), flags);               \
    }

ANSWER_OPEN_2(__open_2)
ANSWER_OPEN_2(__open64_2)
ANSWER_OPENAT_2(__openat_2)
ANSWER_OPENAT_2(__openat64_2)
