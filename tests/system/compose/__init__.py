"""What the test of the composition needs: an engine, a base image, and the stack itself."""
