"""What calls need on both sides: addresses, status codes, tensors on the wire, a typed client."""
