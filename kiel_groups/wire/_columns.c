/*
 * Copy the selected messages into the buffers of Arrow's columns, by columns().
 *
 * The first pass measures the buffers, the second fills them, and stops at the end of the measured room.
 */
#include "_selection.h"

#include <string.h>

/* Values of one column: `room` bytes as measured, of which `size` are used. */
typedef struct {
    int64_t room, size, nulls;
    PyObject *data, *ends, *validity;
    char *bytes;
    int32_t *next_end;
    uint8_t *bits;
} Column;

typedef struct {
    Py_ssize_t room, size;
    PyObject *offsets;
    int64_t *numbers;
    Column key, value;
} Columns;

static void measure_blob(Column *column, const Blob *blob)
{
    if (blob->size < 0)
        column->nulls++;
    else
        column->room += blob->size;
}

static bool copy_blob(Column *column, const Blob *blob, Py_ssize_t row)
{
    if (blob->size >= 0) {
        if (blob->size > column->room - column->size)
            return false;
        memcpy(column->bytes + column->size, blob->bytes, (size_t)blob->size);
        column->size += blob->size;
        if (column->bits)
            column->bits[row / 8] |= (uint8_t)(1u << (row % 8));
    } else if (!column->bits)
        return false;
    *++column->next_end = (int32_t)column->size;
    return true;
}

static bool measure(const Selection *selection, Columns *columns)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; columns->room++) {
        measure_blob(&columns->key, &message.key);
        measure_blob(&columns->value, &message.value);
    }
    return found == OTHER;
}

/* False if the runs do not match the measured sizes. */
static bool copy(const Selection *selection, Columns *columns)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; columns->size++) {
        if (columns->size == columns->room || !copy_blob(&columns->key, &message.key, columns->size)
            || !copy_blob(&columns->value, &message.value, columns->size))
            return false;
        columns->numbers[columns->size] = message.offset;
    }
    return found == OTHER && columns->size == columns->room;
}

static PyObject *new_bytes(int64_t size)
{
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
}

static bool allocate_column(Column *column, Py_ssize_t rows)
{
    if (column->room > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more than 2 GiB in one column");
        return false;
    }
    column->data = new_bytes(column->room);
    column->ends = new_bytes(((int64_t)rows + 1) * 4);
    if (!column->data || !column->ends)
        return false;
    column->bytes = (void *)PyBytes_AsString(column->data);
    column->next_end = (void *)PyBytes_AsString(column->ends);
    *column->next_end = 0;
    if (column->nulls) {
        column->validity = new_bytes(((int64_t)rows + 7) / 8);
        if (!column->validity)
            return false;
        column->bits = (void *)PyBytes_AsString(column->validity);
        memset(column->bits, 0, ((size_t)rows + 7) / 8);
    }
    return true;
}

static bool allocate(Columns *columns)
{
    columns->offsets = new_bytes((int64_t)columns->room * 8);
    if (!columns->offsets)
        return false;
    columns->numbers = (void *)PyBytes_AsString(columns->offsets);
    return allocate_column(&columns->key, columns->room) && allocate_column(&columns->value, columns->room);
}

static PyObject *column_tuple(const Column *column)
{
    PyObject *validity = column->validity ? column->validity : Py_None;
    return Py_BuildValue("(OOOL)", column->data, column->ends, validity, (long long)column->nulls);
}

static void drop_column(Column *column)
{
    Py_CLEAR(column->data);
    Py_CLEAR(column->ends);
    Py_CLEAR(column->validity);
}

static PyObject *columns_of(const Selection *selection)
{
    Columns columns = {0};
    PyObject *answer = NULL;
    if (!measure(selection, &columns))
        return refuse_runs();
    if (allocate(&columns))
        answer = copy(selection, &columns)
            ? Py_BuildValue("(ONN)", columns.offsets, column_tuple(&columns.key), column_tuple(&columns.value))
            : refuse_runs();
    Py_CLEAR(columns.offsets);
    drop_column(&columns.key);
    drop_column(&columns.value);
    return answer;
}

PyDoc_STRVAR(columns_doc, "columns(runs, first, last, /) -> (offsets, keys, values)");

static PyObject *columns(PyObject *module, PyObject *args)
{
    PyObject *runs;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LL:columns", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = take_selection(runs, first, last);
    if (!selection.runs)
        return NULL;
    PyObject *answer = columns_of(&selection);
    drop_selection(selection);
    return answer;
}

static PyMethodDef methods[] = {{"columns", columns, METH_VARARGS, columns_doc}, {NULL, NULL, 0, NULL}};

int add_columns(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
