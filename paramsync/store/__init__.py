"""A store: the directory to which a publisher writes versions, and from which followers read them."""
