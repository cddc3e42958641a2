"""Mathematical answers: finding them in a reply, and whether two are equal."""
