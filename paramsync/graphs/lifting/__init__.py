"""From a Draft to a pure function: cuts it to its outputs, makes variables and tables arguments, and refuses state."""
