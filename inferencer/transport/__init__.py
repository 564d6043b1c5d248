"""How gRPC calls come in: dispatch, limits of time and memory, streams, health, drain."""
