/* What the script prints is noted beside the run as it goes by, for `detrain report`: no object of Python's is replaced for that. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOWEST_NUMBER 200 /* of the descriptor: a script that closes those it knows of does not close this one */

struct head {
    double at_s; /* since 1970 */
    uint32_t stream; /* 1 standard output, 2 standard error */
    uint32_t num_bytes;
};

static int note = -1;
static struct stat file; /* as it was opened: the number may come to mean another one */
static off_t room;
static pid_t owner; /* children print for themselves */

/* Note what is written to standard output and error, in PATH, until it has MOST_BYTES; returns 1 if it could be opened. NULL: no more. */
EXPORT int detrain_note_printed(const char *path, uint64_t most_bytes);

int detrain_note_printed(const char *path, uint64_t most_bytes) {
    if (note >= 0) close(note);
    note = -1;
    if (path == NULL) return 1;
    int opened = NEXT(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) return 0;
    int high = fcntl(opened, F_DUPFD_CLOEXEC, LOWEST_NUMBER);
    close(opened);
    if (high < 0 || fstat(high, &file) != 0) {
        if (high >= 0) close(high);
        return 0;
    }
    room = (off_t)most_bytes - file.st_size;
    owner = NEXT(getpid)();
    note = high;
    return 1;
}

static void append(uint32_t stream, const void *text, size_t num_bytes) {
    struct stat now;
    struct timespec at;
    struct head head = {.stream = stream, .num_bytes = (uint32_t)num_bytes};
    if (num_bytes > UINT32_MAX || (room -= (off_t)(num_bytes + sizeof head)) < 0 || NEXT(getpid)() != owner) return;
    if (fstat(note, &now) != 0 || now.st_ino != file.st_ino || now.st_dev != file.st_dev) return;
    NEXT(clock_gettime)(CLOCK_REALTIME, &at);
    head.at_s = (double)at.tv_sec + (double)at.tv_nsec / 1e9;
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)text, num_bytes}};
    (void)!writev(note, parts, 2);
}

EXPORT ssize_t write(int number, const void *text, size_t num_bytes) {
    ssize_t written = NEXT(write)(number, text, num_bytes);
    if (note >= 0 && (number == STDOUT_FILENO || number == STDERR_FILENO) && written > 0) {
        int before = errno;
        append((uint32_t)number, text, (size_t)written);
        errno = before;
    }
    return written;
}
