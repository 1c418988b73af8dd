"""What an offline batch decides: which item is next, how many run at once, who is tried again, who is kept apart.

Pure, like all of `core`: no clock, no randomness, no I/O. `Dispatcher` composes the parts and is what is driven.
"""
