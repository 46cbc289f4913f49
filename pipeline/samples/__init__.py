"""The samples of each family, from several sources."""
