"""One request at a time: how it is written, sent, read and ended. Nothing here knows about schedules."""
