"""Keeps a replica at the right version: the rounds, the policy, requests of operators, the report."""
