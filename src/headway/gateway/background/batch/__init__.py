"""The Batch API: `/v1/files` and `/v1/batches`. `run` takes one batch from its input file to its output files, by
way of the same runner that computes background requests; a batch that was going on when the server ended goes on.
"""
