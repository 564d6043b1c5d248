"""How a replica is kept at the right version: rounds, what operators ask and chose, what is said of it all."""
