"""Generated from proto/paramsync/kserve by `make proto`. Do not edit."""
