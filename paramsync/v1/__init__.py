"""Generated from proto/paramsync/v1 by `make proto`. Do not edit."""
