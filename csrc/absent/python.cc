// libcgotorch_nopython.so: an empty library with the name of libtorch_python.so. A library of
// operators that was built for Python names libtorch_python.so, also if it takes nothing from it.
// See Note [Libraries of operators].
