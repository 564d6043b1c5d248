"""One module a gRPC service: translate, call, map errors."""
