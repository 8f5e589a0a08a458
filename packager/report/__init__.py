"""Shows the results of a build to people: tables, a page, plots."""
