"""Makes a Draft of each kind of source: Keras models, functions, SavedModels, .meta files and live v1 graphs."""
