"""Everything that is decided, and nothing that is done: no clock, no socket, no random number. Time is an argument.

Two deciders, each in a room of its own: `front/` (who is let in, who waits) and `scheduler/` (what the next step of an
engine carries). `fleet/` says to which worker the front sends, `batch/` in which order offline work goes. Beside the
rooms lies what all of them speak of: requests, the waiting room (`lanes.py`), the step time model (`pace.py`), errors.
"""
