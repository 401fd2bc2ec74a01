"""The private API of PyTorch that the package uses, each item under a name of our own with a comment on its purpose and
what would break it. The rest of the package imports it from here, and `tests/test_torch_internals.py` reports the item
that a new version has changed. Seen on torch 2.13, unless a comment says otherwise. There is one module per topic,
because some take seconds to import.

Excluded are the classes of `torch._ops`, which documented functions return for overloads, and private attributes, such
as `overload._schema`, which are read where they are used."""
