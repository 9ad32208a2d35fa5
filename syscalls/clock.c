/* What time it is. The answer is Python's on the thread that trains, and so that of the script and its libraries:
 *
 * - what set-up code reads is put to a function of the launcher's, which answers the later attempts of a run as it answered the first;
 * - what the training loop reads is noted as it is answered, under the batch and the line that asked. Where a batch is done again, in a
 *   later attempt or to prove the run, its lines are told what they were told before, and the clock goes on from there.
 *
 * C's questions for CLOCK_REALTIME are answered, for Python asks by them. Of the other clocks only those of the module `time` are, by
 * functions that take their places: deadlines of locks and sockets hang on C's. */
#define _GNU_SOURCE
#include "pid_answer.h"
#include "log_file.h"
#include "python.h"
#include "stream.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define NS_PER_S INT64_C(1000000000)
#define FURTHEST 64 /* readings that a batch may leave out when it is done again */
#define LOWEST_PLACE 16 /* below are marks: detrain/world/loop_clock_log.py */
#define CLOCK_BITS 3U   /* of a place: which clock was asked */

/* As in detrain/world/clocks.py. */
enum clock { REAL, MONOTONIC, PROCESS, THREAD, NUM_CLOCKS };
_Static_assert(NUM_CLOCKS <= CLOCK_BITS + 1, "the number of a clock fits into its bits");
static const clockid_t ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};

/* As in detrain/world/loop_clock_log.py. */
struct reading {
    uint32_t batch, place; /* of the run; a hash of file and line, and the clock in the lowest bits */
    int64_t ns;
};

/* How many readings of a batch have been answered. Two batches with numbers side by side can go to and fro: the header that finds no more
 * batches has counted one. */
struct position {
    uint32_t batch, count;
};

/* SHIFTED: in a child, or after the script's end. What is left of the answers is the distance of the clock that only runs forward. */
static _Atomic enum { OFF, SHIFTED, ASKING, NOTING } mode;
static void *asked; /* a function of Python's */
static _Thread_local int is_trained_on, is_aside; /* aside: detrain works for itself */
static int64_t _Atomic shift[NUM_CLOCKS];         /* of the answered clock from the real one */
static int64_t _Atomic told[NUM_CLOCKS];          /* last */
static char own[PATH_MAX], standard[PATH_MAX];    /* detrain's files, the standard library's */

static struct note note, answers;
static int is_note_full, is_noting;
static const uint64_t *batches;
static uint64_t since;
static struct position positions[2];
static struct {
    const struct reading *readings; /* in the order of their batches */
    size_t num, at;                 /* at: the first of the batch that was last looked for */
    int is_proof;
} known;

/* Where files begin whose questions are not the script's. Returns 0 if this process runs no Python. */
EXPORT int detrain_clock_places(const char *own_files, const char *standard_library);
/* Called with Python's lock. */
EXPORT int detrain_answer_clocks(void *function);
/* Append to what set-up code was answered; here, because Python's `open` runs more of its code than a signal handler should meet. */
EXPORT int detrain_open_answers(const char *path);
EXPORT int detrain_record_reading(const char *line, uint64_t num_bytes);
/* Note readings in PATH, under the number at BATCHES; of what is KNOWN already, answer what was answered. Up to the batch SINCE the function
 * is asked as before. PROOF: all of a run is known, its clock goes on after the last answer, where else the real time is back.
 * Returns 0 if PATH cannot be written. */
EXPORT int detrain_record_clock(const char *path, uint64_t most_bytes, const uint64_t *batches, uint64_t since, const struct reading *known,
                              size_t num_known, int is_proof);
/* Go on without noting: the batches of this attempt have numbers that no later one gives them. */
EXPORT void detrain_stop_recording_clock(void);
EXPORT void detrain_stop_clock(void);
EXPORT void detrain_clock_aside(int more);
/* OUT: the two positions, then what the clocks show, in ns, and whether the note is full. */
EXPORT void detrain_clock_tell(int64_t *out);
EXPORT void detrain_clock_seek(const int64_t *in);

static void stop_in_child(void) {
    if (atomic_load(&mode) != OFF) atomic_store(&mode, SHIFTED);
}

int detrain_clock_places(const char *own_files, const char *standard_library) {
    strncpy(own, own_files, sizeof own - 1);
    strncpy(standard, standard_library, sizeof standard - 1);
    static int is_registered;
    if (!is_registered) is_registered = pthread_atfork(NULL, NULL, stop_in_child) == 0;
    return detrain_find_python();
}

int detrain_answer_clocks(void *function) {
    detrain_hold(function);
    asked = function;
    is_trained_on = 1;
    atomic_store(&mode, ASKING);
    return 1;
}

int detrain_open_answers(const char *path) { return detrain_open_note(&answers, path, INT64_MAX); }

int detrain_record_reading(const char *line, uint64_t num_bytes) {
    struct iovec part = {(void *)(uintptr_t)line, num_bytes};
    return detrain_append(&answers, &part, 1);
}

