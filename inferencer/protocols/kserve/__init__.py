"""KServe v2, the Open Inference Protocol, by gRPC and by HTTP."""
