"""The gRPC ports: connections, calls, limits of time and memory, streams, health, drain."""
