"""Reports: one self-contained page, or its tables and figures as files."""
