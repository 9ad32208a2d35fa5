/* A folder that an earlier attempt of the run has made is made again without complaint, once: `os.mkdir("results")` of a script that
 * wants a new folder would otherwise end every later attempt. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char *path;
    struct folder *next;
};

static struct folder *folders;
static pid_t owner; /* children start no attempt of their own */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* PATH (absolute, without links) was made by an earlier attempt. */
EXPORT void detrain_own_folder(const char *path);

void detrain_own_folder(const char *path) {
    struct folder *folder = malloc(sizeof *folder);
    char *copy = strdup(path);
    if (folder == NULL || copy == NULL) {
        free(folder);
        free(copy);
        return;
    }
    pthread_mutex_lock(&mutex);
    *folder = (struct folder){.path = copy, .next = folders};
    folders = folder;
    owner = NEXT(getpid)();
    pthread_mutex_unlock(&mutex);
}

/* True once for each folder that was told. */
static int claim(const char *path) {
    char real[PATH_MAX];
    int is_own = 0;
    if (folders == NULL || NEXT(getpid)() != owner || realpath(path, real) == NULL) return 0;
    pthread_mutex_lock(&mutex);
    for (struct folder **link = &folders; *link != NULL; link = &(*link)->next) {
        if (strcmp((*link)->path, real) != 0) continue;
        struct folder *found = *link;
        *link = found->next;
        free(found->path);
        free(found);
        is_own = 1;
        break;
    }
    pthread_mutex_unlock(&mutex);
    return is_own;
}

/* What the real call has returned, unless it failed for a folder of ours; errno is the real call's, or as it was BEFORE. */
static int answer(int result, int before, const char *path) {
    int error = errno;
    if (result == 0 || error != EEXIST) return result;
    int is_own = claim(path);
    errno = is_own ? before : error;
    return is_own ? 0 : result;
}

EXPORT int mkdir(const char *path, mode_t mode) {
    int before = errno;
    return answer(NEXT(mkdir)(path, mode), before, path);
}

EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
    int before = errno, result = NEXT(mkdirat)(folder, path, mode);
    return folder == AT_FDCWD || path[0] == '/' ? answer(result, before, path) : result;
}