int detrain_record_clock(const char *path, uint64_t most_bytes, const uint64_t *counter, uint64_t first, const struct reading *readings,
                       size_t num_known, int is_proof) {
    int is_open = detrain_open_note(&note, path, most_bytes);
    batches = counter;
    since = first;
    known = (__typeof__(known)){readings, num_known, 0, is_proof};
    if (!is_proof && num_known == 0) atomic_store(&shift[REAL], 0);
    is_note_full = !is_open;
    is_noting = 1;
    is_trained_on = 1;
    atomic_store(&mode, NOTING);
    return is_open;
}

void detrain_stop_recording_clock(void) { is_noting = 0; }

void detrain_stop_clock(void) {
    stop_in_child();
    detrain_close_note(&note);
    detrain_close_note(&answers);
}

void detrain_clock_aside(int more) { is_aside += more; }

/* --- answers from the log ------------------------------------------------------------------------------------------------------------- */

static struct position *position_of(uint32_t batch) {
    struct position *position = &positions[batch & 1];
    if (position->batch != batch) *position = (struct position){batch, 0};
    return position;
}

/* The first reading of the batch, or where it would be. */
static size_t first_of(uint32_t batch) {
    size_t low = 0, high = known.num;
    if (known.at < known.num && known.readings[known.at].batch == batch) return known.at;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (known.readings[middle].batch < batch)
            low = middle + 1;
        else
            high = middle;
    }
    return known.at = low;
}

/* What the line was told when it came to this before; NULL if it did not. Moves the position behind it. */
static const struct reading *find(struct position *position, uint32_t place) {
    size_t first = first_of(position->batch);
    for (size_t i = first + position->count; i < known.num && i < first + position->count + FURTHEST; i++) {
        if (known.readings[i].batch != position->batch) break;
        if (known.readings[i].place != place) continue;
        position->count = (uint32_t)(i - first + 1);
        return &known.readings[i];
    }
    return NULL;
}

static int is_used_up(const struct position *position) {
    size_t next = first_of(position->batch) + position->count;
    return next >= known.num || known.readings[next].batch != position->batch;
}

static int is_behind_all_known(uint64_t batch) { return known.num == 0 || batch > known.readings[known.num - 1].batch; }

/* A line that was not asked before, or not noted, between others that were: no later than what the next one will be told. */
static int64_t held_back(enum clock clock, const struct position *position, int64_t answer) {
    size_t next = first_of(position->batch) + position->count;
    for (size_t i = next; i < known.num && i < next + FURTHEST; i++) {
        const struct reading *reading = &known.readings[i];
        if ((reading->place & CLOCK_BITS) != (uint32_t)clock) continue;
        /* The time of day may have been put back there. */
        int64_t last = atomic_load(&told[clock]), most = reading->ns > last ? reading->ns : last;
        return answer < most ? answer : most;
    }
    return answer;
}

static int64_t from_log(enum clock clock, int64_t real, uint32_t place) {
    uint32_t batch = (uint32_t)*batches;
    struct position *position = position_of(batch);
    const struct reading *before = known.num > 0 ? find(position, place) : NULL;
    if (before != NULL) {
        atomic_store(&shift[clock], before->ns - real);
        return before->ns;
    }
    int is_new = is_used_up(position) && (is_behind_all_known(batch) || is_behind_all_known((uint64_t)batch + 1));
    if (clock == REAL && !known.is_proof && is_new) atomic_store(&shift[REAL], 0);
    struct reading reading = {batch, place, held_back(clock, position, real + atomic_load(&shift[clock]))};
    struct iovec part = {&reading, sizeof reading};
    if (is_noting && !detrain_append(&note, &part, 1)) is_note_full = 1;
    if (is_used_up(position)) position->count++;
    return reading.ns;
}

/* --- who asks ------------------------------------------------------------------------------------------------------------------------- */

static uint32_t hash_of(enum clock clock, const char *file, int line) {
    uint32_t hash = 2166136261U; /* FNV-1a */
    for (; *file != '\0'; file++) hash = (hash ^ (unsigned char)*file) * 16777619U;
    for (int shift_by = 0; shift_by < 32; shift_by += 8) hash = (hash ^ ((uint32_t)line >> shift_by & 255)) * 16777619U;
    hash = (hash & ~CLOCK_BITS) | (uint32_t)clock;
    return hash >= LOWEST_PLACE ? hash : hash + LOWEST_PLACE;
}

static int begins_with(const char *file, const char *prefix) {
    return *prefix != '\0' && strncmp(file, prefix, strlen(prefix)) == 0;
}

/* The script's question, or one of its libraries; else 0. The standard library asks the other clocks for its deadlines. */
static uint32_t place_of(enum clock clock) {
    char file[PATH_MAX];
    int line = detrain_who_asks(file, sizeof file);
    if (line == 0 || begins_with(file, own)) return 0;
    int is_standard = begins_with(file, standard) && strstr(file + strlen(standard), "-packages/") == NULL;
    if (clock != REAL && is_standard) return 0;
    return hash_of(clock, file, line);
}

