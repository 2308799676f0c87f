# cython: language_level=3
"""Sets docstrings of compiled classes and properties, for ``core/_faces.py``."""

from cpython.object cimport PyObject, PyTypeObject


cdef extern from *:
    """
    /* For a property of an extension type. The string must live as long as the type. */
    #define rsfpy_set_property_doc(property, string) \
        (((PyGetSetDescrObject *)(property))->d_getset->doc = PyUnicode_AsUTF8(string))
    #define rsfpy_dict_of(type) ((type)->tp_dict)
    """
    const char *rsfpy_set_property_doc(object, object) except NULL
    PyObject *rsfpy_dict_of(PyTypeObject *)
    void PyType_Modified(PyTypeObject *)


cdef list KEPT = []


def set_doc(described, str doc not None):
    """Give an extension type, or a property of one, the docstring ``doc``."""
    if isinstance(described, type):
        (<dict> rsfpy_dict_of(<PyTypeObject *> described))["__doc__"] = doc
        PyType_Modified(<PyTypeObject *> described)
    else:
        KEPT.append(doc)
        rsfpy_set_property_doc(described, doc)
