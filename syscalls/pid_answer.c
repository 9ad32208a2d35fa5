/* Which number this process has: put to a function of the launcher's, which answers the script's own questions in the later attempts of a
 * run as in the first. A run's name or a folder that is made of the number is then the same. */
#define _GNU_SOURCE
#include "pid_answer.h"
#include "python.h"
#include "stream.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

static void *_Atomic answers_process;
static pid_t owner; /* a child that was made without Python's knowledge has a copy of the function */
static _Thread_local int is_asking;

/* Called with Python's lock; FUNCTION may be NULL: then nobody is asked. Returns 0 if this process runs no Python. */
EXPORT int detrain_answer_process_id(void *function);

int detrain_answer_process_id(void *function) {
    if (!detrain_find_python()) return 0;
    if (function != NULL) detrain_hold(function);
    owner = NEXT(getpid)();
    atomic_store(&answers_process, function);
    return 1;
}

int detrain_ask(void *function, int what, int64_t real, int64_t *answer) {
    *answer = real;
    if (is_asking) return 1;
    int before = errno; /* the calls that ask never fail, so they leave it alone */
    is_asking = 1;
    int is_answered = detrain_call(function, what, real, answer);
    is_asking = 0;
    errno = before;
    return is_answered;
}

EXPORT pid_t getpid(void) {
    pid_t real = NEXT(getpid)();
    int64_t answer;
    void *function = atomic_load_explicit(&answers_process, memory_order_relaxed);
    if (function == NULL || real != owner || !detrain_holds_lock()) return real;
    if (detrain_ask(function, 0, real, &answer)) return (pid_t)answer;
    detrain_raise_later();
    return real;
}