/* Another thread sees the clock as this one has left it; it stands still where that went back, to do a batch again. */
static int64_t on_other_thread(enum clock clock, int64_t real) {
    if (clock == THREAD) return real;
    int64_t answer = real + atomic_load(&shift[clock]), last = atomic_load(&told[clock]);
    return clock != REAL && answer < last ? last : answer;
}

/* Returns 0 if an exception of Python's has been set: a signal handler of the script's has raised while the launcher was asked. */
static int answered(enum clock clock, int64_t real, int64_t *answer) {
    int now = atomic_load_explicit(&mode, memory_order_relaxed);
    *answer = real;
    if (now == OFF) return 1;
    if (now == SHIFTED) {
        if (clock == MONOTONIC) *answer += atomic_load(&shift[MONOTONIC]);
        return 1;
    }
    if (is_aside > 0 || !detrain_holds_lock()) return 1;
    if (!is_trained_on) {
        *answer = on_other_thread(clock, real);
        return 1;
    }
    uint32_t place = place_of(clock);
    if (place == 0) return 1;
    if (now == NOTING && *batches > since) {
        *answer = from_log(clock, real, place);
        int64_t last = atomic_load(&told[clock]);
        if (clock != REAL && !known.is_proof && *answer < last) *answer = last;
    } else {
        if (!detrain_ask(asked, clock, real, answer)) return 0;
        atomic_store(&shift[clock], *answer - real);
    }
    atomic_store(&told[clock], *answer);
    return 1;
}

/* --- where it stands ------------------------------------------------------------------------------------------------------------------ */

static int64_t real_time(enum clock clock) {
    struct timespec time = {0};
    NEXT(clock_gettime)(ids[clock], &time);
    return time.tv_sec * NS_PER_S + time.tv_nsec;
}

void detrain_clock_tell(int64_t *out) {
    for (int i = 0; i < 2; i++) *out++ = positions[i].batch, *out++ = positions[i].count;
    for (int clock = 0; clock < NUM_CLOCKS; clock++) *out++ = real_time(clock) + atomic_load(&shift[clock]);
    *out = is_note_full;
}

void detrain_clock_seek(const int64_t *in) {
    for (int i = 0; i < 2; i++, in += 2) positions[i] = (struct position){(uint32_t)in[0], (uint32_t)in[1]};
    for (int clock = 0; clock < NUM_CLOCKS; clock++) {
        /* The real time is back where nothing is done again. */
        int is_real = clock == REAL && !known.is_proof && is_behind_all_known(*batches + 1);
        atomic_store(&shift[clock], is_real ? 0 : in[clock] - real_time(clock));
        atomic_store(&told[clock], in[clock]);
    }
}

/* --- C's questions -------------------------------------------------------------------------------------------------------------------- */

/* Who asked in C cannot raise; the interpreter does when it goes on. */
static int64_t told_to_c(int64_t real) {
    int64_t answer;
    int before = errno; /* a clock that has answered leaves it alone */
    if (!answered(REAL, real, &answer)) detrain_raise_later();
    errno = before;
    return answer;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = NEXT(clock_gettime)(clock, time);
    if (clock != CLOCK_REALTIME || result != 0) return result;
    int64_t real = time->tv_sec * NS_PER_S + time->tv_nsec, ns = told_to_c(real);
    if (ns != real) *time = (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int result = NEXT(gettimeofday)(time, zone);
    if (result != 0) return result;
    int64_t real = time->tv_sec * NS_PER_S + time->tv_usec * 1000, ns = told_to_c(real);
    if (ns != real) *time = (struct timeval){.tv_sec = ns / NS_PER_S, .tv_usec = ns % NS_PER_S / 1000};
    return 0;
}

EXPORT time_t time(time_t *out) {
    time_t now = NEXT(time)(NULL);
    if (atomic_load_explicit(&mode, memory_order_relaxed) > SHIFTED) now = told_to_c(real_time(REAL)) / NS_PER_S;
    if (out != NULL) *out = now;
    return now;
}

/* --- the functions of Python's module `time` ------------------------------------------------------------------------------------------- */

#define FUNCTIONS(name, clock)                                                                                                 \
    EXPORT void *detrain_##name(void *, void *);                                                                               \
    EXPORT void *detrain_##name##_ns(void *, void *);                                                                          \
    void *detrain_##name(void *self, void *nothing) {                                                                          \
        (void)self, (void)nothing;                                                                                             \
        int64_t ns;                                                                                                            \
        return answered(clock, real_time(clock), &ns) ? detrain_python_float((double)ns / (double)NS_PER_S) : NULL;            \
    }                                                                                                                          \
    void *detrain_##name##_ns(void *self, void *nothing) {                                                                     \
        (void)self, (void)nothing;                                                                                             \
        int64_t ns;                                                                                                            \
        return answered(clock, real_time(clock), &ns) ? detrain_python_int(ns) : NULL;                                         \
    }

FUNCTIONS(monotonic, MONOTONIC)
FUNCTIONS(perf_counter, MONOTONIC)
FUNCTIONS(process_time, PROCESS)
FUNCTIONS(thread_time, THREAD)
