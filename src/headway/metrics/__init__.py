"""What is measured: percentiles, promises kept and goodput; what is exported under which names; what other servers tell
of themselves. A leaf: it reads plain numbers and text, and knows nothing of who produced them.
"""
