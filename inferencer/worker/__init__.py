"""A process that maps versions and answers from them. It uses neither stores nor followers."""
