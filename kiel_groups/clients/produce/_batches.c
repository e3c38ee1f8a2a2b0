/*
 * Adds records to batches that are open, and sets the futures of batches that are stored: the frequent half of what
 * batches.py and the producer do in Python.
 *
 * Whatever is unusual is left to Python: Appender.append() then changes nothing, and says so. It relies on the
 * interpreter's lock; for an interpreter without one, this module is not built.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <limits.h>
#include <stdbool.h>
#include <structmember.h>

/* Offset, size, CRC, magic, attributes, and the lengths of key and value. */
enum { OVERHEAD_BYTES = 26 };

static void free_object(PyObject *self, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ------------------------------------------------------------------ the records of a batch */

typedef struct {
    PyObject_HEAD
    PyObject *keys, *values, *outcomes;
    long long size_bytes;
    bool sealed;
} Records;

static PyMemberDef records_members[] = {
    {"keys", T_OBJECT_EX, offsetof(Records, keys), 0, NULL},
    {"values", T_OBJECT_EX, offsetof(Records, values), 0, NULL},
    {"outcomes", T_OBJECT_EX, offsetof(Records, outcomes), 0, NULL},
    {"size_bytes", T_LONGLONG, offsetof(Records, size_bytes), 0, NULL},
    {"sealed", T_BOOL, offsetof(Records, sealed), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *records_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Records *records = (Records *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!records)
        return NULL;
    records->keys = PyList_New(0);
    records->values = PyList_New(0);
    records->outcomes = PyList_New(0);
    if (!records->keys || !records->values || !records->outcomes)
        Py_CLEAR(records);
    return (PyObject *)records;
}

static int records_traverse(PyObject *self, visitproc visit, void *arg)
{
    Records *records = (Records *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(records->keys);
    Py_VISIT(records->values);
    Py_VISIT(records->outcomes);
    return 0;
}

static int records_clear(PyObject *self)
{
    Records *records = (Records *)self;
    Py_CLEAR(records->keys);
    Py_CLEAR(records->values);
    Py_CLEAR(records->outcomes);
    return 0;
}

static void records_dealloc(PyObject *self)
{
    free_object(self, records_clear);
}

static PyType_Slot records_slots[] = {
    {Py_tp_doc, "See batches.py."},
    {Py_tp_new, records_new},
    {Py_tp_dealloc, records_dealloc},
    {Py_tp_traverse, records_traverse},
    {Py_tp_clear, records_clear},
    {Py_tp_members, records_members},
    {0, NULL},
};

static PyType_Spec records_spec = {
    .name = "kiel_groups.clients.produce._batches.Records",
    .basicsize = sizeof(Records),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = records_slots,
};

/* ------------------------------------------------------------------ additions to batches */

typedef struct {
    PyObject_HEAD
    /* By topic: the partition numbers, and the queues by number. */
    PyObject *topics;
    /* The partitioner, or NULL; or what returns random numbers, if these choose. */
    PyObject *choose, *random;
    PyObject *running_loop, *future;
    /* The arguments of the future: nothing, and the loop that ran last. */
    PyObject *no_arguments, *loop_argument, *loop;
    /* The names of attributes. */
    PyObject *newest, *thread_id;
    PyTypeObject *records;
    long long buffered_bytes, most_buffered_bytes, most_batch_bytes, due_after;
} Appender;

static PyMemberDef appender_members[] = {
    {"topics", T_OBJECT_EX, offsetof(Appender, topics), READONLY, NULL},
    {"buffered_bytes", T_LONGLONG, offsetof(Appender, buffered_bytes), 0, NULL},
    {"most_buffered_bytes", T_LONGLONG, offsetof(Appender, most_buffered_bytes), 0, NULL},
    {"most_batch_bytes", T_LONGLONG, offsetof(Appender, most_batch_bytes), 0, NULL},
    {"due_after", T_LONGLONG, offsetof(Appender, due_after), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int appender_traverse(PyObject *self, visitproc visit, void *arg)
{
    Appender *appender = (Appender *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(appender->topics);
    Py_VISIT(appender->choose);
    Py_VISIT(appender->random);
    Py_VISIT(appender->running_loop);
    Py_VISIT(appender->future);
    Py_VISIT(appender->no_arguments);
    Py_VISIT(appender->loop_argument);
    Py_VISIT(appender->loop);
    Py_VISIT(appender->newest);
    Py_VISIT(appender->thread_id);
    Py_VISIT(appender->records);
    return 0;
}

static int appender_clear(PyObject *self)
{
    Appender *appender = (Appender *)self;
    Py_CLEAR(appender->topics);
    Py_CLEAR(appender->choose);
    Py_CLEAR(appender->random);
    Py_CLEAR(appender->running_loop);
    Py_CLEAR(appender->future);
    Py_CLEAR(appender->no_arguments);
    Py_CLEAR(appender->loop_argument);
    Py_CLEAR(appender->loop);
    Py_CLEAR(appender->newest);
    Py_CLEAR(appender->thread_id);
    Py_CLEAR(appender->records);
    return 0;
}

static void appender_dealloc(PyObject *self)
{
    free_object(self, appender_clear);
}

/* The type of records, which the module has; NULL with an exception if a program has replaced it. */
static PyTypeObject *find_records(PyTypeObject *appender)
{
    PyObject *module = PyType_GetModule(appender);
    PyObject *found = module ? PyObject_GetAttrString(module, "Records") : NULL;
    if (found && PyType_Check(found) && PyType_GetSlot((PyTypeObject *)found, Py_tp_new) == (void *)records_new)
        return (PyTypeObject *)found;
    if (found)
        PyErr_SetString(PyExc_TypeError, "Records was replaced");
    Py_XDECREF(found);
    return NULL;
}

static PyObject *appender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *choose, *random, *running_loop, *future;
    if (!PyArg_ParseTuple(args, "OOOO:Appender", &choose, &random, &running_loop, &future))
        return NULL;
    Appender *appender = (Appender *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!appender)
        return NULL;
    appender->choose = choose == Py_None ? NULL : Py_NewRef(choose);
    appender->random = random == Py_None ? NULL : Py_NewRef(random);
    appender->running_loop = Py_NewRef(running_loop);
    appender->future = Py_NewRef(future);
    appender->topics = PyDict_New();
    appender->no_arguments = PyTuple_New(0);
    appender->loop_argument = PyDict_New();
    appender->newest = PyUnicode_InternFromString("newest");
    appender->thread_id = PyUnicode_InternFromString("_thread_id");
    appender->records = find_records(type);
    if (!appender->topics || !appender->no_arguments || !appender->loop_argument || !appender->newest
        || !appender->thread_id || !appender->records)
        Py_CLEAR(appender);
    return (PyObject *)appender;
}

static bool is_blob(PyObject *object)
{
    return object == Py_None || PyBytes_CheckExact(object);
}

static long long size_of(PyObject *blob)
{
    return blob == Py_None ? 0 : PyBytes_Size(blob);
}

/* The batch to which records of this partition are added, if it has room. Its reference is new. */
static Records *open_batch(const Appender *appender, PyObject *queues, PyObject *partition, long long size_bytes)
{
    PyObject *queue = PyLong_CheckExact(partition) ? PyDict_GetItemWithError(queues, partition) : NULL;
    PyObject *newest = queue ? PyObject_GetAttr(queue, appender->newest) : NULL;
    if (newest && PyObject_TypeCheck(newest, appender->records)) {
        Records *batch = (Records *)newest;
        bool fits = batch->size_bytes + size_bytes <= appender->most_batch_bytes;
        if (fits && !batch->sealed && batch->outcomes && PyList_Check(batch->outcomes)
            && PyList_Size(batch->outcomes) != appender->due_after)
            return batch;
    }
    Py_XDECREF(newest);
    return NULL;
}

/*
 * Whether the loop that ran last runs in this thread now: asyncio's loops note their thread while they run. In Python
 * 3.11, asyncio.get_running_loop() makes a system call each time, which took a fifth of the whole.
 */
static bool runs_here(const Appender *appender)
{
    PyObject *thread = appender->loop ? PyObject_GetAttr(appender->loop, appender->thread_id) : NULL;
    bool is_here = thread && PyLong_CheckExact(thread) && PyLong_AsUnsignedLong(thread) == PyThread_get_thread_ident();
    Py_XDECREF(thread);
    PyErr_Clear();
    return is_here;
}

/* A future of the running loop; NULL with an exception, or without one if no loop runs. */
static PyObject *new_future(Appender *appender)
{
    if (runs_here(appender))
        return PyObject_Call(appender->future, appender->no_arguments, appender->loop_argument);
    PyObject *loop = PyObject_CallNoArgs(appender->running_loop);
    if (!loop) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError))
            PyErr_Clear();
        return NULL;
    }
    bool known = loop == appender->loop;
    if (!known && PyDict_SetItemString(appender->loop_argument, "loop", loop) == 0) {
        PyObject *before = appender->loop;
        appender->loop = Py_NewRef(loop);
        Py_XDECREF(before);
        known = true;
    }
    Py_DECREF(loop);
    return known ? PyObject_Call(appender->future, appender->no_arguments, appender->loop_argument) : NULL;
}

static bool add_to(Records *batch, PyObject *key, PyObject *value, PyObject *outcome)
{
    if (!batch->keys || !batch->values) {
        PyErr_SetString(PyExc_AttributeError, "the batch has no keys or no values");
        return false;
    }
    return !PyList_Append(batch->keys, key) && !PyList_Append(batch->values, value)
        && !PyList_Append(batch->outcomes, outcome);
}

/*
 * The outcome of the record, which is the given one or a future; NULL with an exception, or without one if the record was
 * not added.
 */
static PyObject *add(
    Appender *appender, PyObject *queues, PyObject *partition, PyObject *key, PyObject *value, PyObject *given)
{
    long long size_bytes = OVERHEAD_BYTES + size_of(key) + size_of(value);
    Records *batch = open_batch(appender, queues, partition, size_bytes);
    PyObject *outcome = !batch ? NULL : given ? Py_NewRef(given) : new_future(appender);
    if (outcome && !add_to(batch, key, value, outcome))
        Py_CLEAR(outcome);
    if (outcome) {
        /*
         * The garbage collector would visit each future several times, which cost a fifth of the whole. Meanwhile, it
         * cannot free a future that refers to itself, but the batch keeps the future anyway. It is tracked again when it
         * has a result.
         */
        PyObject_GC_UnTrack(outcome);
        batch->size_bytes += size_bytes;
        appender->buffered_bytes += size_bytes;
    }
    Py_XDECREF((PyObject *)batch);
    return outcome;
}

static bool is_entry(PyObject *found)
{
    return PyTuple_Check(found) && PyTuple_Size(found) == 2 && PyDict_Check(PyTuple_GetItem(found, 1));
}

/* One of the partitions, by a random number from 0 to 1, without 1. */
static PyObject *random_partition(const Appender *appender, PyObject *numbers)
{
    PyObject *given = PyObject_CallNoArgs(appender->random);
    double number = given ? PyFloat_AsDouble(given) : -1.0;
    Py_XDECREF(given);
    PyObject *found = PyErr_Occurred() ? NULL : PyTuple_GetItem(numbers, (Py_ssize_t)(number * PyTuple_Size(numbers)));
    return found ? Py_NewRef(found) : NULL;
}

/* A new reference to the partition of a record: the given one, or else the partitioner's; None if it is Python's. */
static PyObject *partition_of(const Appender *appender, PyObject *entry, PyObject *key, PyObject *given)
{
    if (given != Py_None)
        return Py_NewRef(given);
    PyObject *numbers = PyTuple_GetItem(entry, 0);
    if (appender->random && PyTuple_Check(numbers))
        return random_partition(appender, numbers);
    return appender->choose ? PyObject_CallFunctionObjArgs(appender->choose, key, numbers, NULL) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(append_doc, "append(topic, value, key, partition, outcome=..., /) -> Future | int | None");

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 && count != 5)
        return PyErr_Format(PyExc_TypeError, "%zd arguments given; expected 4 or 5", count);
    Appender *appender = (Appender *)self;
    PyObject *topic = args[0], *value = args[1], *key = args[2];
    if (appender->buffered_bytes >= appender->most_buffered_bytes || appender->due_after == 0
        || !PyUnicode_CheckExact(topic) || !is_blob(value) || !is_blob(key))
        return Py_NewRef(args[3]);
    PyObject *entry = PyDict_GetItemWithError(appender->topics, topic);
    if (!entry || !is_entry(entry))
        return PyErr_Occurred() ? NULL : Py_NewRef(args[3]);
    Py_INCREF(entry);
    PyObject *partition = partition_of(appender, entry, key, args[3]);
    PyObject *queues = PyTuple_GetItem(entry, 1), *given = count == 5 ? args[4] : NULL;
    PyObject *outcome = partition ? add(appender, queues, partition, key, value, given) : NULL;
    Py_DECREF(entry);
    if (outcome || PyErr_Occurred()) {
        Py_XDECREF(partition);
        return outcome;
    }
    return partition;
}

static PyMethodDef appender_methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, append_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot appender_slots[] = {
    {Py_tp_doc, "See batches.py."},
    {Py_tp_new, appender_new},
    {Py_tp_dealloc, appender_dealloc},
    {Py_tp_traverse, appender_traverse},
    {Py_tp_clear, appender_clear},
    {Py_tp_members, appender_members},
    {Py_tp_methods, appender_methods},
    {0, NULL},
};

static PyType_Spec appender_spec = {
    .name = "kiel_groups.clients.produce._batches.Appender",
    .basicsize = sizeof(Appender),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = appender_slots,
};

/* ------------------------------------------------------------------ outcomes */

/*
 * The place of a record. Its parts refer to nothing, so it is untracked, as the interpreter does with plain tuples: the
 * garbage collector would visit each place in its next pass.
 */
static PyObject *new_place(PyTypeObject *type, PyObject *topic, PyObject *partition, long long offset)
{
    PyObject *number = PyLong_FromLongLong(offset);
    PyObject *place = number ? ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 3) : NULL;
    if (!place) {
        Py_XDECREF(number);
        return NULL;
    }
    PyTuple_SetItem(place, 0, Py_NewRef(topic));
    PyTuple_SetItem(place, 1, Py_NewRef(partition));
    PyTuple_SetItem(place, 2, number);
    PyObject_GC_UnTrack(place);
    return place;
}

