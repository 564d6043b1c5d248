"""Stores beyond one machine: a bucket of an object store lies between the publisher and the followers."""
