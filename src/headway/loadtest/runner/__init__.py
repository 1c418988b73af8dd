"""A load made: when each request is sent, by which process, and what came of all of them."""
