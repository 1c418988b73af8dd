"""Work that nobody waits for: kept in the store, computed when there is room, fetched later.

`service` keeps calls, `routes` show and cancel them, `runner` takes them through the very front that everybody else
goes through (`fleet` or `engine` speak to it), `batches` feed it the lines of files.
"""
