/*
 * Take one record from a cursor, for the loops of record_loop.py: the compiled form of its two classes.
 *
 * A step reads the clock, asks the gate, and takes the next record of the cursor. Between the answer of the gate and
 * the caller's next instruction no Python code runs, no signal is handled, and the interpreter's lock is held; for an
 * interpreter without one, this module is not built. Everything else is left to the method ask() of the loop.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

/* ------------------------------------------------------------------ what both loops share */

typedef struct {
    PyObject_HEAD
    /* The records of a batch that are left, and the functions that tell the time and whether the gate is open. */
    PyObject *cursor, *boot_time_s, *is_open;
    /* When the event loop is to run its other tasks; never, for loops that block. */
    double pause_at_s;
    /* Only for loops that are awaited: the type of awaitables, and one that is over, to be used again. */
    PyTypeObject *awaitable;
    PyObject *spare;
} Steps;

static PyMemberDef steps_members[] = {
    {"_cursor", T_OBJECT_EX, offsetof(Steps, cursor), 0, NULL},
    {"_boot_time_s", T_OBJECT_EX, offsetof(Steps, boot_time_s), 0, NULL},
    {"_is_open", T_OBJECT_EX, offsetof(Steps, is_open), 0, NULL},
    {"_pause_at_s", T_DOUBLE, offsetof(Steps, pause_at_s), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self)
        ((Steps *)self)->pause_at_s = Py_HUGE_VAL;
    return self;
}

