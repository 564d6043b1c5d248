"""Keeps a replica at the right version: the follower's rounds, the policy, operators' requests, the status report."""
