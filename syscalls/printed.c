/* What the script prints is noted beside the run as it goes by, for `detrain report`: no object of Python's is replaced for that. */
#define _GNU_SOURCE
#include "note.h"
#include "stream.h"

#include <time.h>
#include <unistd.h>

struct head {
    double at_s; /* since 1970 */
    uint32_t stream; /* 1 standard output, 2 standard error */
    uint32_t num_bytes;
};

static struct note note;

/* Note what is written to standard output and error, in PATH, until it has MOST_BYTES; returns 1 if it could be opened. NULL: no more. */
EXPORT int detrain_note_printed(const char *path, uint64_t most_bytes);

int detrain_note_printed(const char *path, uint64_t most_bytes) {
    detrain_close_note(&note);
    return path == NULL || detrain_open_note(&note, path, most_bytes);
}

static void append(uint32_t stream, const void *text, size_t num_bytes) {
    struct timespec at;
    if (num_bytes > UINT32_MAX) return;
    NEXT(clock_gettime)(CLOCK_REALTIME, &at);
    struct head head = {(double)at.tv_sec + (double)at.tv_nsec / 1e9, stream, (uint32_t)num_bytes};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)text, num_bytes}};
    detrain_append(&note, parts, 2);
}

EXPORT ssize_t write(int number, const void *text, size_t num_bytes) {
    ssize_t written = NEXT(write)(number, text, num_bytes);
    if (note.number > 0 && (number == STDOUT_FILENO || number == STDERR_FILENO) && written > 0)
        append((uint32_t)number, text, (size_t)written);
    return written;
}
