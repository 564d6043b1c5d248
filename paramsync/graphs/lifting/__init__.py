"""Turns a Draft into a pure function: cuts it to its outputs, makes variables and tables arguments, refuses state."""