static int steps_traverse(PyObject *self, visitproc visit, void *arg)
{
    Steps *steps = (Steps *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(steps->cursor);
    Py_VISIT(steps->boot_time_s);
    Py_VISIT(steps->is_open);
    Py_VISIT(steps->awaitable);
    Py_VISIT(steps->spare);
    return 0;
}

static int steps_clear(PyObject *self)
{
    Steps *steps = (Steps *)self;
    Py_CLEAR(steps->cursor);
    Py_CLEAR(steps->boot_time_s);
    Py_CLEAR(steps->is_open);
    Py_CLEAR(steps->spare);
    return 0;
}

static void steps_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    steps_clear(self);
    Py_CLEAR(((Steps *)self)->awaitable);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Whether a record may be taken now; -1 for an exception. */
static int may_take(const Steps *steps)
{
    if (!steps->cursor || !steps->boot_time_s || !steps->is_open) {
        PyErr_SetString(PyExc_AttributeError, "the loop has no cursor, no clock or no gate");
        return -1;
    }
    /* The calls may run Python code, which may replace the attributes. */
    PyObject *clock = Py_NewRef(steps->boot_time_s);
    PyObject *now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    if (!now)
        return -1;
    int open = 0;
    double now_s = PyFloat_AsDouble(now);
    if (now_s == -1.0 && PyErr_Occurred())
        open = -1;
    else if (now_s < steps->pause_at_s) {
        PyObject *is_open = Py_NewRef(steps->is_open);
        PyObject *answer = PyObject_CallFunctionObjArgs(is_open, now, NULL);
        Py_DECREF(is_open);
        open = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
    }
    Py_DECREF(now);
    return open;
}

/* NULL with an exception, or without one if ask() has to be called. */
static PyObject *take(const Steps *steps)
{
    if (may_take(steps) <= 0 || !steps->cursor)
        return NULL;
    if (!PyIter_Check(steps->cursor)) {
        PyErr_SetString(PyExc_TypeError, "the cursor is no iterator");
        return NULL;
    }
    PyObject *cursor = Py_NewRef(steps->cursor);
    PyObject *record = PyIter_Next(cursor);
    Py_DECREF(cursor);
    return record;
}

/* ------------------------------------------------------------------ the awaitable of one step */

/* Not awaited yet: it has steps. Suspended: it has the coroutine of ask(). Neither, once it is over. */
typedef struct {
    PyObject_HEAD
    Steps *steps;
    PyObject *asking;
    bool runs;
} Awaitable;

static int awaitable_traverse(PyObject *self, visitproc visit, void *arg)
{
    Awaitable *awaitable = (Awaitable *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(awaitable->steps);
    Py_VISIT(awaitable->asking);
    return 0;
}

static int awaitable_clear(PyObject *self)
{
    Awaitable *awaitable = (Awaitable *)self;
    Py_CLEAR(awaitable->steps);
    Py_CLEAR(awaitable->asking);
    return 0;
}

/* As the interpreter warns of coroutines: the program has forgotten an await. */
static void warn_of_no_await(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_WarnEx(PyExc_RuntimeWarning, "coroutine 'RecordLoop.__anext__' was never awaited", 1) < 0)
        PyErr_WriteUnraisable(NULL);
    PyErr_Restore(type, value, traceback);
}

static void awaitable_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (((Awaitable *)self)->steps)
        warn_of_no_await();
    awaitable_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static bool refuse_to_run(const Awaitable *awaitable)
{
    if (awaitable->runs)
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
    else if (!awaitable->steps && !awaitable->asking)
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    return awaitable->runs || (!awaitable->steps && !awaitable->asking);
}

static PyObject *call_method(PyObject *object, const char *name, PyObject *args)
{
    PyObject *method = PyObject_GetAttrString(object, name);
    PyObject *result = method ? (args ? PyObject_Call(method, args, NULL) : PyObject_CallNoArgs(method)) : NULL;
    Py_XDECREF(method);
    return result;
}

/* Begin: a record, or NULL with an exception, or with the coroutine of ask() to go on with. */
static PyObject *begin(Awaitable *awaitable)
{
    Steps *steps = awaitable->steps;
    awaitable->steps = NULL;
    PyObject *record = take(steps);
    if (!record && !PyErr_Occurred())
        awaitable->asking = call_method((PyObject *)steps, "ask", NULL);
    /* Only one that is over is kept: it refers to nothing, so the loop never refers to itself. */
    if (record && !steps->spare)
        steps->spare = Py_NewRef((PyObject *)awaitable);
    Py_DECREF(steps);
    return record;
}

static PySendResult awaitable_send(PyObject *self, PyObject *argument, PyObject **result)
{
    Awaitable *awaitable = (Awaitable *)self;
    *result = NULL;
    if (refuse_to_run(awaitable))
        return PYGEN_ERROR;
    if (awaitable->steps && argument != Py_None) {
        PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
        return PYGEN_ERROR;
    }
    PySendResult outcome = PYGEN_ERROR;
    awaitable->runs = true;
    if (awaitable->steps && (*result = begin(awaitable)) != NULL)
        outcome = PYGEN_RETURN;
    else if (awaitable->asking)
        outcome = PyIter_Send(awaitable->asking, argument, result);
    awaitable->runs = false;
    if (outcome != PYGEN_NEXT)
        Py_CLEAR(awaitable->asking);
    return outcome;
}

/* A record is a tuple, which StopIteration would take apart if it were set as the value of the exception. */
static PyObject *yielded_or_raised(PySendResult outcome, PyObject *result)
{
    if (outcome != PYGEN_RETURN)
        return result;
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL);
    Py_DECREF(result);
    if (stop) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *send_method(PyObject *self, PyObject *argument)
{
    PyObject *result;
    PySendResult outcome = awaitable_send(self, argument, &result);
    return yielded_or_raised(outcome, result);
}

static PyObject *awaitable_next(PyObject *self)
{
    return send_method(self, Py_None);
}

static PyObject *throw_method(PyObject *self, PyObject *args)
{
    Awaitable *awaitable = (Awaitable *)self;
    if (refuse_to_run(awaitable))
        return NULL;
    if (awaitable->steps) {
        /* A coroutine that has not begun raises the exception, and runs nothing. */
        awaitable->asking = call_method((PyObject *)awaitable->steps, "ask", NULL);
        Py_CLEAR(awaitable->steps);
    }
    if (!awaitable->asking)
        return NULL;
    awaitable->runs = true;
    PyObject *result = call_method(awaitable->asking, "throw", args);
    awaitable->runs = false;
    if (!result)
        Py_CLEAR(awaitable->asking);
    return result;
}

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    Awaitable *awaitable = (Awaitable *)self;
    if (awaitable->runs) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return NULL;
    }
    Py_CLEAR(awaitable->steps);
    if (!awaitable->asking)
        return Py_NewRef(Py_None);
    awaitable->runs = true;
    PyObject *result = call_method(awaitable->asking, "close", NULL);
    awaitable->runs = false;
    if (result)
        Py_CLEAR(awaitable->asking);
    return result;
}

static PyObject *awaitable_await(PyObject *self)
{
    if (((Awaitable *)self)->asking) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        return NULL;
    }
    return Py_NewRef(self);
}

