/*
 * Encodes messages as the message set of a produce request. The broker assigns their offsets; the ones here count from 0.
 *
 * Nothing of Python runs between the two passes over the lists, so the sizes of the first one hold for the second one.
 */
#include "_functions.h"

#include <string.h>

#include "_crc32.h"
#include "_message.h"

static uint8_t *put32(uint8_t *at, uint32_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(number >> shift);
    return at;
}

/* Adds the size of a key or value; -1 with an exception if it is neither bytes nor None. */
static int add_size(PyObject *blob, long long *total)
{
    if (blob == Py_None)
        return 0;
    if (!PyBytes_Check(blob)) {
        PyErr_SetString(PyExc_TypeError, "a key or value is neither bytes nor None");
        return -1;
    }
    *total += PyBytes_Size(blob);
    return 0;
}

static uint8_t *put_blob(uint8_t *at, PyObject *blob)
{
    if (blob == Py_None)
        return put32(at, UINT32_MAX); /* -1: null */
    Py_ssize_t size = PyBytes_Size(blob);
    at = put32(at, (uint32_t)size);
    memcpy(at, PyBytes_AsString(blob), (size_t)size);
    return at + size;
}

static void put_messages(uint8_t *at, PyObject *keys, PyObject *values, Py_ssize_t count)
{
    for (Py_ssize_t row = 0; row < count; row++) {
        uint8_t *start = at;
        put32(start, 0);
        put32(start + 4, (uint32_t)row);
        start[CHECKED_AT] = start[ATTRIBUTES_AT] = 0;
        at = put_blob(put_blob(start + KEY_AT, PyList_GetItem(keys, row)), PyList_GetItem(values, row));
        put32(start + 8, (uint32_t)(at - start - OVERHEAD));
        put32(start + CRC_AT, crc32_of(start + CHECKED_AT, at - start - CHECKED_AT));
    }
}

PyDoc_STRVAR(encode_doc, "encode(keys, values, /) -> bytes");

static PyObject *encode(PyObject *module, PyObject *args)
{
    PyObject *keys, *values;
    if (!PyArg_ParseTuple(args, "O!O!:encode", &PyList_Type, &keys, &PyList_Type, &values))
        return NULL;
    Py_ssize_t count = PyList_Size(values);
    if (PyList_Size(keys) != count)
        return PyErr_Format(PyExc_ValueError, "%zd keys and %zd values", PyList_Size(keys), count);
    long long total = (long long)count * LEAST_MESSAGE;
    for (Py_ssize_t row = 0; row < count; row++)
        if (add_size(PyList_GetItem(keys, row), &total) || add_size(PyList_GetItem(values, row), &total))
            return NULL;
    if (total > INT32_MAX)
        return PyErr_Format(PyExc_OverflowError, "%lld bytes", total);
    PyObject *set = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (set)
        put_messages((uint8_t *)PyBytes_AsString(set), keys, values, count);
    return set;
}

static PyMethodDef methods[] = {{"encode", encode, METH_VARARGS, encode_doc}, {NULL, NULL, 0, NULL}};

int add_encode(PyObject *module)
{
    prepare_crc32();
    return PyModule_AddFunctions(module, methods);
}
