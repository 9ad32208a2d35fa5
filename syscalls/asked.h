/* Questions that are put to functions of the launcher's, which are Python's and look at who asks. */
#ifndef DETRAIN_ASKED_H
#define DETRAIN_ASKED_H

#include <stdint.h>

typedef int64_t answering(int what, int64_t real);

/* Only where this thread runs Python and holds its lock. What FUNCTION itself asks gets the real answer. */
int64_t detrain_ask(answering *function, int what, int64_t real);

#endif
