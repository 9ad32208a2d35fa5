/* The interpreter, where this process runs one: nothing here runs Python code, so no signal handler of the script's can run meanwhile. */
#ifndef DETRAIN_PYTHON_H
#define DETRAIN_PYTHON_H

#include <stddef.h>
#include <stdint.h>

/* Find the interpreter; returns 0 if there is none. */
int detrain_find_python(void);

/* True where this thread runs Python and holds its lock. Only after `detrain_find_python`. */
int detrain_holds_lock(void);

/* The file of the innermost line that runs, into BUFFER, and its number; 0 if no line runs. Only with the lock. */
int detrain_who_asks(char *buffer, size_t num_bytes);

void *detrain_python_float(double value);
void *detrain_python_int(int64_t value);

#endif
