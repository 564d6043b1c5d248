"""How a replica is kept at the right version: reconciling, what operators ask and chose, what is said of it all."""