/* How the result of futures of one type is set. */
typedef struct {
    PyTypeObject *type;
    PyObject *done, *set_result;
} Methods;

static void forget(Methods *methods)
{
    Py_CLEAR(methods->type);
    Py_CLEAR(methods->done);
    Py_CLEAR(methods->set_result);
}

static bool find_methods(Methods *methods, PyTypeObject *type)
{
    if (methods->type == type)
        return true;
    forget(methods);
    methods->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    methods->done = PyObject_GetAttrString((PyObject *)type, "done");
    methods->set_result = PyObject_GetAttrString((PyObject *)type, "set_result");
    return methods->done && methods->set_result;
}

/* Sets the result of a future, unless it is done. */
static bool set_result(PyObject *future, PyObject *place, Methods *methods)
{
    if (!find_methods(methods, Py_TYPE(future)))
        return false;
    PyObject *answer = PyObject_CallFunctionObjArgs(methods->set_result, future, place, NULL);
    if (answer) {
        Py_DECREF(answer);
        return true;
    }
    /* Asking every future first would cost a tenth of the time. An exit that a callback raises is not for this code. */
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    answer = PyObject_CallFunctionObjArgs(methods->done, future, NULL);
    int done = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (done) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return done > 0;
    }
    PyErr_Restore(type, value, traceback);
    return false;
}

