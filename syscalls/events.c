/* Python's audit events. There are thousands while a library is imported, and some at each `id()`; only those that somebody hears reach
   Python. */
#include "python.h"

#include <stdlib.h>
#include <string.h>

static void *hearer;
static char **heard;
static int num_heard;

static int see(const char *event, void *arguments, void *unused) {
    (void)unused;
    for (int number = 0; number < num_heard; number++)
        if (event[0] == heard[number][0] && strcmp(event, heard[number]) == 0)
            return detrain_is_running() && detrain_holds_lock() ? detrain_tell(hearer, event, arguments) : 0;
    return 0;
}

/* Call FUNCTION, an object of Python's, with the name and the arguments of each event of these names, before Python does what it announces;
   what it raises is raised there. Once in a process, with the lock. Returns 0 if there is no Python that can do that. */
__attribute__((visibility("default"))) int detrain_hear_events(void *function, const char **names, int count) {
    if (hearer != NULL || !detrain_find_python()) return 0;
    heard = calloc((size_t)count, sizeof *heard);
    if (heard == NULL) return 0;
    for (num_heard = 0; num_heard < count; num_heard++)
        if ((heard[num_heard] = strdup(names[num_heard])) == NULL) return 0;
    detrain_hold(function);
    hearer = function;
    return detrain_add_audit_hook(see);
}
