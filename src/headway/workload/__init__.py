"""What is asked and when: arrival processes, length distributions, prompts and traces. Nothing here sends anything."""
