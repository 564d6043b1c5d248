"""A request as a value, whatever protocol it came by, and what it takes to compute it, alone or with others."""
