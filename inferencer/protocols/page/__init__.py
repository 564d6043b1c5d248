"""The operator's page, and the API that it is made of: what a server's models do, live, and what is done to them."""
