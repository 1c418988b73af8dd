"""`headway serve --worker URL`: a gateway in front of servers elsewhere, put together from flags and tables."""
