/* Questions that are put to functions of the launcher's, which are Python's and look at who asks. */
#ifndef DETRAIN_PID_ANSWER_H
#define DETRAIN_PID_ANSWER_H

#include <stdint.h>

/* Only where this thread runs Python and holds its lock. What FUNCTION itself asks gets the real answer. Returns 0 if it raised. */
int detrain_ask(void *function, int what, int64_t real, int64_t *answer);

#endif
