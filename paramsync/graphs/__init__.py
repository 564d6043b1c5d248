"""Graph work: capture, lift, call. The only part of the library that imports TensorFlow; import it explicitly."""
