/* What time it is, and who this process is: put to a function of the launcher's, which answers the later attempts of a run as it
 * answered the first. A seed, a run's name or a folder that set-up code takes from either is then the same.
 *
 * Asked only where Python is running on the thread that set the function (for the clock) and holds the interpreter's lock, for the
 * function is Python's and looks at who asks. */
#define _GNU_SOURCE
#include "stream.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S INT64_C(1000000000)

typedef int64_t answering(int64_t real);

static answering *_Atomic answer_clock;
static answering *_Atomic answer_process;
static int (*holds_lock)(void); /* PyGILState_Check, where the interpreter is Python */
static pid_t owner;             /* a child that was made without Python's knowledge has a copy of the functions */
static _Thread_local int is_clock_thread, is_answering;

/* Either may be NULL: then nobody is asked. Returns 0 if this process runs no Python. */
EXPORT int detrain_answer_clock(answering *function);
EXPORT int detrain_answer_process(answering *function);

static int prepare(void) {
    holds_lock = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    owner = NEXT(getpid)();
    return holds_lock != NULL;
}

int detrain_answer_clock(answering *function) {
    if (!prepare()) return 0;
    is_clock_thread = 1;
    atomic_store(&answer_clock, function);
    return 1;
}

int detrain_answer_process(answering *function) {
    if (!prepare()) return 0;
    atomic_store(&answer_process, function);
    return 1;
}

static int64_t ask(answering *function, int64_t real) {
    if (is_answering || !holds_lock() || NEXT(getpid)() != owner) return real;
    is_answering = 1;
    int64_t answer = function(real);
    is_answering = 0;
    return answer;
}

/* The time in nanoseconds since 1970, or -1 if the C library's own answer is to stand. */
static int64_t asked_time(int64_t real) {
    answering *function = atomic_load_explicit(&answer_clock, memory_order_relaxed);
    if (function == NULL || !is_clock_thread) return -1;
    int64_t answer = ask(function, real);
    return answer == real ? -1 : answer;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = NEXT(clock_gettime)(clock, time);
    if (clock != CLOCK_REALTIME || result != 0) return result;
    int64_t ns = asked_time(time->tv_sec * NS_PER_S + time->tv_nsec);
    if (ns >= 0) *time = (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int result = NEXT(gettimeofday)(time, zone);
    if (result != 0) return result;
    int64_t ns = asked_time(time->tv_sec * NS_PER_S + time->tv_usec * 1000);
    if (ns >= 0) *time = (struct timeval){.tv_sec = ns / NS_PER_S, .tv_usec = ns % NS_PER_S / 1000};
    return 0;
}

EXPORT time_t time(time_t *out) {
    time_t now = NEXT(time)(NULL);
    int64_t ns = asked_time((int64_t)now * NS_PER_S);
    if (ns >= 0) now = ns / NS_PER_S;
    if (out != NULL) *out = now;
    return now;
}

EXPORT pid_t getpid(void) {
    pid_t real = NEXT(getpid)();
    answering *function = atomic_load_explicit(&answer_process, memory_order_relaxed);
    return function == NULL ? real : (pid_t)ask(function, real);
}
