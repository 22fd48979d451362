"""The playground: one static page that shows how each token of a response came to be."""
