"""A load test from what is wanted to what was found: profiles, prompts, runs, searches and sweeps, and their files."""
