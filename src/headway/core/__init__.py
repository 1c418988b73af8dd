"""Decides who runs, how many tokens each step carries, who waits and who is turned away.

Standard library only; no clock, no randomness, no I/O: `now` is an argument, integer nanoseconds.
"""
