/* What the script prints is noted beside the run as it goes by, for `detrain report`: no object of Python's is replaced for that. */
#define _GNU_SOURCE
#include "log_file.h"
#include "stream.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define MARK 0 /* in place of a stream: the launcher's word on where the run is */

struct head {
    double at_s; /* since 1970 */
    uint64_t batches; /* begun in this run */
    uint32_t stream; /* 1 standard output, 2 standard error */
    uint32_t num_bytes;
};

static struct note note;
static const uint64_t *batches;

/* Note what is written to standard output and error, in PATH, until it has MOST_BYTES; returns 1 if it could be opened. NULL: no more.
 * COUNTER is read at each write: the number of the batch that runs. */
EXPORT int detrain_record_output(const char *path, uint64_t most_bytes, const uint64_t *counter);

/* Note a word of the launcher's between what was printed before and after; returns 0 if it was not. */
EXPORT int detrain_mark_printed(const char *text);

int detrain_record_output(const char *path, uint64_t most_bytes, const uint64_t *counter) {
    detrain_close_note(&note);
    batches = counter;
    return path == NULL || detrain_open_note(&note, path, most_bytes);
}

static int append(uint32_t stream, const void *text, size_t num_bytes) {
    struct timespec at;
    if (num_bytes > UINT32_MAX) return 0;
    NEXT(clock_gettime)(CLOCK_REALTIME, &at);
    struct head head = {(double)at.tv_sec + (double)at.tv_nsec / 1e9, *batches, stream, (uint32_t)num_bytes};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)text, num_bytes}};
    return detrain_append(&note, parts, 2);
}

int detrain_mark_printed(const char *text) { return note.number > 0 && append(MARK, text, strlen(text)); }

EXPORT ssize_t write(int number, const void *text, size_t num_bytes) {
    ssize_t written = NEXT(write)(number, text, num_bytes);
    if (note.number > 0 && (number == STDOUT_FILENO || number == STDERR_FILENO) && written > 0)
        append((uint32_t)number, text, (size_t)written);
    return written;
}
