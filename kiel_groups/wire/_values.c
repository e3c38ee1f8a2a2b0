/* Make lists of the fields of the selected messages, by values(). */
#include "_selection.h"

#include "_blob_object.h"

/*
 * The fields of messages, a list of each. `keys` is NULL while all keys are null, `offsets` while each offset is one
 * more than the one before: most topics need neither list.
 */
typedef struct {
    PyObject *values, *keys, *offsets;
    Py_ssize_t count;
    int64_t first;
} Fields;

/* Appends an item and drops the reference to it. */
static bool append_new(PyObject *list, PyObject *item)
{
    int failed = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return !failed;
}

static bool append_key(Fields *fields, const Blob *key)
{
    if (!fields->keys) {
        if (key->size < 0)
            return true;
        fields->keys = PyList_New(0);
        for (Py_ssize_t row = 0; fields->keys && row < fields->count; row++)
            if (PyList_Append(fields->keys, Py_None))
                return false;
    }
    return fields->keys && append_new(fields->keys, blob_object(key));
}

static bool append_offset(Fields *fields, int64_t offset)
{
    if (!fields->count)
        fields->first = offset;
    if (!fields->offsets) {
        if (fields->first <= INT64_MAX - fields->count && offset == fields->first + fields->count)
            return true;
        fields->offsets = PyList_New(0);
        for (Py_ssize_t row = 0; fields->offsets && row < fields->count; row++)
            if (!append_new(fields->offsets, PyLong_FromLongLong(fields->first + row)))
                return false;
    }
    return fields->offsets && append_new(fields->offsets, PyLong_FromLongLong(offset));
}

static bool append_fields(const Selection *selection, Fields *fields)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; fields->count++)
        if (!append_offset(fields, message.offset) || !append_key(fields, &message.key)
            || !append_new(fields->values, blob_object(&message.value)))
            return false;
    return found == OTHER || refuse_runs();
}

PyDoc_STRVAR(values_doc, "values(runs, first, last, /) -> (values, keys, offsets)");

static PyObject *values(PyObject *module, PyObject *args)
{
    PyObject *runs, *answer = NULL;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LL:values", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = take_selection(runs, first, last);
    if (!selection.runs)
        return NULL;
    Fields fields = {.values = PyList_New(0)};
    if (fields.values && append_fields(&selection, &fields))
        answer = Py_BuildValue("(OOO)", fields.values, fields.keys ? fields.keys : Py_None,
                               fields.offsets ? fields.offsets : Py_None);
    Py_XDECREF(fields.values);
    Py_XDECREF(fields.keys);
    Py_XDECREF(fields.offsets);
    drop_selection(selection);
    return answer;
}

static PyMethodDef methods[] = {{"values", values, METH_VARARGS, values_doc}, {NULL, NULL, 0, NULL}};

int add_values(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
