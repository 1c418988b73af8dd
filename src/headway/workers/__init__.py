"""Servers that run models, behind one protocol: `Worker`. What they say of themselves has an age."""
