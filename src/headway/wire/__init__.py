"""What travels between a client and Headway: OpenAI's request, response, error and stream shapes, and SSE framing.

A leaf: it knows the core's request and error types and nothing else of ours. Nothing here touches a socket.
"""
