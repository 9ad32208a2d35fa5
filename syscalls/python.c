/* The few calls of Python's that the others need, found at run time: the library is built without Python, and loaded where there is none. */
#define _GNU_SOURCE
#include "python.h"

#include <dlfcn.h>
#include <stdio.h>

static struct {
    void *(*PyGILState_GetThisThreadState)(void);
    void *(*current_state)(void); /* of whoever holds the lock, or of this thread if it does; the name has changed */
    void *(*PyEval_GetFrame)(void); /* borrowed */
    void *(*PyFrame_GetCode)(void *);
    int (*PyFrame_GetLineNumber)(void *);
    void *(*PyObject_GetAttr)(void *, void *);
    void *(*PyObject_CallFunction)(void *, const char *, ...);
    void *(*PyUnicode_InternFromString)(const char *);
    const char *(*PyUnicode_AsUTF8)(void *);
    void *(*PyFloat_FromDouble)(double);
    void *(*PyLong_FromLongLong)(long long);
    long long (*PyLong_AsLongLong)(void *);
    void *(*PyErr_Occurred)(void);
    void (*PyErr_Clear)(void);
    void (*PyErr_Fetch)(void **, void **, void **);
    void (*PyErr_Restore)(void *, void *, void *);
    int (*Py_AddPendingCall)(int (*)(void *), void *);
    int (*PySys_AddAuditHook)(int (*)(const char *, void *, void *), void *);
    int (*Py_IsInitialized)(void);
    void (*Py_IncRef)(void *);
    void (*Py_DecRef)(void *);
} python;

#define FIND_AS(member, name) ((python.member = (__typeof__(python.member))dlsym(RTLD_DEFAULT, name)) != NULL)
#define FIND(name) FIND_AS(name, #name)

int detrain_find_python(void) {
    return FIND(PyGILState_GetThisThreadState) &&
           (FIND_AS(current_state, "PyThreadState_GetUnchecked") || FIND_AS(current_state, "_PyThreadState_UncheckedGet")) &&
           FIND(PyEval_GetFrame) && FIND(PyFrame_GetCode) && FIND(PyFrame_GetLineNumber) && FIND(PyObject_GetAttr) &&
           FIND(PyObject_CallFunction) && FIND(PyUnicode_InternFromString) && FIND(PyUnicode_AsUTF8) && FIND(PyFloat_FromDouble) &&
           FIND(PyLong_FromLongLong) && FIND(PyLong_AsLongLong) && FIND(PyErr_Occurred) && FIND(PyErr_Clear) && FIND(PyErr_Fetch) &&
           FIND(PyErr_Restore) && FIND(Py_AddPendingCall) && FIND(PySys_AddAuditHook) && FIND(Py_IsInitialized) &&
           FIND(Py_IncRef) && FIND(Py_DecRef);
}

/* Not PyGILState_Check, which says yes to everybody once there has been a second interpreter. */
int detrain_holds_lock(void) {
    void *state = python.current_state();
    return state != NULL && state == python.PyGILState_GetThisThreadState();
}

int detrain_is_running(void) { return python.Py_IsInitialized(); }

int detrain_add_audit_hook(int (*hook)(const char *, void *, void *)) { return python.PySys_AddAuditHook(hook, NULL) == 0; }

int detrain_tell(void *function, const char *event, void *arguments) {
    void *result = python.PyObject_CallFunction(function, "sO", event, arguments);
    if (result == NULL) return -1;
    python.Py_DecRef(result);
    return 0;
}

void detrain_hold(void *object) { python.Py_IncRef(object); }

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

int detrain_call(void *function, int64_t first, int64_t second, int64_t *answer) {
    void *type, *value, *trace; /* an exception that is on its way already is none of the function's */
    python.PyErr_Fetch(&type, &value, &trace);
    void *result = python.PyObject_CallFunction(function, "LL", (long long)first, (long long)second);
    if (result != NULL) {
        *answer = python.PyLong_AsLongLong(result);
        python.Py_DecRef(result);
    }
    if (result == NULL || python.PyErr_Occurred()) return 0;
    python.PyErr_Restore(type, value, trace);
    return 1;
}

struct raised {
    void *type, *value, *trace;
};

static int raise_now(void *what) {
    struct raised *raised = what;
    if (raised->type == NULL) return 0;
    python.PyErr_Restore(raised->type, raised->value, raised->trace);
    *raised = (struct raised){0};
    return -1;
}

void detrain_raise_later(void) {
    static struct raised raised; /* with the lock; one that comes while another waits takes its place */
    python.PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
    python.Py_AddPendingCall(raise_now, &raised);
}
