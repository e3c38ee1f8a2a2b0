/*
 * Take the runs that a caller selects messages from, and count the selected messages by span().
 */
#include "_selection.h"

PyObject *refuse_runs(void)
{
    PyErr_SetString(PyExc_ValueError, "a run holds something else than whole plain messages");
    return NULL;
}

/* Fills `run` from (data, start, stop); on success the caller must release its buffer. */
static bool take_run(PyObject *item, Run *run)
{
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a run is a tuple of data, start and stop");
        return false;
    }
    if (!PyArg_ParseTuple(item, "y*nn:run", &run->buffer, &run->start, &run->stop))
        return false;
    if (run->start >= 0 && run->start <= run->stop && run->stop <= run->buffer.len)
        return true;
    PyErr_Format(PyExc_ValueError, "a run from %zd to %zd of %zd bytes", run->start, run->stop, run->buffer.len);
    PyBuffer_Release(&run->buffer);
    return false;
}

Selection take_selection(PyObject *runs, int64_t first, int64_t last)
{
    Py_ssize_t count = PyTuple_Size(runs);
    Selection selection = {.runs = PyMem_Calloc((size_t)count + 1, sizeof(Run)), .first = first, .last = last};
    if (!selection.runs) {
        PyErr_NoMemory();
        return selection;
    }
    for (; selection.count < count; selection.count++)
        if (!take_run(PyTuple_GetItem(runs, selection.count), &selection.runs[selection.count])) {
            drop_selection(selection);
            selection.runs = NULL;
            break;
        }
    return selection;
}

PyDoc_STRVAR(span_doc, "span(runs, first, last, /) -> (count, first_offset, last_offset)");

static PyObject *span(PyObject *module, PyObject *args)
{
    PyObject *runs;
    long long first, last, least = -1, most = -1;
    if (!PyArg_ParseTuple(args, "O!LL:span", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = take_selection(runs, first, last);
    if (!selection.runs)
        return NULL;
    Cursor cursor = {0};
    Message message;
    Found found;
    Py_ssize_t count = 0;
    for (; (found = next_message(&selection, &cursor, &message)) == MESSAGE; count++) {
        if (!count)
            least = message.offset;
        most = message.offset;
    }
    drop_selection(selection);
    return found == OTHER ? Py_BuildValue("(nLL)", count, least, most) : refuse_runs();
}

static PyMethodDef methods[] = {{"span", span, METH_VARARGS, span_doc}, {NULL, NULL, 0, NULL}};

int add_span(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
