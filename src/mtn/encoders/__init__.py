"""Images to vectors."""
