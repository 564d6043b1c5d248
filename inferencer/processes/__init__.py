"""How the processes of one server talk to each other: a channel, its messages, and shared memory."""
