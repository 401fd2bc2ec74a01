"""Private API of PyTorch, each piece by a name of our own module: what it is for, and what breaks it. The rest of the
package imports it from here, and `tests/test_torch_internals.py` names the piece that a new version has changed. Seen
on torch 2.13, unless a comment says otherwise. A module for each topic, because some cost seconds to import.

Not here: the classes of `torch._ops`, by which documented functions name overloads, and private attributes, such as
`overload._schema`, which are read where they are used."""

from decomp.torch_internals.versions import require_supported

require_supported()
