/* A file beside the run that is only appended to, through a descriptor that the script does not meddle with. */
#define _GNU_SOURCE
#include "log_file.h"
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define LOWEST_NUMBER 200 /* a script that closes the descriptors it knows of does not close this one */

int detrain_open_note(struct note *note, const char *path, uint64_t most_bytes) {
    detrain_close_note(note);
    int opened = NEXT(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) return 0;
    int high = fcntl(opened, F_DUPFD_CLOEXEC, LOWEST_NUMBER);
    close(opened);
    if (high < 0 || fstat(high, &note->file) != 0) {
        if (high >= 0) close(high);
        return 0;
    }
    note->room = (off_t)most_bytes - note->file.st_size;
    note->owner = NEXT(getpid)();
    note->number = high;
    return 1;
}

static int is_there(const struct note *note) {
    struct stat now;
    return fstat(note->number, &now) == 0 && now.st_ino == note->file.st_ino && now.st_dev == note->file.st_dev;
}

void detrain_close_note(struct note *note) {
    if (note->number > 0 && is_there(note)) close(note->number);
    note->number = 0;
}

int detrain_append(struct note *note, const struct iovec *parts, int num_parts) {
    int before = errno;
    size_t num_bytes = 0;
    for (int i = 0; i < num_parts; i++) num_bytes += parts[i].iov_len;
    if (note->number <= 0 || NEXT(getpid)() != note->owner) return 0;
    if ((note->room -= (off_t)num_bytes) < 0) return 0;
    int is_whole = is_there(note) && writev(note->number, parts, num_parts) == (ssize_t)num_bytes;
    errno = before;
    return is_whole;
}
