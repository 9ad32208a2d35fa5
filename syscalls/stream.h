/* The seeded streams of bytes of this process, and what the files beside this one share. */
#ifndef DETRAIN_STREAM_H
#define DETRAIN_STREAM_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define SEED_VARIABLE "DETRAIN_ENTROPY_SEED"
#define EXPORT __attribute__((visibility("default")))

/* The definition of NAME that would have been called without this library. A race writes the same value twice. */
#define NEXT(name) ((__typeof__(&name))detrain_next(#name, &(static_slot(name))))
#define static_slot(name) (*({ static void *slot; &slot; }))

void *detrain_next(const char *name, void **slot);

/* True when a seed was set at load and CALLER (a return address) does not lie in a TLS library. */
int detrain_answers(const void *caller);
int detrain_is_active(void);

/* The next NUM_BYTES of this thread's stream. Takes no lock: safe in threads, after a fork and in signal handlers. */
void detrain_fill(void *out, size_t num_bytes);

/* The ordinal of a new child of this process, and the key that follows from it. */
uint64_t detrain_next_child(void);
void detrain_forget_child(uint64_t ordinal);
uint64_t detrain_child_key(uint64_t ordinal);

/* PATH, or what it means if it names this process by the id that a script was told; BUFFER has room for PATH_MAX bytes. */
const char *detrain_path(const char *path, char *buffer);

#endif
