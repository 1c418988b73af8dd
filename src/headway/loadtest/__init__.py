"""Measures any OpenAI-compatible server from outside. Imports only the leaf packages, never the engine."""
