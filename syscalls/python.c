/* The few calls of Python's that the others need, found at run time: the library is built without Python, and loaded where there is none. */
#define _GNU_SOURCE
#include "python.h"

#include <dlfcn.h>
#include <stdio.h>

static struct {
    int (*PyGILState_Check)(void);
    void *(*PyEval_GetFrame)(void); /* borrowed */
    void *(*PyFrame_GetCode)(void *);
    int (*PyFrame_GetLineNumber)(void *);
    void *(*PyObject_GetAttr)(void *, void *);
    void *(*PyUnicode_InternFromString)(const char *);
    const char *(*PyUnicode_AsUTF8)(void *);
    void (*Py_DecRef)(void *);
    void *(*PyFloat_FromDouble)(double);
    void *(*PyLong_FromLongLong)(long long);
    void (*PyErr_Clear)(void);
} python;

#define FIND(name) ((python.name = (__typeof__(python.name))dlsym(RTLD_DEFAULT, #name)) != NULL)

int detrain_find_python(void) {
    return FIND(PyGILState_Check) && FIND(PyEval_GetFrame) && FIND(PyFrame_GetCode) && FIND(PyFrame_GetLineNumber) &&
           FIND(PyObject_GetAttr) && FIND(PyUnicode_InternFromString) && FIND(PyUnicode_AsUTF8) && FIND(Py_DecRef) &&
           FIND(PyFloat_FromDouble) && FIND(PyLong_FromLongLong) && FIND(PyErr_Clear);
}

int detrain_holds_lock(void) { return python.PyGILState_Check(); }

void *detrain_python_float(double value) { return python.PyFloat_FromDouble(value); }

void *detrain_python_int(int64_t value) { return python.PyLong_FromLongLong(value); }

int detrain_who_asks(char *buffer, size_t num_bytes) {
    void *frame = python.PyEval_GetFrame();
    if (frame == NULL) return 0;
    static void *attribute;
    if (attribute == NULL) attribute = python.PyUnicode_InternFromString("co_filename");
    void *code = python.PyFrame_GetCode(frame);
    void *file = python.PyObject_GetAttr(code, attribute);
    const char *name = file != NULL ? python.PyUnicode_AsUTF8(file) : NULL;
    if (name == NULL) python.PyErr_Clear(); /* a name that is no text in UTF-8 */
    snprintf(buffer, num_bytes, "%s", name != NULL ? name : "?");
    if (file != NULL) python.Py_DecRef(file);
    python.Py_DecRef(code);
    return python.PyFrame_GetLineNumber(frame);
}
