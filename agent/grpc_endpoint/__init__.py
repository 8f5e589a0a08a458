"""The Open Inference Protocol over gRPC, in a process of its own."""
