"""A process that maps versions and answers from them. Knows neither stores nor followers."""
