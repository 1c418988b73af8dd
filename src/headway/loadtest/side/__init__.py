"""What is asked of the server beside the load: whether it is there, what it takes, what it is, how it feels."""
