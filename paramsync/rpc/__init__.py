"""Calls between programs: addresses, a typed client, the options and statuses of servers, tensors on the wire."""
