/*
 * Declares what fills the module: one function for each source that defines functions of Python. Each source
 * includes this header first, directly or through _selection.h: the macros must precede Python.h.
 */
#ifndef KIEL_GROUPS_FUNCTIONS_H
#define KIEL_GROUPS_FUNCTIONS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each adds its functions to the module, and returns -1 with an exception if that fails. */
int add_check(PyObject *module);
int add_span(PyObject *module);
int add_columns(PyObject *module);
int add_records(PyObject *module);
int add_values(PyObject *module);
int add_encode(PyObject *module);

#endif
