/* The interpreter, where this process runs one. */
#ifndef DETRAIN_PYTHON_H
#define DETRAIN_PYTHON_H

#include <stddef.h>
#include <stdint.h>

/* Find the interpreter; returns 0 if there is none. */
int detrain_find_python(void);

/* True where this thread runs Python, in the first interpreter, and holds its lock. Only after `detrain_find_python`. */
int detrain_holds_lock(void);

/* The file of the innermost line that runs, into BUFFER, and its number; 0 if no line runs. Only with the lock; runs no line of Python's. */
int detrain_who_asks(char *buffer, size_t num_bytes);

/* What FUNCTION, an object of Python's, makes of the two numbers. Returns 0 if it raised: the exception is then set. Only with the lock. */
int detrain_call(void *function, int64_t first, int64_t second, int64_t *answer);

/* Let the exception that is set be raised when the interpreter goes on: whoever called us cannot raise it. */
void detrain_raise_later(void);

/* False once the interpreter has begun to end. */
int detrain_is_running(void);

/* Call HOOK at each audit event, with its name and its tuple of arguments; an exception is set where it returns another number than 0.
   Returns 0 if it cannot be added. */
int detrain_add_audit_hook(int (*hook)(const char *, void *, void *));

/* Call FUNCTION, an object of Python's, with EVENT and ARGUMENTS. Returns -1 if it raised: the exception is then set. Only with the lock. */
int detrain_tell(void *function, const char *event, void *arguments);

void detrain_hold(void *object);
void *detrain_python_float(double value);
void *detrain_python_int(int64_t value);

#endif
