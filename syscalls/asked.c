/* Which number this process has: put to a function of the launcher's, which answers the script's own questions in the later attempts of a
 * run as in the first. A run's name or a folder that is made of the number is then the same. */
#define _GNU_SOURCE
#include "asked.h"
#include "python.h"
#include "stream.h"

#include <stdatomic.h>
#include <unistd.h>

static answering *_Atomic answer_process;
static pid_t owner; /* a child that was made without Python's knowledge has a copy of the function */
static _Thread_local int is_asking;

/* May be NULL: then nobody is asked. Returns 0 if this process runs no Python. */
EXPORT int detrain_answer_process_id(answering *function);

int detrain_answer_process_id(answering *function) {
    if (!detrain_find_python()) return 0;
    owner = NEXT(getpid)();
    atomic_store(&answer_process, function);
    return 1;
}

int64_t detrain_ask(answering *function, int what, int64_t real) {
    if (is_asking) return real;
    is_asking = 1;
    int64_t answer = function(what, real);
    is_asking = 0;
    return answer;
}

EXPORT pid_t getpid(void) {
    pid_t real = NEXT(getpid)();
    answering *function = atomic_load_explicit(&answer_process, memory_order_relaxed);
    if (function == NULL || !detrain_holds_lock() || real != owner) return real;
    return (pid_t)detrain_ask(function, 0, real);
}
