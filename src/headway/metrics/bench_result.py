"""The version of what `headway bench` writes: for its writer, and for those that read it without knowing the writer.

It changes with the meaning of a field.
"""

VERSION = 2
