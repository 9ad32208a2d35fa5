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

EXPORT int mkdir(const char *path, mode_t mode) {
    int result = NEXT(mkdir)(path, mode);
    if (result != 0 && errno == EEXIST && claim(path)) return 0;
    return result;
}

EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
    int result = NEXT(mkdirat)(folder, path, mode);
    if (result != 0 && errno == EEXIST && (folder == AT_FDCWD || path[0] == '/') && claim(path)) return 0;
    return result;
}
