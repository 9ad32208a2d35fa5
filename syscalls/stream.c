/* A keyed, counter-based stream: byte i is a pure function of (key, i), so a position is all the state there is.
 *
 * The key follows from DETRAIN_ENTROPY_SEED; a forked child's from its parent's key and its ordinal among the
 * children. Not cryptographic, and not meant to be: whoever knows the seed knows every byte. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: the increment of SplitMix64 */
#define THREADS UINT64_C(0x7468726561647321) /* keeps the streams of threads apart from the main one, and from each other */
#define CHILD UINT64_C(0x646574726169626e)  /* keeps children's keys out of the parent's output */

static enum { UNKNOWN, OFF, ON } state; /* leaves UNKNOWN once, while the loader still runs alone */
static _Atomic uint64_t key;            /* written at load, in a forked child's first thread, and by `entropy_key` and `entropy_seed` */
/* Whose stream: the main thread's, that of Python's other threads, that of threads which the interpreter does not know. */
enum { MAIN, PYTHONS, LIBRARIES, NUM_STREAMS };
static _Atomic uint64_t position[NUM_STREAMS]; /* bytes handed out so far */
static _Atomic uint64_t num_children;   /* forks and execs begun so far */
static _Thread_local uint64_t fork_ordinal; /* survives into the child, which has only the forking thread */

/* David Stafford's variant 13 of the 64-bit finalizer, as in SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Any text is a seed (FNV-1a), so there is no malformed one to stumble over. */
static uint64_t key_of_text(const char *text) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return mix(hash + GOLDEN);
}

/* Only the main thread comes to draw at the same moments in each attempt. What others take (a queue's feeder, a library's pool) must not
 * lie among what it draws; and what a library's threads take not among what the script's own threads do. */
static int whose_stream(void) {
    static void *(*_Atomic found)(void);
    static _Atomic int has_looked;
    if (NEXT(syscall)(SYS_gettid) == (long)NEXT(getpid)()) return MAIN;
    if (!has_looked) { /* by now the interpreter has been loaded, if there is one */
        found = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
        has_looked = 1;
    }
    void *(*this_state)(void) = found;
    return this_state == NULL || this_state() == NULL ? LIBRARIES : PYTHONS;
}

void detrain_fill(void *out, size_t num_bytes) {
    int whose = whose_stream();
    uint64_t stream = whose == MAIN ? key : mix(key ^ (THREADS + (uint64_t)whose));
    uint64_t at = atomic_fetch_add(&position[whose], num_bytes);
    unsigned char *to = out;
    while (num_bytes > 0) {
        uint64_t word = mix(stream ^ mix((at / 8 + 1) * GOLDEN));
        size_t skip = at % 8;
        size_t take = num_bytes < 8 - skip ? num_bytes : 8 - skip;
        memcpy(to, (unsigned char *)&word + skip, take);
        to += take;
        at += take;
        num_bytes -= take;
    }
}

uint64_t detrain_next_child(void) { return atomic_fetch_add(&num_children, 1) + 1; }

/* An exec that failed made no child: take its ordinal back, unless another thread has taken the next one. */
void detrain_forget_child(uint64_t ordinal) {
    atomic_compare_exchange_strong(&num_children, &ordinal, ordinal - 1);
}

uint64_t detrain_child_key(uint64_t ordinal) { return mix(mix(key ^ CHILD) + ordinal * GOLDEN); }

static void before_fork(void) { fork_ordinal = detrain_next_child(); }

/* What is drawn from now on is a function of this key. */
static void begin(uint64_t with) {
    key = with;
    for (int whose = 0; whose < NUM_STREAMS; whose++) atomic_store(&position[whose], 0);
    atomic_store(&num_children, 0);
}

static void after_fork_in_child(void) { begin(detrain_child_key(fork_ordinal)); }

/* Also called by the first question, which may come from another library's constructor before ours has run. */
__attribute__((constructor)) static void load(void) {
    if (state != UNKNOWN) return;
    const char *seed = getenv(SEED_VARIABLE);
    if (seed == NULL) {
        state = OFF;
        return;
    }
    key = key_of_text(seed);
    state = ON;
    pthread_atfork(before_fork, NULL, after_fork_in_child);
}

int detrain_is_active(void) {
    if (state == UNKNOWN) load();
    return state == ON;
}

/* Keys and nonces of a connection must stay secret: code in these objects keeps real randomness. By the name of the
 * file and not of its folders: a project that lives in ~/libssl/ is no TLS library. */
static int is_tls_library(const char *path) {
    static const char *const prefixes[] = {"libcrypto",   "libssl",   "libgnutls", "libgcrypt", "libnettle",
                                           "libfreebl", "libsoftokn", "libnss3", "libsodium", "_ssl."};
    const char *name = strrchr(path, '/');
    name = name == NULL ? path : name + 1;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return 1;
    return strstr(path, "/cryptography/hazmat/") != NULL; /* the wheel, which carries its own OpenSSL */
}

int detrain_answers(const void *caller) {
    Dl_info object;
    if (!detrain_is_active()) return 0;
    return dladdr(caller, &object) == 0 || object.dli_fname == NULL || !is_tls_library(object.dli_fname);
}

void *detrain_next(const char *name, void **slot) {
    void *found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        int before = errno;
        found = dlsym(RTLD_NEXT, name);
        errno = before;
        __atomic_store_n(slot, found, __ATOMIC_RELEASE);
    }
    return found;
}

/* For checkpoints: {bytes handed out, children made}. 1 when the stream is active; else 0, and OUT is zero. */
EXPORT int detrain_entropy_tell(uint64_t out[2]) {
    int active = detrain_is_active();
    out[0] = active ? atomic_load(&position[MAIN]) : 0;
    out[1] = active ? atomic_load(&num_children) : 0;
    return active;
}

/* Go to a state that `tell` gave in a process of the same seed and ancestry. 0 when the stream is not active. */
EXPORT int detrain_entropy_seek(const uint64_t in[2]) {
    if (!detrain_is_active()) return 0;
    atomic_store(&position[MAIN], in[0]);
    atomic_store(&num_children, in[1]);
    return 1;
}

/* The same for threads: bytes handed out to {Python's others, those that the interpreter does not know}. */
EXPORT void detrain_entropy_of_threads_tell(uint64_t out[2]) {
    out[0] = atomic_load(&position[PYTHONS]);
    out[1] = atomic_load(&position[LIBRARIES]);
}

EXPORT void detrain_entropy_of_threads_seek(const uint64_t in[2]) {
    atomic_store(&position[PYTHONS], in[0]);
    atomic_store(&position[LIBRARIES], in[1]);
}

/* Draw from the beginning of other streams, told by two numbers: for a process that works on one of many numbered pieces. */
EXPORT void detrain_entropy_key(const uint64_t of[2]) {
    if (detrain_is_active()) begin(mix(mix(of[0] ^ CHILD) + mix(of[1] + GOLDEN)));
}

/* Draw from the beginning of the streams of a seed, as a process does that was started with it: for one that was forked instead. */
EXPORT void detrain_entropy_seed(const char *seed) {
    if (detrain_is_active()) begin(key_of_text(seed));
}
