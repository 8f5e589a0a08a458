"""The inference endpoint: HTTP and the Open Inference Protocol."""