static PyMethodDef awaitable_methods[] = {
    {"send", send_method, METH_O, NULL},
    {"throw", throw_method, METH_VARARGS, NULL},
    {"close", close_method, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot awaitable_slots[] = {
    {Py_tp_doc, "One step of a loop, with the interface of a coroutine."},
    {Py_tp_dealloc, awaitable_dealloc},
    {Py_tp_traverse, awaitable_traverse},
    {Py_tp_clear, awaitable_clear},
    {Py_tp_methods, awaitable_methods},
    {Py_tp_iternext, awaitable_next},
    {Py_am_await, awaitable_await},
    {Py_am_send, awaitable_send},
    {0, NULL},
};

static PyType_Spec awaitable_spec = {
    .name = "kiel_groups.clients.delivery._steps.Step",
    .basicsize = sizeof(Awaitable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = awaitable_slots,
};

/* ------------------------------------------------------------------ loops that are awaited */

static PyObject *loop_next(PyObject *self)
{
    Steps *steps = (Steps *)self;
    Awaitable *awaitable = (Awaitable *)steps->spare;
    steps->spare = NULL;
    /* The last reference: no program can tell it from a new one. */
    if (awaitable && Py_REFCNT((PyObject *)awaitable) == 1) {
        awaitable->steps = (Steps *)Py_NewRef(self);
        return (PyObject *)awaitable;
    }
    Py_XDECREF((PyObject *)awaitable);
    awaitable = PyObject_GC_New(Awaitable, steps->awaitable);
    if (!awaitable)
        return NULL;
    awaitable->steps = (Steps *)Py_NewRef(self);
    awaitable->asking = NULL;
    awaitable->runs = false;
    PyObject_GC_Track(awaitable);
    return (PyObject *)awaitable;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = steps_new(type, args, kwargs);
    if (!self)
        return NULL;
    /* An attribute of the type, since the module of a type cannot be found from its subclasses. */
    PyObject *awaitable = PyObject_GetAttrString((PyObject *)type, "Step");
    if (awaitable && PyType_Check(awaitable)
        && PyType_GetSlot((PyTypeObject *)awaitable, Py_am_send) == (void *)awaitable_send) {
        ((Steps *)self)->awaitable = (PyTypeObject *)awaitable;
        return self;
    }
    if (awaitable)
        PyErr_SetString(PyExc_TypeError, "Step was replaced");
    Py_XDECREF(awaitable);
    Py_DECREF(self);
    return NULL;
}

static PyType_Slot loop_slots[] = {
    {Py_tp_doc, "See record_loop.py."},
    {Py_tp_new, loop_new},
    {Py_tp_dealloc, steps_dealloc},
    {Py_tp_traverse, steps_traverse},
    {Py_tp_clear, steps_clear},
    {Py_tp_members, steps_members},
    {Py_am_anext, loop_next},
    {0, NULL},
};

static PyType_Spec loop_spec = {
    .name = "kiel_groups.clients.delivery._steps.LoopSteps",
    .basicsize = sizeof(Steps),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = loop_slots,
};

/* ------------------------------------------------------------------ loops that block */

/* Let the loop handle an exception within a step, and raise it. `asking` identifies the call of ask(), if any. */
static void interrupted(PyObject *self, PyObject *asking)
{
    PyObject *type, *value, *traceback, *done = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *method = PyObject_GetAttrString(self, "interrupted");
    if (method)
        done = PyObject_CallFunctionObjArgs(method, type, asking ? asking : Py_None, NULL);
    Py_XDECREF(method);
    if (done) {
        PyErr_Restore(type, value, traceback);
        Py_DECREF(done);
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

static PyObject *blocking_next(PyObject *self)
{
    PyObject *asking = NULL;
    PyObject *record = take((Steps *)self);
    if (!record && !PyErr_Occurred()) {
        PyObject *method = PyObject_GetAttrString(self, "ask");
        asking = method ? PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type) : NULL;
        if (asking)
            record = PyObject_CallFunctionObjArgs(method, asking, NULL);
        Py_XDECREF(method);
    }
    if (!record && !PyErr_ExceptionMatches(PyExc_StopIteration))
        interrupted(self, asking);
    Py_XDECREF(asking);
    return record;
}

static PyType_Slot blocking_slots[] = {
    {Py_tp_doc, "See record_loop.py."},
    {Py_tp_new, steps_new},
    {Py_tp_dealloc, steps_dealloc},
    {Py_tp_traverse, steps_traverse},
    {Py_tp_clear, steps_clear},
    {Py_tp_members, steps_members},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, blocking_next},
    {0, NULL},
};

static PyType_Spec blocking_spec = {
    .name = "kiel_groups.clients.delivery._steps.BlockingSteps",
    .basicsize = sizeof(Steps),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = blocking_slots,
};

/* ------------------------------------------------------------------ module */

static int add_type(PyObject *module, const char *name, PyObject *type)
{
    return type ? PyModule_AddObjectRef(module, name, type) : -1;
}

static int fill_module(PyObject *module)
{
    PyObject *step = PyType_FromModuleAndSpec(module, &awaitable_spec, NULL);
    PyObject *loop = PyType_FromModuleAndSpec(module, &loop_spec, NULL);
    PyObject *blocking = PyType_FromModuleAndSpec(module, &blocking_spec, NULL);
    int failed = !step || !loop || PyObject_SetAttrString(loop, "Step", step) < 0
        || add_type(module, "Step", step) < 0 || add_type(module, "LoopSteps", loop) < 0
        || add_type(module, "BlockingSteps", blocking) < 0;
    Py_XDECREF(step);
    Py_XDECREF(loop);
    Py_XDECREF(blocking);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_steps",
    .m_doc = "Steps of loops over records: the clock, the gate and the cursor.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__steps(void)
{
    return PyModuleDef_Init(&definition);
}