/* Has the garbage collector visit a future again. */
static void track_again(PyObject *future)
{
    if (PyType_GetFlags(Py_TYPE(future)) & Py_TPFLAGS_HAVE_GC && !PyObject_GC_IsTracked(future))
        PyObject_GC_Track(future);
}

PyDoc_STRVAR(set_places_doc, "set_places(futures, place_type, topic, partition, offset, /) -> None");

static PyObject *set_places(PyObject *module, PyObject *args)
{
    PyObject *futures, *type, *topic, *partition;
    long long offset;
    if (!PyArg_ParseTuple(args, "O!O!UO!L:set_places", &PyList_Type, &futures, &PyType_Type, &type, &topic,
                          &PyLong_Type, &partition, &offset))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))
        return PyErr_Format(PyExc_TypeError, "a place is a tuple");
    Methods methods = {NULL, NULL, NULL};
    bool failed = false;
    /* Callbacks of futures may run between two. */
    for (Py_ssize_t row = 0; !failed && row < PyList_Size(futures); row++) {
        PyObject *future = Py_NewRef(PyList_GetItem(futures, row));
        bool is_known = offset >= 0 && offset <= LLONG_MAX - row;
        PyObject *place = new_place((PyTypeObject *)type, topic, partition, is_known ? offset + row : -1);
        failed = !place || !set_result(future, place, &methods);
        track_again(future);
        Py_XDECREF(place);
        Py_DECREF(future);
    }
    forget(&methods);
    return failed ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(track_doc, "track(futures, /) -> None\n\nHave the garbage collector visit these futures again.");

static PyObject *track(PyObject *module, PyObject *futures)
{
    if (!PyList_Check(futures))
        return PyErr_Format(PyExc_TypeError, "no list");
    for (Py_ssize_t row = 0; row < PyList_Size(futures); row++)
        track_again(PyList_GetItem(futures, row));
    return Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------ module */

static PyMethodDef functions[] = {
    {"track", track, METH_O, track_doc},
    {"set_places", set_places, METH_VARARGS, set_places_doc},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type ? PyModule_AddObjectRef(module, name, type) : -1;
    Py_XDECREF(type);
    return failed;
}

static int fill_module(PyObject *module)
{
    if (Py_Version >= 0x030E0000) {
        PyErr_SetString(PyExc_ImportError, "from Python 3.14 on, tuples that are made here would have a wrong hash");
        return -1;
    }
    return add_type(module, "Records", &records_spec) || add_type(module, "Appender", &appender_spec) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_batches",
    .m_doc = "Open batches of a producer, and the futures of their records.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__batches(void)
{
    return PyModuleDef_Init(&definition);
}
