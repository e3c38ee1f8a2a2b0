/* Make records, which are tuples of Python, of the selected messages, by records(). */
#include "_selection.h"

#include "_blob_object.h"

enum { RECORD_FIELDS = 5 };

/* What all records of one call share. */
typedef struct {
    PyTypeObject *type;
    allocfunc allocate;
    PyObject *topic, *partition;
    /* Whether its records cannot be part of a reference cycle. */
    bool acyclic;
} Kind;

/*
 * The values are made first, so that no code, not even the garbage collector, sees a record without them.
 *
 * A record of text, integers and bytes cannot be part of a cycle. So the garbage collector need not visit it; otherwise
 * a program that keeps some thousand records pays for several visits of each.
 */
static PyObject *record_of(const Kind *kind, const Message *message)
{
    PyObject *offset = PyLong_FromLongLong(message->offset);
    PyObject *key = blob_object(&message->key);
    PyObject *value = blob_object(&message->value);
    PyObject *record = offset && key && value ? kind->allocate(kind->type, RECORD_FIELDS) : NULL;
    if (!record) {
        Py_XDECREF(offset);
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    PyTuple_SetItem(record, 0, Py_NewRef(kind->topic));
    PyTuple_SetItem(record, 1, Py_NewRef(kind->partition));
    PyTuple_SetItem(record, 2, offset);
    PyTuple_SetItem(record, 3, key);
    PyTuple_SetItem(record, 4, value);
    if (kind->acyclic)
        PyObject_GC_UnTrack(record);
    return record;
}

static bool append_records(const Selection *selection, const Kind *kind, PyObject *list)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    while ((found = next_message(selection, &cursor, &message)) == MESSAGE) {
        PyObject *record = record_of(kind, &message);
        if (!record)
            return false;
        int failed = PyList_Append(list, record);
        Py_DECREF(record);
        if (failed)
            return false;
    }
    return found == OTHER || refuse_runs();
}

/* A record of numbers, bytes and text, and without attributes of its own, refers to nothing that could refer to it. */
static int is_acyclic(const Kind *kind)
{
    PyObject *offset = PyObject_GetAttrString((PyObject *)kind->type, "__dictoffset__");
    if (!offset)
        return -1;
    long at = PyLong_AsLong(offset);
    Py_DECREF(offset);
    if (at == -1 && PyErr_Occurred())
        return -1;
    return at == 0 && PyUnicode_CheckExact(kind->topic) && PyLong_CheckExact(kind->partition);
}

PyDoc_STRVAR(records_doc, "records(runs, first, last, kind, topic, partition, /) -> list");

static PyObject *records(PyObject *module, PyObject *args)
{
    PyObject *runs, *type, *list;
    Kind kind;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LLO!OO:records", &PyTuple_Type, &runs, &first, &last, &PyType_Type, &type,
                          &kind.topic, &kind.partition))
        return NULL;
    kind.type = (PyTypeObject *)type;
    kind.allocate = (allocfunc)PyType_GetSlot(kind.type, Py_tp_alloc);
    if (!PyType_IsSubtype(kind.type, &PyTuple_Type) || !kind.allocate) {
        PyErr_SetString(PyExc_TypeError, "records are of a type of tuple");
        return NULL;
    }
    int acyclic = is_acyclic(&kind);
    if (acyclic < 0)
        return NULL;
    kind.acyclic = acyclic;
    Selection selection = take_selection(runs, first, last);
    if (!selection.runs)
        return NULL;
    list = PyList_New(0);
    if (list && !append_records(&selection, &kind, list))
        Py_CLEAR(list);
    drop_selection(selection);
    return list;
}

static PyMethodDef methods[] = {{"records", records, METH_VARARGS, records_doc}, {NULL, NULL, 0, NULL}};

int add_records(PyObject *module)
{
    if (Py_Version >= 0x030E0000) {
        PyErr_SetString(PyExc_ImportError, "from Python 3.14 on, tuples that are made here would have a wrong hash");
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
