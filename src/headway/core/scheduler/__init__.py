"""What one engine does next: who runs, and how many tokens of each. `scheduler.Scheduler` is the decider."""
