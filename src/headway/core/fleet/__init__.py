"""Which worker a request goes to, and when: what workers are believed to be, and how much they are given."""
