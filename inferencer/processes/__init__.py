"""What the processes of one server say to each other, and how they are started."""
