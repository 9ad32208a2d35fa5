/* Directories, listed in the order of their names' bytes: the file system's own order is that of a hash table, or of creation,
 * and another on a copy of the same files.
 *
 * The first question reads the whole directory, as nearly every reader does in the end; the answers come from memory. */
#define _GNU_SOURCE
#include "stream.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One struct serves readdir() and readdir64() only where both have one layout; elsewhere nothing is answered. */
#if defined(__x86_64__) || defined(__aarch64__)
#define HAS_ONE_LAYOUT 1
#else
#define HAS_ONE_LAYOUT 0
#endif

struct listing {
    DIR *directory;
    struct dirent64 **entries; /* sorted; d_off is the position that follows, for telldir() and seekdir() */
    size_t num_entries, position;
    int error; /* what ended the reading, 0 at the directory's end */
    struct listing *next;
};

#define NUM_BUCKETS 64
static struct listing *buckets[NUM_BUCKETS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

/* A child made while another thread was listing must find the lock free. */
__attribute__((constructor)) static void guard_forks(void) {
    if (detrain_is_active()) pthread_atfork(lock, unlock, unlock);
}

static struct listing **bucket_of(DIR *directory) { return &buckets[((uintptr_t)directory >> 4) % NUM_BUCKETS]; }

static struct listing *find(DIR *directory) {
    struct listing *found;
    lock();
    for (found = *bucket_of(directory); found != NULL && found->directory != directory;) found = found->next;
    unlock();
    return found;
}

static void drop(DIR *directory) {
    lock();
    struct listing **link = bucket_of(directory);
    while (*link != NULL && (*link)->directory != directory) link = &(*link)->next;
    struct listing *found = *link;
    if (found != NULL) *link = found->next;
    unlock();
    if (found == NULL) return;
    int before = errno; /* which free() leaves alone only from glibc 2.33 on */
    for (size_t i = 0; i < found->num_entries; i++) free(found->entries[i]);
    free(found->entries);
    free(found);
    errno = before;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(struct dirent64 *const *)a)->d_name, (*(struct dirent64 *const *)b)->d_name);
}

/* Takes what is left of the directory. False when memory is short: then the caller gets what the C library gives. */
static int take_entry(struct listing *listing, size_t *room, const struct dirent64 *entry) {
    if (listing->num_entries == *room) {
        size_t more = *room == 0 ? 64 : 2 * *room;
        void *grown = realloc(listing->entries, more * sizeof *listing->entries);
        if (grown == NULL) return 0;
        listing->entries = grown;
        *room = more;
    }
    struct dirent64 *copy = malloc(entry->d_reclen);
    if (copy == NULL) return 0;
    memcpy(copy, entry, entry->d_reclen);
    listing->entries[listing->num_entries++] = copy;
    return 1;
}

static struct listing *read_all(DIR *directory) {
    struct listing *listing = calloc(1, sizeof *listing);
    size_t room = 0;
    int before = errno;
    if (listing == NULL) return NULL;
    for (;;) {
        errno = 0;
        struct dirent64 *entry = NEXT(readdir64)(directory);
        if (entry == NULL) break;
        if (!take_entry(listing, &room, entry)) errno = ENOMEM;
        if (errno == ENOMEM) break;
    }
    listing->error = errno;
    if (listing->num_entries > 1) qsort(listing->entries, listing->num_entries, sizeof *listing->entries, by_name);
    for (size_t i = 0; i < listing->num_entries; i++) listing->entries[i]->d_off = (long)(i + 1);
    listing->directory = directory;
    lock();
    listing->next = *bucket_of(directory);
    *bucket_of(directory) = listing;
    unlock();
    errno = before; /* at the end of a directory it is as it was: so one tells the end from an error */
    return listing;
}

static int answers(void) { return HAS_ONE_LAYOUT && detrain_is_active(); }

static struct dirent64 *next_entry(DIR *directory) {
    struct listing *listing = find(directory);
    if (listing == NULL) listing = read_all(directory);
    if (listing == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    if (listing->position < listing->num_entries) return listing->entries[listing->position++];
    if (listing->error != 0) errno = listing->error;
    return NULL;
}

EXPORT struct dirent64 *readdir64(DIR *directory) {
    if (!answers()) return NEXT(readdir64)(directory);
    return next_entry(directory);
}

EXPORT struct dirent *readdir(DIR *directory) {
    if (!answers()) return NEXT(readdir)(directory);
    return (struct dirent *)next_entry(directory);
}

EXPORT void rewinddir(DIR *directory) {
    if (answers()) drop(directory); /* as the real one, it sees what has been added since */
    NEXT(rewinddir)(directory);
}

EXPORT long telldir(DIR *directory) {
    struct listing *listing = answers() ? find(directory) : NULL;
    if (answers()) return listing == NULL ? 0 : (long)listing->position;
    return NEXT(telldir)(directory);
}

EXPORT void seekdir(DIR *directory, long position) {
    if (!answers()) {
        NEXT(seekdir)(directory, position);
        return;
    }
    struct listing *listing = find(directory);
    if (listing == NULL) listing = read_all(directory);
    if (listing != NULL && position >= 0 && (size_t)position <= listing->num_entries)
        listing->position = (size_t)position;
}

EXPORT int closedir(DIR *directory) {
    if (answers()) drop(directory);
    return NEXT(closedir)(directory);
}
