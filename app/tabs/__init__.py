"""The page's tabs: each file lays one out and answers its buttons. Every button is a named endpoint of the API."""
