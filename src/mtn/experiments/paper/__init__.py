"""The paper's tables and figures, on any data."""
