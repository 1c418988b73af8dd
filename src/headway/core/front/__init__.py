"""Who is let in, who waits, and what is done when there is too much. `front.Front` is the decider."""
