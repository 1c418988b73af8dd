"""Offline batches: every line of a file gets its answer, once, whatever happens on the way.

`core.batch` decides; here the files are read and written, and workers asked. `Job` is what runs.
"""
