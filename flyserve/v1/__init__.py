"""Version 1 of the wire contract; a new major version is a new folder."""
